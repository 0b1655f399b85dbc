"""The end of a process that used the cold store."""

import logging
import os
import sys
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """Ends the process with `code`, after its output is written. What it used must be let go of before.

    The threads below obstore let go of Python objects shortly after the last answer was given. If the
    interpreter takes itself down at that moment, they abort the process: one run in six of a command that
    ends after a write exited with 134 (https://github.com/PyO3/pyo3-async-runtimes/issues/40). So where
    obstore was loaded, the interpreter is not taken down: the process ends.
    """
    if "obstore" not in sys.modules:
        sys.exit(code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # it is None if it was closed when the program began
                stream.flush()
        except (OSError, ValueError):  # nobody reads any more; the code says so already
            continue
    os._exit(code)
