"""Every published system at the size that this machine runs: `python -m benchmarks.published [NAME ...] [-o DIR]`.

Prints each table and how long it took. Fails where a system ends otherwise than with 0, or takes more seconds than
`--within` says: 120 is what the CPU sizes promise of an idle machine with two cores.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from profiler.workflows.reproduce import names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-o", "--output", type=Path, help="keep the run folders below this one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--predict", action="store_true", help="run nothing: predict the published size")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds that one system may take")
    asked = parser.parse_args()
    how = ["--predict"] if asked.predict else ["--device", asked.device]
    with tempfile.TemporaryDirectory() as folder:
        root = asked.output or Path(folder)
        took = {name: reproduce(name, root / name, how) for name in asked.names or names()}
    wrong = [name for name, (code, _) in took.items() if code]
    slow = [name for name, (_, seconds) in took.items() if seconds > asked.within]
    print()
    for name, (code, seconds) in took.items():
        print(f"{name:16} exit code {code}  {seconds:6.1f} s")
    return int(bool(wrong or slow))


def reproduce(name: str, folder: Path, how: list[str]) -> tuple[int, float]:
    """Run one system in a process of its own: its exit code, and the seconds."""
    words = [sys.executable, "-m", "profiler", "reproduce", name, *how, "-o", str(folder)]
    began = time.monotonic()
    done = subprocess.run(words, check=False)
    return done.returncode, time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
