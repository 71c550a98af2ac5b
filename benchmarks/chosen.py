"""Whether `gcprof plan` takes the best of what it measures, on the CPU: `just bench-worth [WORD OF A MODEL ...]`.

For each model a plan is made for a budget that some plans fit, and not all. Then all ways of its table are measured
anew, in processes of their own: the chosen one is slower, where that can be told, than none that needs no more. What
the costs said beforehand is off by 3 points of a step at the median. Exit code 1 where a line is missed.
"""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import chdir
from statistics import median

from benchmarks import Row, is_missed
from profiler.analysis.rows import rows
from profiler.core.case import Trial
from profiler.core.units import bytes_text, change_text
from profiler.engines.local import Local
from profiler.workflows.planner import PlanRequest, is_slower, plan

MOST_OFF = 3.0  # points of a step: how far the costs may be from what is measured, at the median
MODELS = {  # with their batches and budgets: between the lowest peak of a plan and the peak without checkpointing
    "transformer": (8, "60%"),
    "transformer:layers=4,width=512,heads=8,sequence=64": (16, "80%"),
    "mnist-cnn:channels=8": (32, "98%"),
    "torchvision:resnet18:size=96": (32, "90%"),
    "torchvision:squeezenet1_1:size=96": (16, "75%"),
}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # where the runs are kept
        return judged(sys.argv[1:])


def judged(names: Sequence[str]) -> int:
    """Print the chosen way and those beside it, measured anew; the exit code says whether a line is missed."""
    num_missed, off = 0, list[float]()
    for model, (batch_size, budget) in MODELS.items():
        if names and not any(name in model for name in names):
            continue
        planned = plan(PlanRequest(words=Row(model=model, batch_size=batch_size).request("cpu"), budget=budget))
        print(f"{model}, batch {batch_size}, at most {budget}", flush=True)
        if not planned.taken:
            print("  nothing was chosen  MISSED", flush=True)
            num_missed += 1
            continue
        ways = [(way, way.measured) for way in planned.plans if way.measured]
        with Local() as engine:
            trials = [Trial(case=row.case, passes=("memory", "time")) for _, row in ways]
            records = list(engine.run([Trial(case=trials[0].case.baseline, passes=("memory",)), *trials]))
        anew = {row.case: row for row in rows(records)}
        (chosen,) = (anew[row.case] for way, row in ways if way.is_chosen)
        for way, row in ways:
            again = anew[row.case]
            peak, most = again.readings.peak_bytes or 0, chosen.readings.peak_bytes or 0
            missed = again is not chosen and peak <= most and is_slower(chosen, again)
            by_costs = way.way.cost.step_seconds / planned.none.cost.step_seconds
            off += [abs(by_costs - again.time_ratio)] if again.time_ratio is not None else []
            told = " and ".join(change_text(one.time_ratio) for one in (row, again))
            mark = "MISSED" if missed else "chosen" if again is chosen else ""
            print(f"  {way.way.name:<24} {bytes_text(peak)}, by costs {change_text(by_costs)}, measured {told}  {mark}")
            num_missed += missed
    return int(is_missed(f"points off, median of {len(off)} ways", median(off or [1.0]) * 100, MOST_OFF) or num_missed)
