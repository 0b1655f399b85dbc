"""Makes the transcript that ships with Sexton: `python -m tests.golden.make_demo_transcript`.

With `--check` nothing is written, and the exit code says whether the shipped file is what would be written.
"""

import sys
from pathlib import Path

from tests.golden.demo_session import Session
from tests.golden.demo_story import tell

SHIPPED = Path(__file__).parents[2] / "worker/sexton/worker/data/demo-transcript.jsonl"


def make() -> bytes:
    """The whole transcript."""
    session = Session()
    tell(session)
    return bytes(session)


def main(arguments: list[str]) -> int:
    """Writes the file, or with `--check` compares it."""
    made = make()
    if "--check" in arguments:
        return 0 if SHIPPED.read_bytes() == made else 1
    SHIPPED.parent.mkdir(exist_ok=True)
    SHIPPED.write_bytes(made)
    sys.stderr.write(f"{SHIPPED.name}: {len(made.splitlines())} lines, {len(made)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
