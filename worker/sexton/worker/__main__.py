"""`python -m sexton.worker`: the command line, where the script is not on PATH."""

from sexton.worker.cli import main

main()
