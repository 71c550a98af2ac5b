"""Whether `gcprof plan` takes the best of what it measures, on the CPU: `python -m benchmarks.chosen [NAME ...]`.

- `best`: for each model a plan is made for a budget that some plans fit, and not all. Then all ways of its table are
  measured anew, in processes of their own: the chosen one is slower, where that can be told, than none that needs no
  more. What the costs said beforehand is off by 3 points of a step at the median.
- `again`: ten plans of one model beside four busy processes choose one way, or ways that a run could not tell apart.

Each line has the time of the whole command's work and of `import torch` beside it. Exit code 1 where a line is missed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from statistics import median

import msgspec

from profiler.analysis.rows import rows
from profiler.core.case import Trial
from profiler.core.units import bytes_text, change_text
from profiler.engines.local import Local
from profiler.planning.plan import render
from profiler.request.spec import Request
from profiler.views.tables.plans import ComparedPlan
from profiler.workflows.plan_comparison import is_slower
from profiler.workflows.planner import Planned, PlanRequest, plan

AGAIN, BUSY = 10, 4
MOST_OFF = 0.03  # of a step: how far the costs may be from what is measured, at the median
MODELS = {  # with their batches and budgets: between the lowest peak of a plan and the peak without checkpointing
    "transformer": (8, "60%"),
    "transformer:layers=4,width=512,heads=8,sequence=64": (16, "80%"),
    "mnist-cnn:channels=8": (32, "98%"),
    "torchvision:resnet18:size=96": (32, "90%"),
    "torchvision:squeezenet1_1:size=96": (16, "75%"),
}
SMALL = "transformer:layers=4,width=64,sequence=32", 16, "60%"
SPIN = "while True: pass"


def main() -> int:
    """Print every line; the exit code says whether all were met."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where the runs are kept
        for name in sys.argv[1:] or TABLE:
            failed += not TABLE[name]()
    return 1 if failed else 0


def best() -> bool:
    """The chosen way against those beside it, measured anew."""
    missed, off = 0, []
    for model, (batch_size, budget) in MODELS.items():
        planned, words = _planned(model, batch_size, budget)
        print(f"best: {model}, batch {batch_size}, at most {budget}: {words}", flush=True)
        comparison = planned.comparison
        if comparison is None or comparison.chosen is None:
            print("  nothing was chosen  MISSED", flush=True)
            missed += 1
            continue
        again = _measured_anew(comparison.plans)
        chosen = again[comparison.plans.index(comparison.chosen.plan)]
        for before, after in zip(comparison.plans, again, strict=True):
            is_missed = _needs_no_more(after, chosen) and is_slower(chosen.measured, after.measured)
            missed += is_missed
            off += [abs(_by_costs(after, planned) - after.measured.time_ratio)] if _is_timed(after) else []
            mark = "*" if after is chosen else " "
            print(f"  {mark} {_line(before, after, planned)}{'  MISSED' if is_missed else ''}", flush=True)
    is_near = bool(off) and median(off) <= MOST_OFF
    how_far = f"{median(off) * 100:.1f} points off at the median, {max(off) * 100:.1f} at most" if off else "not known"
    print(f"best: the costs of {len(off)} ways are {how_far}{'' if is_near else '  MISSED'}", flush=True)
    return not missed and is_near


def again() -> bool:
    """Plans of one model beside busy processes."""
    taken: list[set[str]] = []
    with _busy(BUSY):
        for _ in range(AGAIN):
            planned, words = _planned(*SMALL)
            chosen = planned.comparison.chosen if planned.comparison else None
            names = [chosen.plan.way.name, *chosen.as_fast] if chosen else []
            ways = [plan.way for plan in planned.comparison.plans if plan.way.name in names] if names else []
            taken.append({render(way.plan) for way in ways})
            line = ", ".join(f"{way.name} {render(way.plan)}" for way in ways)
            print(f"again: {line or 'nothing chosen  MISSED'}; {words}", flush=True)
    apart = sum(not one & other for one, other in combinations(taken, 2))
    print(f"again: {apart} of {AGAIN * (AGAIN - 1) // 2} pairs of runs choose ways that a run told apart", flush=True)
    return not apart and all(taken)


def _planned(model: str, batch_size: int, budget: str) -> tuple[Planned, str]:
    """A plan, and what it took beside `import torch`."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    imported = time.monotonic() - began
    words = Request(model=model, strategies="none", batch_size=str(batch_size), device="cpu")
    planned = plan(PlanRequest(words=words, budget=budget))
    seconds = time.monotonic() - began - imported
    return planned, f"{seconds:.1f} s, {seconds / imported:.1f} x import torch ({imported:.1f} s)"


def _measured_anew(plans: tuple[ComparedPlan, ...]) -> list[ComparedPlan]:
    cases = [plan.measured.case for plan in plans if plan.measured]
    with Local(stage_seconds=600) as engine:
        trials = [Trial(case=case, passes=("memory", "time")) for case in cases]
        records = list(engine.run([Trial(case=cases[0].baseline, passes=("memory",)), *trials]))
    by_case = {row.case: row for row in rows(records)}
    return [
        msgspec.structs.replace(plan, measured=by_case[plan.measured.case] if plan.measured else None) for plan in plans
    ]


def _needs_no_more(plan: ComparedPlan, chosen: ComparedPlan) -> bool:
    peaks = [one.measured.readings.peak_bytes if one.measured else None for one in (plan, chosen)]
    return plan is not chosen and None not in peaks and peaks[0] <= peaks[1]


def _line(before: ComparedPlan, after: ComparedPlan, planned: Planned) -> str:
    measured = [one.measured.time_ratio if one.measured else None for one in (before, after)]
    error = before.way.cost.error_seconds / planned.none.cost.step_seconds
    peak = after.measured.readings.peak_bytes if after.measured else None
    return (
        f"{before.way.name:<24} {bytes_text(peak):>9}  by costs {change_text(_by_costs(before, planned))}"
        f" ±{error * 100:.0f} %, measured {change_text(measured[0])}, "
        f"again {change_text(measured[1])}"
    )


def _by_costs(plan: ComparedPlan, planned: Planned) -> float:
    return plan.way.cost.step_seconds / planned.none.cost.step_seconds


def _is_timed(plan: ComparedPlan) -> bool:
    return plan.measured is not None and plan.measured.time_ratio is not None


@contextmanager
def _busy(number: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


TABLE: dict[str, Callable[[], bool]] = {"best": best, "again": again}

if __name__ == "__main__":
    sys.exit(main())
