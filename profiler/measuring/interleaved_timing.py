"""Times several strategies in turn on one model, for the later rounds of a run, which measure nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from profiler.core.case import Trial
from profiler.core.record import Readings, Record
from profiler.measuring.bench import Bench, switches
from profiler.measuring.devices import environment
from profiler.measuring.failure_causes import explained
from profiler.measuring.meters import time as timing
from profiler.training.assemble import Assembled, assemble_beside
from profiler.training.workload import Mark


def measure_together(
    trials: Sequence[Trial],
    *,
    on_pass: Callable[[str], None] = lambda name: None,
) -> list[Record]:
    """Time the strategies of one baseline and round in turn on one model; return a record of each trial.

    All are compared with the same steps without a strategy. Raises Unsupported if a strategy needs a model of its own,
    and whatever the model raises: the caller then measures each trial by itself.
    """
    benches = [Bench(trial, on_pass) for trial in trials]
    with explained(benches[0]):
        return _timed(benches)


def _timed(benches: list[Bench]) -> list[Record]:
    first, before = benches[0], switches()
    first.begin("build")
    model = first.build(first.trial.case.baseline)
    strategies = [assemble_beside(model, bench.trial.case) for bench in benches]
    first.begin("time")
    steps = _Steps(benches, strategies)
    case = first.trial.case
    readings = timing.read_together(
        first.device,
        steps.run,
        [steps.switch(number) for number in range(len(benches))],
        round_number=first.trial.round,
        warmup=case.warmup,
        samples=case.samples,
        sampling=case.sampling,
        least_pairs=first.trial.least_pairs,
        until=first.limit(),
    )
    own_share = {name: seconds / len(benches) for name, seconds in first.end().items()}
    for bench, strategy in zip(benches, strategies, strict=True):
        bench.listen(strategy)
        bench.tell_checkpoints()
        bench.tell_changes(before)
        bench.tell_untold()
    return [
        Record(
            case=bench.trial.case,
            round=bench.trial.round,
            outcome="ok",
            built=strategy.describe(),
            readings=Readings(**own_readings),
            environment=environment(first.device),
            notes=(*strategy.applied.notes, *bench.all_notes()),
            stage_seconds=own_share,
            num_steps=bench.num_steps,
        )
        for bench, strategy, own_readings in zip(benches, strategies, readings, strict=True)
    ]


class _Steps:
    """Runs steps of one model; each counts for the strategy that is on, or for the first if none is."""

    def __init__(self, benches: list[Bench], strategies: list[Assembled]) -> None:
        self._benches, self._strategies = benches, strategies
        self._at_work = benches[0]
        _, self._step = strategies[0].trainer()

    def switch(self, number: int) -> Callable[[bool], None]:
        """Return a function that switches one of the strategies on and off."""
        turn = self._strategies[number].switch
        assert turn is not None, "strategies beside each other have one"

        def switch(on: bool) -> None:
            self._at_work = self._benches[number if on else 0]
            turn(on)

        return switch

    def run(self, mark: Mark) -> torch.Tensor:
        """Run one step; return its loss."""
        return self._at_work.counted(self._step, mark)
