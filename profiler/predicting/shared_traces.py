"""Traces one model under several strategies: those that only checkpoint whole blocks are composed from one trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

from msgspec.structs import replace

from profiler.core import catalogue
from profiler.core.case import Case, Trial
from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.core.trace_data import Trace
from profiler.predicting.forked_task import ForkedTask
from profiler.predicting.trace.compose import compose
from profiler.predicting.traced_case import Assumed, observe_case, trace_case
from profiler.training import strategies
from profiler.training.assemble import Assembled
from profiler.training.checkpointing.block_segments import OwnCheckpoint, SegmentChoice, chosen_segments
from profiler.training.checkpointing.called_blocks import FEW
from profiler.training.checkpointing.observed_forward import Observation

COMPOSED = ("none", "segments", "sqrt", "all", "every", "first", "plan")  # their steps follow from that of `none`
VIEW = "aten.detach"  # run by checkpoints and saved-tensor hooks to pack a tensor; allocates nothing

Traced = tuple[Assembled, Trace, Assumed]


class _Baseline(NamedTuple):
    """The step without checkpointing, traced with its saves."""

    trial: Trial
    built: Assembled
    trace: Trace


class SharedTraces:
    """Traces of one model with one set of settings. A composed trace has exactly the bytes and times of a traced step.

    What cannot be composed safely is traced: other strategies, several ranks, blocks that do not run once in a forward
    or whose outputs do not go to the next block alone, steps with assumed values.
    """

    def __init__(self, *, beside: bool = False) -> None:
        """`beside` observes the blocks in a fork while the baseline is traced; this process must have no threads."""
        self._baseline: _Baseline | None = None
        self._links: Observation | None = None  # of the baseline's blocks, once a strategy needs it
        self._has_looked = False
        self._is_beside = beside
        self._looking: ForkedTask[Observation] | None = None

    def traced(self, trial: Trial, on_pass: Callable[[str], None]) -> Traced:
        """Return the trial's assembled case, its trace, and what the trace assumes. Raises as `trace_case` does."""
        if trial.case == trial.case.baseline and self._begin(trial, on_pass):
            assert self._baseline is not None
            built, trace = self._baseline.built, self._baseline.trace
            return built, _without_views(compose(trace, (), ())), Assumed()
        composed = self._composed(trial)
        if composed is not None:
            on_pass("memory")
            return composed
        return trace_case(trial.case, calibration=trial.calibration, on_pass=on_pass)

    def _begin(self, trial: Trial, on_pass: Callable[[str], None]) -> bool:
        """Trace the baseline with its saves; return whether other strategies may be composed from it."""
        case = trial.case
        if case.parallel or case.repair_batchnorm:
            return False
        if self._is_beside:
            self._looking = ForkedTask(partial(observe_case, case))
        try:
            built, trace, assumed = trace_case(case, calibration=trial.calibration, on_pass=on_pass, with_saves=True)
        except Unsupported:  # perhaps only because saves are recorded
            return False
        calls = Counter(call.module for call in trace.calls)
        once = all(calls[name] == case.accumulate for name in built.workload.blocks)
        if assumed != Assumed() or not once or len(built.workload.blocks) <= FEW or built.workload.calls:
            return False
        self._baseline = _Baseline(trial, built, trace)
        return True

    def _composed(self, trial: Trial) -> Traced | None:
        """Return the trial composed from the baseline; None if its step has to be traced."""
        baseline = self._baseline
        if baseline is None or not _has_setting(trial, baseline.trial) or trial.case.strategy.name not in COMPOSED:
            return None
        chosen = _chosen(baseline.built, trial.case)
        if chosen is None:
            return None
        applied, segments = chosen
        together = [pair for segment in segments for pair in pairwise(segment)]
        if together and not self._are_linked(together, trial.case):
            return None
        try:
            trace = compose(baseline.trace, baseline.built.workload.blocks, segments)
        except Unsupported:
            return None
        notes = (*applied.notes, *baseline.built.applied.notes)
        built = replace(baseline.built, case=trial.case, applied=replace(applied, notes=notes, switch=None))
        return built, _without_views(trace), Assumed()

    def _are_linked(self, pairs: Sequence[tuple[int, int]], case: Case) -> bool:
        if not self._has_looked:
            self._has_looked = True
            with suppress(Unsupported):
                self._links = (self._looking and self._looking.result()) or observe_case(case)
        seen = self._links
        if seen is None or seen.given or seen.in_tuples:
            return False
        return all(fed == feeding + 1 and seen.linked[feeding] for feeding, fed in pairs)


def _has_setting(trial: Trial, baseline: Trial) -> bool:
    is_same = (trial.calibration, trial.data_directory) == (baseline.calibration, baseline.data_directory)
    return is_same and trial.case.baseline == baseline.case


def _chosen(built: Assembled, case: Case) -> tuple[Applied, list[Sequence[int]]] | None:
    """Return the strategy's report and the segments it checkpoints; None if it does anything besides."""
    apply, options = catalogue.load(case.strategy, strategies.TABLE)
    if options.get("split", "torch") != "torch":
        return None
    try:
        with chosen_segments() as choice:
            applied = apply(built.workload, **options)
    except Unsupported:
        return None
    segments = _runs(choice) if choice.blocks == built.workload.blocks else None
    return None if segments is None else (applied, segments)


def _runs(choice: SegmentChoice) -> list[Sequence[int]] | None:
    """Return the chosen segments; None if one is nested or uses another checkpoint than PyTorch's own."""
    runs: list[Sequence[int]] = []
    for segment in choice.segments or ():
        indices = [] if isinstance(segment, OwnCheckpoint) else [index for index in segment if isinstance(index, int)]
        if len(indices) != len(segment) or choice.has_own_checkpoint:
            return None
        runs.append(indices)
    return runs


def _without_views(trace: Trace) -> Trace:
    """Return the trace without the views that are made to pack saved tensors, and with storages in order of birth."""
    views = [operator.name == VIEW for operator in trace.operators]
    numbers = list(accumulate((not is_view for is_view in views), initial=0))  # by old number: the last one kept
    first = [number + is_view for number, is_view in zip(numbers, [False, *views], strict=True)]
    return replace(
        trace,
        operators=tuple(operator for operator in trace.operators if operator.name != VIEW),
        allocations=tuple(
            replace(item, born=first[item.born], died=max(first[item.born] - 1, numbers[item.died]))
            for item in sorted(trace.allocations, key=lambda item: item.born)
        ),
        marks=tuple((phase, numbers[before]) for phase, before in trace.marks),
    )
