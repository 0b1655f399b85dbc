"""From the environment and the files of secrets to the settings, or to an error that names what cannot be."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sexton.schemas.errors import InvalidInput
from sexton.worker.settings.model import PREFIX, Settings

SECRETS_DIR: Final = "SEXTON_SECRETS_DIR"
"""Variable that names the folder of secrets: one file for each, named as the variable would be."""

_MOUNTED: Final = Path("/run/secrets")
"""Where Docker mounts secrets."""

_OTHERS: Final = frozenset({SECRETS_DIR, "SEXTON_CONTEXT"})
"""Variables that are ours and no settings."""


def read_settings(**given: Any) -> Settings:
    """The settings of this process.

    Raises:
        InvalidInput: a variable, a file or an argument cannot be; the message names it and never its value.
    """
    try:
        return Settings(_secrets_dir=secrets_dir(), **given)
    except ValidationError as error:
        problems = "; ".join(
            f"{PREFIX + where.upper() if where else 'together'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False, include_context=False)
            for where in (".".join(str(part) for part in problem["loc"]),)
        )
        raise InvalidInput(f"settings: {problems}") from None


def secrets_dir() -> Path | None:
    """The folder of secrets: what `SEXTON_SECRETS_DIR` names, else where Docker mounts them, if it is there.

    Raises:
        InvalidInput: the folder that is named is not there, or cannot be read.
    """
    named = os.environ.get(SECRETS_DIR)
    folder = Path(named) if named else _MOUNTED
    if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK):
        return folder
    if named:
        raise InvalidInput(f"settings: {SECRETS_DIR} is not a folder that can be read")
    return None


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none: misspelt, or of another version."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | _OTHERS
    return sorted(name for name in environ if name.upper().startswith(PREFIX) and name.upper() not in known)
