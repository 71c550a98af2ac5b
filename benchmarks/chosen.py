"""Whether `gcprof plan` takes the best of what it measures, on the CPU: `just bench-worth [WORD OF A MODEL ...]`.

For each model a plan is made for a budget that some plans fit, and not all. Then all ways of its table are measured
anew, in processes of their own: the chosen one is slower, where that can be told, than none that needs no more. What
the costs said beforehand is off by 3 points of a step at the median. Exit code 1 where a line is missed.
"""

import sys
import tempfile
from contextlib import chdir
from statistics import median

from benchmarks import verdict
from profiler.analysis.rows import rows
from profiler.core.case import Trial
from profiler.core.units import bytes_text, change_text
from profiler.engines.local import Local
from profiler.workflows.planner import PlanRequest, is_slower, plan
from profiler.workflows.spec import Request

MOST_OFF = 0.03  # of a step: how far the costs may be from what is measured, at the median
MODELS = {  # with their batches and budgets: between the lowest peak of a plan and the peak without checkpointing
    "transformer": (8, "60%"),
    "transformer:layers=4,width=512,heads=8,sequence=64": (16, "80%"),
    "mnist-cnn:channels=8": (32, "98%"),
    "torchvision:resnet18:size=96": (32, "90%"),
    "torchvision:squeezenet1_1:size=96": (16, "75%"),
}


def main() -> int:
    """Print the chosen way and those beside it, measured anew; the exit code says whether a line is missed."""
    is_met, off, words = True, list[float](), sys.argv[1:]
    for model, (batch_size, budget) in MODELS.items():
        if words and not any(word in model for word in words):
            continue
        asked = Request(model=model, strategies="none", batch_size=str(batch_size), device="cpu")
        planned = plan(PlanRequest(words=asked, budget=budget))
        print(f"{model}, batch {batch_size}, at most {budget}", flush=True)
        comparison = planned.comparison
        if comparison is None or comparison.chosen is None:
            print("  nothing was chosen  MISSED", flush=True)
            is_met = False
            continue
        ways = [way for way in comparison.plans if way.measured]
        cases = [way.measured.case for way in ways if way.measured]
        with Local(stage_seconds=600) as engine:
            trials = [Trial(case=case, passes=("memory", "time")) for case in cases]
            records = list(engine.run([Trial(case=cases[0].baseline, passes=("memory",)), *trials]))
        anew = {row.case: row for row in rows(records)}
        chosen = anew[cases[ways.index(comparison.chosen.plan)]]
        for way, case in zip(ways, cases, strict=True):
            again, peak, most = anew[case], anew[case].readings.peak_bytes, chosen.readings.peak_bytes
            is_beside = again is not chosen and peak is not None and most is not None and peak <= most
            is_missed = is_beside and is_slower(chosen, again)
            by_costs = way.way.cost.step_seconds / planned.none.cost.step_seconds
            ratios = [row.time_ratio if row else None for row in (way.measured, again)]
            off += [abs(by_costs - again.time_ratio)] if again.time_ratio is not None else []
            told = f"by costs {change_text(by_costs)}, measured {' and '.join(map(change_text, ratios))}"
            mark = "*" if again is chosen else " "
            print(f"  {mark} {way.way.name:<24} {bytes_text(peak):>9}  {told}  {verdict(not is_missed)}", flush=True)
            is_met &= not is_missed
    points = median(off or [1.0])
    print(f"the costs of {len(off)} ways are {points * 100:.1f} points off at the median", flush=True)
    return int(not is_met or points > MOST_OFF)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # where the runs are kept
        code = main()
    sys.exit(code)
