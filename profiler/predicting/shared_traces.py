"""Steps of one model under several strategies: those that only checkpoint whole blocks are composed of one trace."""

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

COMPOSED = ("none", "segments", "sqrt", "all", "every", "first", "plan")  # whose steps follow from that of `none`
VIEW = "aten.detach"  # which checkpoints and saved-tensor hooks run to pack a tensor; it takes and holds nothing

Traced = tuple[Assembled, Trace, Assumed]


class _Baseline(NamedTuple):
    """The step without checkpointing, followed with its saves."""

    trial: Trial
    built: Assembled
    trace: Trace


class SharedTraces:
    """Traces of one model and setting. What is composed has the bytes and times of a trace of its own, to the byte.

    What cannot be composed surely is traced: other strategies, several ranks, blocks that do not run once in a forward
    or do not feed each other alone, steps that take values for granted.
    """

    def __init__(self, *, beside: bool = False) -> None:
        """`beside` looks at the blocks in a process of its own while the baseline is traced; one without threads."""
        self._baseline: _Baseline | None = None
        self._links: Observation | None = None  # of the baseline's blocks, once a row has asked for it
        self._has_looked = False
        self._is_beside = beside
        self._looking: ForkedTask[Observation] | None = None

    def traced(self, trial: Trial, on_pass: Callable[[str], None]) -> Traced:
        """The trial's built case, its step, and what that takes for granted. Raises as `trace_case` does."""
        if trial.case == trial.case.baseline and self._begin(trial, on_pass):
            assert self._baseline is not None
            built, trace = self._baseline.built, self._baseline.trace
            return built, replace(_without_views(compose(trace, (), ())), building=trace.building), Assumed()
        composed = self._composed(trial)
        if composed is not None:
            on_pass("memory")
            return composed
        return trace_case(trial.case, calibration=trial.calibration, on_pass=on_pass)

    def _begin(self, trial: Trial, on_pass: Callable[[str], None]) -> bool:
        """Trace the baseline with its saves; returns whether other rows may be composed of it."""
        case = trial.case
        if case.parallel or case.repair_batchnorm:
            return False
        if self._is_beside:
            self._looking = ForkedTask(partial(observe_case, case))
        try:
            built, trace, assumed = trace_case(case, calibration=trial.calibration, on_pass=on_pass, with_saves=True)
        except Unsupported:  # perhaps of the saves alone
            return False
        calls = Counter(call.module for call in trace.calls)
        once = all(calls[name] == case.accumulate for name in built.workload.blocks)
        if assumed != Assumed() or not once or len(built.workload.blocks) <= FEW or built.workload.calls:
            return False
        self._baseline = _Baseline(trial, built, trace)
        return True

    def _composed(self, trial: Trial) -> Traced | None:
        """None where the step has to be traced."""
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
        return built, replace(_without_views(trace), building=baseline.trace.building), Assumed()

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
    """What the strategy says of itself and which blocks it checkpoints; None where that is not all that it does."""
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
    """The chosen runs of blocks; None where one is not under PyTorch's own checkpoint, or holds others."""
    runs: list[Sequence[int]] = []
    for segment in choice.segments or ():
        indices = [] if isinstance(segment, OwnCheckpoint) else [index for index in segment if isinstance(index, int)]
        if len(indices) != len(segment) or choice.has_own_checkpoint:
            return None
        runs.append(indices)
    return runs


def _without_views(trace: Trace) -> Trace:
    """The trace with its storages in the order of their birth, and without the views that no step of its own has."""
    views = [operator.name == VIEW for operator in trace.operators]
    numbers = list(accumulate((not is_view for is_view in views), initial=0))  # of the last one kept, by the old number
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
