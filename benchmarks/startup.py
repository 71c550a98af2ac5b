"""What a trial costs beyond its steps: `just bench-startup`.

Prints the time from the request to the worker's first line, the time of a whole tiny trial with all three passes, and
what a new interpreter takes to import the same; and `gcprof --help` in pairs with the import of typer alone. Fails
above 100 ms, 0.5 s, and 1.3 times the import in the median of the pairs. `--shared` is for a machine that others use
too, where absolute times say nothing: then the first two may take a fortieth and an eighth of the new interpreter's
imports, in the quickest of three engines, since what others do only adds to them.
"""

from __future__ import annotations

import sys
import time
from statistics import median

from benchmarks import GCPROF, spent
from profiler.core.case import Case, Choice, Trial
from profiler.core.server_process import PRELOAD
from profiler.engines.local import Local

TRIALS, HELPS = 30, 10
START_SECONDS, TRIAL_SECONDS, HELP_RATIO = 0.1, 0.5, 1.3


def main() -> int:
    interpreters = [spent((sys.executable, "-c", f"import {', '.join(PRELOAD)}")).clock for _ in range(3)]
    is_shared = "--shared" in sys.argv[1:]
    starts, wholes = min((_trials() for _ in range(3 if is_shared else 1)), key=lambda tried: median(tried[1]))
    pairs = [
        (spent((*GCPROF, "--help")).clock, spent((sys.executable, "-c", "import typer")).clock) for _ in range(HELPS)
    ]
    ratios = [help_ / typer for help_, typer in pairs]
    named = {
        "fork to the worker's first line": starts,
        "a whole tiny trial": wholes,
        "a new interpreter's imports": interpreters,
        "gcprof --help": [help_ for help_, _ in pairs],
        "python -c 'import typer'": [typer for _, typer in pairs],
    }
    for name, seconds in named.items():
        print(f"{name:32} median {median(seconds) * 1e3:7.1f} ms  largest {max(seconds) * 1e3:7.1f} ms")
    print(f"--help / import typer            median {median(ratios):7.2f}     largest {max(ratios):7.2f}")
    imports = median(interpreters)
    start, trial = (imports / 40, imports / 8) if is_shared else (START_SECONDS, TRIAL_SECONDS)
    late = median(starts) > start or median(wholes) > trial
    return int(late or median(ratios) > HELP_RATIO)


def _trials() -> tuple[list[float], list[float]]:
    """Seconds to the first line and of the whole of tiny trials that verify, read memory and take time."""
    none = Case(
        model=Choice("mlp"), strategy=Choice("none"), optimizer=Choice("sgd"), batch_size=64, device="cpu", samples=5
    )
    starts, wholes = [], []
    with Local() as engine:
        baseline = next(engine.run([Trial(case=none)]))  # the first trial is not counted
        for _ in range(TRIALS):
            began = time.monotonic()
            record = next(engine.run([Trial(case=none, digests=baseline.equality.digests)]))
            wholes.append(time.monotonic() - began)
            starts.append(record.stage_seconds["start"])
            assert record.outcome == "ok", record.detail
            assert record.equality.gradients_equal
            assert record.readings.peak_bytes
            assert record.readings.step_seconds
    return starts, wholes


if __name__ == "__main__":
    sys.exit(main())
