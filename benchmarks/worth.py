"""What plans are worth, measured on the CPU in paired rounds: `python -m benchmarks.worth [NAME ...]`.

- `uneven`: on convolutional models, at the peak of every uniform split, the plan is not slower; over budgets that lie
  evenly between the lowest of these peaks and the one without checkpointing, its extra time is on average at most half
  of that of the best uniform split which fits. For each model the same is told at the peaks themselves, where uniform
  splits are at their best, and by the costs of the stages, of which the plan is the optimum. Of long chains splits of
  `SEGMENTS` are measured, and those that are best by the costs.
- `equal`: on equal transformer blocks the plan is never slower than the first N.
- `options`: with save options, at 75 % of the peak without checkpointing, the plan takes at most two thirds of the
  extra time of the first N.
- `deep`: on a deep model, checkpoints within checkpoints get below the smallest peak of any uniform split; peaks are
  measured.

Every time is against the step without checkpointing, which is measured anew before and after every few plans, since
these machines change their pace; a ratio is of two such times in one round, and the median of all rounds. A plan is
slower where three quarters of the rounds say so. The allocator of glibc is told to keep what is freed, as the one of
CUDA does: else the time to get pages from the kernel again, which is that of the machine, stands in every checkpoint.
Exit code 1 where a line is missed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, median, quantiles

import msgspec

from profiler.core import catalogue, plan_file
from profiler.core.case import Case, Choice, Trial
from profiler.core.units import bytes_text
from profiler.engines.local import Local
from profiler.planning import candidates
from profiler.planning.candidates import none
from profiler.planning.chain import Chain
from profiler.planning.plan import Plan, plan_file_of, render
from profiler.planning.simulator import simulate
from profiler.planning.solver import best, frontier
from profiler.training import models
from profiler.workflows.plan_fitting import under
from profiler.workflows.stages import calibrate, stages

ROUNDS, SAMPLES = 4, 2
GROUP = 4  # plans between two measurements without checkpointing
BUDGETS = 8
SEGMENTS, LONG, POINTS = (2, 4, 8, 16, 32), 32, 1000
LEVELS = 4  # of checkpoints in checkpoints
HALF, TWO_THIRDS = 0.5, 2 / 3
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 26)}


def main() -> int:
    """Print every line; the exit code says whether all were met."""
    failed = 0
    os.environ.update(KEPT)  # read where the engine's processes start
    for name in sys.argv[1:] or TABLE:
        check, models = TABLE[name]
        failed += not check(_benches(name, models))
    return 1 if failed else 0


def _benches(name: str, models: dict[str, int]) -> Iterator[_Bench]:
    for model, batch_size in models.items():
        print(f"{name}: {model}, batch {batch_size}", flush=True)
        with Local(stage_seconds=600) as engine, tempfile.TemporaryDirectory() as folder:
            yield _Bench(engine, case_of(model, batch_size), Path(folder))


def case_of(model: str, batch_size: int) -> Case:
    """The model on the CPU, trained with momentum."""
    return Case(
        model=catalogue.resolve(Choice(model), models.TABLE),
        strategy=Choice("none"),
        optimizer=Choice("momentum"),
        batch_size=batch_size,
        device="cpu",
        warmup=0,
        samples=1,
    )


class _Bench:
    """One model: its stages, and plans that are timed against each other."""

    def __init__(self, engine: Local, case: Case, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        self._case = msgspec.structs.replace(case, warmup=1, samples=SAMPLES, verify="off")
        self.chain: Chain = stages(engine, case, calibrate(engine, case))
        self.whole = none(self.chain)
        self.frontier = frontier(self.chain, points=POINTS)
        self.times: dict[str, list[float]] = {}

    def time(self, plans: Sequence[Plan]) -> None:
        """Fill `times`: by plan, in every round its step against those without checkpointing around it."""
        cases = {}
        for number, plan in enumerate(dict.fromkeys(plans)):
            path = self._folder / f"{number}.json"
            plan_file.write(plan_file_of(self.chain, plan), path)
            cases[render(plan)] = under(self._case, path)
        for number in range(ROUNDS):
            order = list(cases.items())[:: 1 if number % 2 else -1]
            before = self._seconds(self._case)
            for at in range(0, len(order), GROUP):
                found = {word: self._seconds(case) for word, case in order[at : at + GROUP]}
                after = self._seconds(self._case)
                for word, seconds in found.items():
                    self.times.setdefault(word, []).append(seconds / mean((before, after)))
                before = after

    def _seconds(self, case: Case) -> float:
        (record,) = self._engine.run([Trial(case=case, passes=("time",))])
        assert record.readings.step_seconds, record.detail
        return median(record.readings.step_seconds)

    def peak(self, plan: Plan) -> int:
        """Measured, in bytes."""
        path = self._folder / "plan.json"
        plan_file.write(plan_file_of(self.chain, plan), path)
        (record,) = self._engine.run([Trial(case=under(self._case, path), passes=("memory",))])
        assert record.readings.peak_bytes, record.detail
        return record.readings.peak_bytes

    def extra(self, plan: Plan) -> float:
        """The extra time of a plan as a fraction, the median of the rounds."""
        return median(self.times[render(plan)]) - 1

    def is_slower(self, plan: Plan, other: Plan) -> bool:
        """In three quarters of the rounds."""
        return plan != other and quantiles(self._ratios(plan, other), n=4)[0] > 1

    def line(self, plan: Plan, other: Plan, word: str) -> str:
        ratios = self._ratios(plan, other)
        peaks = (
            f"{bytes_text(simulate(self.chain, plan).peak_bytes)} {bytes_text(simulate(self.chain, other).peak_bytes)}"
        )
        spread = f"{min(ratios):.3f}..{max(ratios):.3f}"
        return (
            f"  {peaks}  plan {self.extra(plan) * 100:+.1f} %, {word} {self.extra(other) * 100:+.1f} %, "
            f"ratio {median(ratios):.3f} ({spread})  {render(plan)}"
        )

    def _ratios(self, plan: Plan, other: Plan) -> list[float]:
        return [a / b for a, b in zip(self.times[render(plan)], self.times[render(other)], strict=True)]


def uneven(benches: Iterator[_Bench]) -> bool:
    """Against every uniform split."""
    slower, means = 0, []
    for bench in benches:
        pairs = _pairs(bench, "uniform")
        peaks = [simulate(bench.chain, other).peak_bytes for _, other, _ in pairs]
        even = _even(bench)
        bench.time([*(plan for pair in pairs for plan in pair[:2]), *(_plan(bench, budget) for budget in even)])
        slower += _told(bench, pairs)
        _means(bench, pairs, peaks, "at these peaks")
        means.append(_means(bench, pairs, even, f"over {BUDGETS} even budgets"))
        reached, lowest = bench.frontier.peak_bytes[0], even[0]
        print(f"  plans reach {bytes_text(reached)}, {1 - reached / lowest:.1%} below the lowest uniform split")
    planned, uniform = map(mean, zip(*means, strict=True))
    print(f"mean extra time over even budgets of all models: {planned:.1%}, of the best uniform split {uniform:.1%}")
    return not slower and planned <= HALF * uniform


def equal(benches: Iterator[_Bench]) -> bool:
    """Against the first N, for every N."""
    slower = 0
    for bench in benches:
        pairs = _pairs(bench, "first")
        bench.time([plan for pair in pairs for plan in pair[:2]])
        slower += _told(bench, pairs)
    return not slower


def options(benches: Iterator[_Bench]) -> bool:
    """At 75 % of the peak without checkpointing, against the first N."""
    missed = 0
    for bench in benches:
        budget = int(0.75 * bench.whole.cost.peak_bytes)
        found, rival = _plan(bench, budget), candidates.best_of(bench.chain, "first", budget)
        assert rival
        bench.time([found, rival[1]])
        print(bench.line(found, rival[1], rival[0]))
        missed += bench.extra(found) > TWO_THIRDS * bench.extra(rival[1])
    return not missed


def deep(benches: Iterator[_Bench]) -> bool:
    """The smallest plan, against the smallest uniform split."""
    missed = 0
    for bench in benches:
        plan = frontier(bench.chain, levels=LEVELS).point(0).plan
        word, other, _ = min(candidates.costed(bench.chain, "uniform"), key=lambda one: one[2].peak_bytes)
        peak, lowest = bench.peak(plan), bench.peak(other)
        found = f"{bytes_text(peak)} with checkpoints {plan.depth()} deep, {bytes_text(lowest)} with {word}"
        print(f"  smallest peaks: {found}: {1 - peak / lowest:.1%} below", flush=True)
        missed += peak >= lowest
    return not missed


def _plan(bench: _Bench, budget: int) -> Plan:
    """The plan within a budget that something fits."""
    found = best(bench.frontier, budget)
    assert found
    return found.plan


def _even(bench: _Bench) -> list[int]:
    """Budgets from the lowest peak of a uniform split on."""
    highest = bench.whole.cost.peak_bytes
    lowest = min(cost.peak_bytes for _, _, cost in candidates.costed(bench.chain, "uniform"))
    return [lowest + (highest - lowest) * number // BUDGETS for number in range(BUDGETS)]


def _pairs(bench: _Bench, kind: str) -> list[tuple[Plan, Plan, str]]:
    """The plan at the peak of each plan of a rule that is below that of no checkpointing, that plan, and its word."""
    costed = candidates.costed(bench.chain, kind)
    if len(costed) > LONG:
        words = {f"{kind}({number})" for number in SEGMENTS}
        words |= {one[0] for budget in _even(bench) if (one := candidates.best_of(bench.chain, kind, budget))}
        costed = [one for one in costed if one[0] in words]
    found = []
    for word, plan, cost in costed:
        point = best(bench.frontier, cost.peak_bytes)
        if point is not None and cost.peak_bytes < bench.whole.cost.peak_bytes:
            found.append((point.plan, plan, word))
    return found


def _told(bench: _Bench, pairs: Sequence[tuple[Plan, Plan, str]]) -> int:
    slower = 0
    for plan, other, word in pairs:
        is_slower = bench.is_slower(plan, other)
        slower += is_slower
        print(bench.line(plan, other, word) + ("  SLOWER" if is_slower else ""), flush=True)
    return slower


def _means(
    bench: _Bench, pairs: Sequence[tuple[Plan, Plan, str]], budgets: Sequence[int], word: str
) -> tuple[float, float]:
    """The mean extra time of the plan and of the best uniform split, which are told beside those of the costs."""
    planned = mean(bench.extra(_plan(bench, budget)) for budget in budgets)
    uniform = mean(_best_uniform(bench, pairs, budget) for budget in budgets)
    by_costs = [mean(_foreseen(bench, kind, budget) for budget in budgets) for kind in ("plan", "uniform")]
    print(f"  mean extra time {word}: {planned:.1%}, of the best uniform split {uniform:.1%}", end="")
    print("; by the costs {:.1%} and {:.1%}".format(*by_costs), flush=True)
    return planned, uniform


def _foreseen(bench: _Bench, kind: str, budget: int) -> float:
    rival = candidates.best_of(bench.chain, "uniform", budget)
    plan = rival[1] if kind == "uniform" and rival else _plan(bench, budget)
    return simulate(bench.chain, plan).step_seconds / bench.whole.cost.step_seconds - 1


def _best_uniform(bench: _Bench, pairs: Sequence[tuple[Plan, Plan, str]], budget: int) -> float:
    return min(bench.extra(other) for _, other, _ in pairs if simulate(bench.chain, other).peak_bytes <= budget)


Check = Callable[[Iterator[_Bench]], bool]
TABLE: dict[str, tuple[Check, dict[str, int]]] = {  # models with their batches
    "uneven": (uneven, {"benchmarks/uneven.py:images": 32, "cifar-resnet:depth=3": 64, "mnist-cnn:channels=16": 32}),
    "equal": (equal, {"transformer:layers=8,width=256,sequence=128": 8}),
    "options": (
        options,
        {
            "transformer:layers=8,width=512,heads=8,sequence=256,dropout=0.0": 16,
            "torchvision:resnet101:size=96": 32,
        },
    ),
    "deep": (deep, {"transformer:layers=48,width=64,sequence=128,vocabulary=64": 8}),
}

if __name__ == "__main__":
    sys.exit(main())
