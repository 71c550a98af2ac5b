"""What `gcprof run` costs beyond the steps that it ran: `just bench-cost`.

Runs the main job from the command line and compares its wall time with the steps in its records. Fails where it is
more than 1.3 x the steps plus 10 s, where it takes more than two minutes, or where not all seven rows are ok.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from profiler.analysis.rows import rows
from profiler.runs import store

FACTOR, FIXED_SECONDS, LONGEST_SECONDS, ROWS = 1.3, 10.0, 120.0, 7


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "run"
        words = [
            sys.executable,
            "-m",
            "profiler",
            "run",
            "--device",
            "cpu",
            "--segments",
            "1,2,4,8,16,32",
            "-o",
            str(where),
        ]
        began = time.monotonic()
        subprocess.run(words, check=True)
        whole = time.monotonic() - began
        records = store.load(where).records
    steps = sum(record.num_steps * median(record.readings.step_seconds or (0.0,)) for record in records)
    ok = sum(row.outcome == "ok" for row in rows(records))
    limit = FACTOR * steps + FIXED_SECONDS
    print(
        f"whole run {whole:.1f} s; its {sum(r.num_steps for r in records)} steps {steps:.1f} s; allowed {limit:.1f} s"
    )
    print(f"{ok} rows ok")
    return int(whole > min(limit, LONGEST_SECONDS) or ok != ROWS)


if __name__ == "__main__":
    sys.exit(main())
