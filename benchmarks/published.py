"""Every published system at the size that this machine runs: `python -m benchmarks.published [NAME ...] [-o DIR]`.

Prints each table and how long it took. Fails where a system ends otherwise than with 0, or takes more seconds than
`--within` says: 120 is what the CPU sizes promise of an idle machine with two cores.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

from benchmarks import GCPROF, parser, spent
from profiler.workflows.reproduce import names


def main() -> int:
    arguments = parser(__doc__, "only these systems")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--predict", action="store_true", help="run nothing: predict the published size")
    arguments.add_argument("--within", type=float, default=math.inf, help="seconds that one system may take")
    asked = arguments.parse_args()
    how = ("--predict",) if asked.predict else ("--device", asked.device)
    with tempfile.TemporaryDirectory() as folder:
        root = asked.output or Path(folder)
        took = {
            name: spent(
                (*GCPROF, "reproduce", name, *how, "-o", str(root / name)), may_fail=True, stdout=None, stderr=None
            )
            for name in asked.names or names()
        }
    print()
    for name, one in took.items():
        print(f"{name:16} exit code {one.exit_code}  {one.clock:6.1f} s")
    return int(any(one.exit_code or one.clock > asked.within for one in took.values()))


if __name__ == "__main__":
    sys.exit(main())
