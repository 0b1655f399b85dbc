"""What is set, to what, and where that came from; secrets are hidden."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr
from pydantic_settings import EnvSettingsSource, SecretsSettingsSource

from sexton.worker.settings.model import PREFIX, Settings

HIDDEN: Final = "**********"

_USER_INFO: Final = re.compile(r"(^|(?<=[,\s])|(?<=://))(?!\w+://)[^\s,]*@")
"""All of an address up to its last @, whatever a password is made of, with a scheme before it or none."""
_QUERY: Final = re.compile(r"\?[^\s,]*")
_PROGRAM: Final = re.compile(r"(?<=^command:)(\s*\S+)\s.*", re.DOTALL)
"""A program and its arguments, which may hold a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One setting, fit to be shown."""

    name: str
    """The field's name."""
    variable: str
    """The environment variable that sets it."""
    value: str | int | float | bool | None
    """What it is; a secret that is set is `HIDDEN`, and so is what an address may hold beside the host."""
    origin: str
    """`default`, `environment`, `argument`, or the path of a file of secrets."""
    about: str
    """What it is for, on one line."""


def describe(
    settings: Settings, *, secrets: Path | None = None, given: Mapping[str, Any] | None = None
) -> Iterator[Described]:
    """Describes each setting, in the order of their declaration.

    Args:
        settings: as `read_settings` gave them.
        secrets: the folder of secrets that they were read with.
        given: the arguments that they were read with.
    """
    from_environment = EnvSettingsSource(Settings)()
    from_files = SecretsSettingsSource(Settings, secrets_dir=secrets)() if secrets is not None else {}
    for name, field in Settings.model_fields.items():
        if given is not None and name in given:
            origin = "argument"
        elif name in from_environment:
            origin = "environment"
        elif name in from_files:
            assert secrets is not None  # noqa: S101 - or there would be none from files
            origin = str(_file_of(secrets, name))
        else:
            origin = "default"
        yield Described(
            name=name,
            variable=PREFIX + name.upper(),
            value=_shown(getattr(settings, name)),
            origin=origin,
            about=" ".join((field.description or "").split()),
        )


def _file_of(secrets: Path, name: str) -> Path:
    wanted = (PREFIX + name).lower()
    return next((path for path in secrets.iterdir() if path.name.lower() == wanted), secrets / wanted)


def _shown(value: Any) -> str | int | float | bool | None:
    match value:
        case None | bool() | int() | float():
            return value
        case SecretStr():
            return HIDDEN if value.get_secret_value() else ""
        case str():
            if _PROGRAM.search(value):
                return _PROGRAM.sub(rf"\1 {HIDDEN}", value)
            return _QUERY.sub(f"?{HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", value))
        case _:
            return str(value)
