"""The command line. A composition root: nothing else imports it.

Only `main` is here, and nothing of typer: a plain install, which brings what a holder needs and no more, has
the `sexton` script too and must be able to say what is missing.
"""

import sys
from typing import Final

_USAGE: Final = 2


def main() -> None:
    """The `sexton` script. Ends with one of the codes in `sexton.worker.cli.codes`."""
    try:
        from sexton.worker.cli.app import run  # noqa: PLC0415 - what it needs may not be installed
        from sexton.worker.ending import end_process  # noqa: PLC0415
    except ModuleNotFoundError as error:
        missing = (error.name or "sexton").partition(".")[0]
        if missing == "sexton":
            raise
        sys.stderr.write(
            f"sexton: the command line needs: pip install 'sexton[worker]' ({missing} is missing)\n"
        )
        sys.exit(_USAGE)
    end_process(run(sys.argv[1:]))
