"""What a trial costs beyond its steps: `just bench-startup`.

Prints the time from the request to the worker's first line, the time of a whole tiny trial with all three passes, and
what a new interpreter takes to import the same. Fails above 100 ms and 0.5 s.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from profiler.case import Case, Choice, Trial
from profiler.engines.local import PRELOAD, Local

TRIALS = 30
START_SECONDS, TRIAL_SECONDS = 0.1, 0.5


def main() -> int:
    interpreters = [_new_interpreter() for _ in range(3)]
    case = Case(
        model=Choice("mlp"), strategy=Choice("segments:k=2"), optimizer=Choice("sgd"), batch_size=64, device="cpu"
    )
    starts, wholes = [], []
    with Local() as engine:
        next(engine.run([Trial(case=case)]))  # the first one is not counted
        for _ in range(TRIALS):
            began = time.monotonic()
            record = next(engine.run([Trial(case=case)]))
            wholes.append(time.monotonic() - began)
            starts.append(record.stage_seconds["start"])
            assert record.outcome == "ok", record.detail
    print(
        f"fork to the worker's first line  median {median(starts) * 1e3:7.1f} ms  largest {max(starts) * 1e3:7.1f} ms"
    )
    print(
        f"a whole tiny trial               median {median(wholes) * 1e3:7.1f} ms  largest {max(wholes) * 1e3:7.1f} ms"
    )
    print(f"a new interpreter's imports      median {median(interpreters) * 1e3:7.1f} ms")
    return int(median(starts) > START_SECONDS or median(wholes) > TRIAL_SECONDS)


def _new_interpreter() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", f"import {', '.join(PRELOAD)}"], check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
