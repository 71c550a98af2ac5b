"""Whether `gcprof plan` takes the best of what it measures, on the CPU: `python -m benchmarks.chosen [NAME ...]`.

- `best`: for each model a plan is made for a budget that some plans fit, and not all. Then all ways of its table are
  measured anew, in processes of their own: the chosen one is slower, where that can be told, than none that needs no
  more. What the costs said beforehand is off by 3 points of a step at the median.
- `again`: ten plans of one model beside four busy processes choose one way, or ways that a run could not tell apart.

Exit code 1 where a line is missed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from itertools import combinations
from statistics import median

import msgspec

from benchmarks import busy
from profiler.analysis.rows import rows
from profiler.core.case import Trial
from profiler.core.units import bytes_text, change_text
from profiler.engines.local import Local
from profiler.planning.plan import render
from profiler.request.spec import Request
from profiler.views.tables.plans import ComparedPlan
from profiler.workflows.plan_comparison import is_slower
from profiler.workflows.planner import Planned, PlanRequest, plan

AGAIN, NUM_BUSY = 10, 4
MOST_OFF = 0.03  # of a step: how far the costs may be from what is measured, at the median
MODELS = {  # with their batches and budgets: between the lowest peak of a plan and the peak without checkpointing
    "transformer": (8, "60%"),
    "transformer:layers=4,width=512,heads=8,sequence=64": (16, "80%"),
    "mnist-cnn:channels=8": (32, "98%"),
    "torchvision:resnet18:size=96": (32, "90%"),
    "torchvision:squeezenet1_1:size=96": (16, "75%"),
}
SMALL = "transformer:layers=4,width=64,sequence=32", 16, "60%"


def main() -> int:
    """Print every line; the exit code says whether all were met."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where the runs are kept
        met = [TABLE[name]() for name in sys.argv[1:] or TABLE]
    return int(not all(met))


def best() -> bool:
    """The chosen way against those beside it, measured anew."""
    missed, off = 0, list[float]()
    for model, (batch_size, budget) in MODELS.items():
        planned = _planned(model, batch_size, budget)
        print(f"best: {model}, batch {batch_size}, at most {budget}", flush=True)
        comparison = planned.comparison
        if comparison is None or comparison.chosen is None:
            print("  nothing was chosen  MISSED", flush=True)
            missed += 1
            continue
        again = _measured_anew(comparison.plans)
        chosen = again[comparison.plans.index(comparison.chosen.plan)]
        for before, after in zip(comparison.plans, again, strict=True):
            peak, most = (one.measured.readings.peak_bytes if one.measured else None for one in (after, chosen))
            is_beside = after is not chosen and peak is not None and most is not None and peak <= most
            is_missed = is_beside and is_slower(chosen.measured, after.measured)
            missed += is_missed
            by_costs = after.way.cost.step_seconds / planned.none.cost.step_seconds
            ratios = [one.measured.time_ratio if one.measured else None for one in (before, after)]
            off += [abs(by_costs - ratios[1])] if ratios[1] is not None else []
            told = f"by costs {change_text(by_costs)}, measured {' and '.join(map(change_text, ratios))}"
            mark, verdict = "*" if after is chosen else " ", "  MISSED" if is_missed else ""
            print(f"  {mark} {before.way.name:<24} {bytes_text(peak):>9}  {told}{verdict}", flush=True)
    is_near = bool(off) and median(off) <= MOST_OFF
    print(
        f"best: the costs of {len(off)} ways are {median(off or [1.0]) * 100:.1f} points off at the median", flush=True
    )
    return not missed and is_near


def again() -> bool:
    """Plans of one model beside busy processes."""
    taken: list[set[str]] = []
    with busy(NUM_BUSY):
        for _ in range(AGAIN):
            comparison = _planned(*SMALL).comparison
            chosen = comparison.chosen if comparison else None
            names = [chosen.plan.way.name, *chosen.as_fast] if chosen else []
            ways = [plan.way for plan in comparison.plans if plan.way.name in names] if comparison else []
            taken.append({render(way.plan) for way in ways})
            line = ", ".join(f"{way.name} {render(way.plan)}" for way in ways)
            print(f"again: {line or 'nothing chosen  MISSED'}", flush=True)
    apart = sum(not one & other for one, other in combinations(taken, 2))
    print(f"again: {apart} of {AGAIN * (AGAIN - 1) // 2} pairs of runs choose ways that a run told apart", flush=True)
    return not apart and all(taken)


def _planned(model: str, batch_size: int, budget: str) -> Planned:
    words = Request(model=model, strategies="none", batch_size=str(batch_size), device="cpu")
    return plan(PlanRequest(words=words, budget=budget))


def _measured_anew(plans: tuple[ComparedPlan, ...]) -> list[ComparedPlan]:
    cases = [plan.measured.case for plan in plans if plan.measured]
    with Local(stage_seconds=600) as engine:
        trials = [Trial(case=case, passes=("memory", "time")) for case in cases]
        records = list(engine.run([Trial(case=cases[0].baseline, passes=("memory",)), *trials]))
    by_case = {row.case: row for row in rows(records)}
    return [
        msgspec.structs.replace(plan, measured=by_case[plan.measured.case] if plan.measured else None) for plan in plans
    ]


TABLE = {"best": best, "again": again}

if __name__ == "__main__":
    sys.exit(main())
