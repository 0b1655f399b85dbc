"""Runs every benchmark, or those that are named: `python -m benchmarks [commit core sync wire]`."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
KNOWN = {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}


def main() -> int:
    wanted = sys.argv[1:] or list(KNOWN)
    unknown = [name for name in wanted if name not in KNOWN]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(KNOWN)}", file=sys.stderr)
        return 2
    # In a process each: one's memory and garbage collector must not weigh on the next.
    return max(subprocess.run([sys.executable, KNOWN[name]], check=False).returncode for name in wanted)


if __name__ == "__main__":
    sys.exit(main())
