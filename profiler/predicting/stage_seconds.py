"""Times each stage on a present device: whole steps of one model, with its checkpoints switched between steps."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from math import inf
from statistics import median
from time import thread_time
from typing import Any, NamedTuple

import msgspec
import torch

from profiler.analysis.time_ratio import HELD
from profiler.core.case import Case
from profiler.core.errors import Unsupported
from profiler.core.plan_file import Segment
from profiler.core.stats import interval
from profiler.core.units import left_text
from profiler.measuring.devices import open_device
from profiler.training.assemble import assemble
from profiler.training.block_segments import Checkpoint, checkpoint_segments, checkpoint_without_reentry, segment_of
from profiler.training.strategies import saving

# Ways to run a step: without marks, as a user's step; every stage kept; each stage checkpointed alone; each run of
# stages in one checkpoint. The other ways are save options, by name.
WHOLE, PLAIN, EVERY, TOGETHER = " whole", "", " every", " together"
DOUBT = 1.0  # prior standard deviation of the ratio of whole-step to summed stage differences
LEAST_FACTOR, MOST_FACTOR = 0.5, 10.0
MOST_DOUBT = 0.9  # upper bound on a relative error: a recompute has FLOPs, so takes time, however noisy the machine


class StageSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The operator numbers of one stage in the last forward of a step and in the backward after it.

    A stage is one or more blocks, or what runs before, between or after blocks. If its last operator is below its
    first, it ran none.
    """

    blocks: tuple[int, ...]  # their indices
    name: str
    first: int
    last: int
    backward_first: int = 0
    backward_last: int = 0
    outputs: frozenset[int]  # indices of the storages that it passes on
    stop: int  # the operator at which a recompute has made all saved tensors and stops
    feeds_next: bool = False  # whether its output goes to the next block and nowhere else
    kind: Hashable = ()  # stages of one kind take equal time


class StepSample(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds of one step, and of each stage in it."""

    total: float
    forward: tuple[float, ...]  # including the overhead of the checkpoint around it
    recompute: tuple[float, ...]
    backward: tuple[float, ...]  # known only where the stage is recomputed
    held: float | None = None  # CPU seconds of its thread; None on an asynchronous device


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds of one stage."""

    forward: float
    backward: float
    early_stop: float  # what a checkpoint adds: a recompute up to its last saved tensor, and host overhead
    error: float = 0.0  # of the last: half of its confidence interval
    inner: float | None = None  # what a checkpoint adds to a stage that others of its run follow; None: unknown
    inner_error: float = 0.0
    options: dict[str, tuple[float, float]]  # forward and backward under each save option
    option_errors: dict[str, float] = {}
    doubts: dict[str, float] = {}  # by way, the same for every stage: their common relative error


class _Extra(NamedTuple):
    """What a way adds to each stage, half the confidence intervals of that, and the error common to all stages."""

    parts: list[float]
    errors: list[float]
    doubt: float = 0.0  # as a fraction of the parts


NOTHING = Seconds(forward=0.0, backward=0.0, early_stop=0.0, options={})


def pooled(samples: Mapping[str, Sequence[StepSample]], works: Sequence[StageSpan]) -> list[Seconds]:
    """Return the seconds of every stage: equal for stages of one kind; the last one also has the time outside of all.

    The shares of kinds come from the marks in the steps, the sums from whole steps: what checkpoints add to all stages
    is the step with `all` less the step without.
    """
    every = samples[EVERY]
    plain = samples.get(PLAIN)  # None if it does not fit in memory
    forward = _each([sample.forward for sample in plain or every], works, median)
    backward = _each([sample.backward for sample in every], works, median)
    whole = samples.get(WHOLE) or plain
    inside_runs = {place for run in runs(works) for place in run}
    in_runs = [
        work if place in inside_runs else msgspec.structs.replace(work, blocks=()) for place, work in enumerate(works)
    ]
    extra = {
        way: _extra(taken, plain, plain if way == TOGETHER else whole, in_runs if way == TOGETHER else works)
        for way, taken in samples.items()
        if way not in (WHOLE, PLAIN)
    }
    checkpointed, inner = extra[EVERY], extra.get(TOGETHER)
    inside = sum(forward) + sum(backward)
    step = median(sample.total for sample in whole or every) - (0.0 if whole else sum(checkpointed.parts))
    scale = min(1.0, step / inside) if inside else 1.0
    found = [
        Seconds(
            forward=forward[place] * scale,
            backward=backward[place] * scale,
            early_stop=checkpointed.parts[place],
            error=checkpointed.errors[place],
            inner=(inner.parts[place] or None) if inner else None,
            inner_error=inner.errors[place] if inner else 0.0,
            options={
                save: (forward[place] * scale, backward[place] * scale + of.parts[place])
                for save, of in extra.items()
                if save not in (EVERY, TOGETHER)
            },
            option_errors={save: of.errors[place] for save, of in extra.items() if save not in (EVERY, TOGETHER)},
            doubts={way: of.doubt for way, of in extra.items()},
        )
        if work.blocks
        else NOTHING
        for place, work in enumerate(works)
    ]
    outside, last = max(0.0, step - inside * scale), found[-1]
    return [*found[:-1], msgspec.structs.replace(last, forward=last.forward + outside)]


def runs(works: Sequence[StageSpan]) -> list[list[int]]:
    """Return the runs of two or more stages that feed each other alone, as indices: one checkpoint can hold a run."""
    found: list[list[int]] = [[]]
    for place, work in enumerate(works):
        if not (found[-1] and work.blocks and works[place - 1].feeds_next):
            found.append([])
        if work.blocks:
            found[-1].append(place)
    return [run for run in found if len(run) > 1]


def _extra(
    taken: Sequence[StepSample],
    plain: Sequence[StepSample] | None,
    without: Sequence[StepSample] | None,
    works: Sequence[StageSpan],
) -> _Extra:
    """Return what the way of the `taken` steps adds to each stage, scaled so that the sum is the difference of whole
    steps to those `without` it. If there are fewer `taken` than `without`, timing of the way was ended early.
    """
    recompute = [sample.recompute for sample in taken]
    parts = _each(recompute, works, median)

    def relative_noise(pool: Sequence[float]) -> float:
        middle, (low, high) = median(pool), interval(pool) or (min(pool), max(pool))
        return (high - low) / 2 / middle if middle > 0 else 0.0

    noise = _each(recompute, works, relative_noise)
    if plain is None or without is None:
        return _Extra(parts, [part * min(MOST_DOUBT, noise[place]) for place, part in enumerate(parts)])
    longer = [
        tuple(mine - theirs for mine, theirs in zip(sample.forward, other.forward, strict=True))
        for sample, other in zip(taken, plain, strict=False)
    ]
    parts = [part + max(0.0, more) for part, more in zip(parts, _each(longer, works, median), strict=True)]
    inside = sum(parts)
    if not inside:
        return _Extra(parts, [0.0 for _ in parts])
    ratios = [(sample.total - other.total) / inside for sample, other in zip(taken, without, strict=False)]
    low, high = interval(ratios) or (min(ratios), max(ratios))
    spread = (high - low) / 2
    trust = DOUBT**2 / (DOUBT**2 + spread**2)  # both are shrunk as far as they are noisy, the ratio towards 1
    factor, doubt = min(max(1 + trust * (median(ratios) - 1), LEAST_FACTOR), MOST_FACTOR), trust * spread
    is_whole = len(taken) == len(without) > 1
    steps = [*taken, *without]
    total, held = sum(one.total for one in steps), sum(one.held or one.total for one in steps)
    stolen = (total - held) / len(steps) if held < HELD * total else 0.0  # without a core, if not too few to be certain
    doubt = min(MOST_DOUBT, (doubt + stolen / inside) / factor) if is_whole else MOST_DOUBT
    parts = [part * factor for part in parts]
    return _Extra(parts, [part * min(MOST_DOUBT, doubt + noise[place]) for place, part in enumerate(parts)], doubt)


def _each(
    rows: Sequence[Sequence[float]], works: Sequence[StageSpan], read: Callable[[list[float]], float]
) -> list[float]:
    """Return what is read of the samples of each stage's kind, as its median; 0 for what runs around the blocks."""
    pools: dict[Hashable, list[float]] = {}
    for place, work in enumerate(works):
        if work.blocks:
            pools.setdefault(work.kind, []).extend(row[place] for row in rows)
    values = {kind: read(pool) for kind, pool in pools.items()}
    return [values[work.kind] if work.blocks else 0.0 for work in works]


ROUNDS = 4  # timed steps of each way, interleaved
LEAST_ROUNDS = 3
MOST_SECONDS = 2.0  # after which no round beyond LEAST_ROUNDS begins
LOOKS = 2  # rounds after which a save option is dropped if it never was faster than a checkpoint
BEFORE, INSIDE, BEHIND, AFTER = "before", "inside", "behind", "after"  # marks of a block's own work in its checkpoint


def seconds(
    case: Case,
    works: Sequence[StageSpan],
    saves: Sequence[str],
    fits: Callable[[str], bool] = lambda way: True,
    *,
    limit_seconds: float = inf,
    on_step: Callable[[str], None] = lambda step: None,
    in_calls: bool = False,
) -> list[Seconds]:
    """Time, interleaved, steps as they are, with every stage kept, with each stage checkpointed alone, with each run of
    stages that feed each other alone in one checkpoint, and under every save option.

    All are steps of one model in one process, so that drift and the machine's load affect all alike. The steps, and so
    the costs, include the overhead of checkpoints and of PyTorch's selective contexts. A save option that is slower
    than a checkpoint in the first rounds is no longer timed, and its relative error is set to MOST_DOUBT. `fits` tells
    which ways fit in memory; EVERY is always tried. No round but the first begins if it would end after
    `limit_seconds`; one round alone leaves what checkpoints add doubtful. `on_step` is called before each step with its
    number and the time left. If a forward skips blocks at random, no run is put in one checkpoint.
    """
    ways = [WHOLE, PLAIN, EVERY, *([TOGETHER] if runs(works) else []), *saves]
    try:
        return _timed(_SwitchedStep(case, works, ways, in_calls=in_calls), ways, fits, limit_seconds, on_step)
    except Unsupported:
        if TOGETHER not in ways:
            raise
    ways.remove(TOGETHER)
    return _timed(_SwitchedStep(case, works, ways, in_calls=in_calls), ways, fits, limit_seconds, on_step)


def _timed(
    step: _SwitchedStep,
    ways: Sequence[str],
    fits: Callable[[str], bool],
    limit_seconds: float,
    on_step: Callable[[str], None],
) -> list[Seconds]:
    step.device.keep_memory()
    samples: dict[str, list[StepSample]] = {way: [] for way in ways if way == EVERY or fits(way)}
    gc.collect()
    gc.freeze()  # collecting existing objects took longer than a step in some steps
    try:
        # A warm-up step: on a CPU, WHOLE is enough: the others run the same code, in the memory that it has freed
        for way in list(samples) if step.device.is_asynchronous or WHOLE not in samples else [WHOLE]:
            if step.sample(way) is None:
                del samples[way]
        began, done = time.monotonic(), 0
        for number in range(ROUNDS):
            so_far = time.monotonic() - began
            is_late = number >= LEAST_ROUNDS and so_far > MOST_SECONDS
            if is_late or (number and so_far * (number + 1) / number > limit_seconds):
                break
            due = [way for way in samples if not _is_slow(way, samples)]
            for place, way in enumerate(due[:: -1 if number % 2 else 1]):
                left = [max(1, rounds - number) * len(due) - place for rounds in (LEAST_ROUNDS, ROUNDS)]
                on_step(step_text(done, left, seconds=time.monotonic() - began))
                done += 1
                sample = step.sample(way)
                assert sample is not None, "on a GPU it fitted before, on a CPU none runs out of memory"
                samples[way].append(sample)
    finally:
        gc.unfreeze()
    return pooled(samples, step.works)


def _is_slow(way: str, samples: Mapping[str, Sequence[StepSample]]) -> bool:
    """Whether a save option, which takes more memory than a checkpoint, was never faster than one in LOOKS rounds."""
    looks = list(zip(samples[way], samples[EVERY], strict=False))
    is_save = way not in (WHOLE, PLAIN, EVERY, TOGETHER)
    return is_save and len(looks) >= LOOKS and all(mine.total >= checkpointed.total for mine, checkpointed in looks)


def step_text(done: int, left: Sequence[int], *, seconds: float) -> str:
    """Return the progress text after `done` steps in `seconds`: `step 3 of 14, 4 s left`, of the most steps possible.

    `left` are the steps to come, at least and at most. No time is stated before the first step.
    """
    text = f"step {done + 1} of {done + left[-1]}"
    if not done:
        return text
    least, most = (seconds / done * steps for steps in left)
    return f"{text}, {left_text(max(0.0, min(most, max(least, MOST_SECONDS - seconds))))}"


class _SwitchedStep:
    """One model whose stages are kept, checkpointed alone, in runs or selectively, as chosen anew for each step."""

    def __init__(self, case: Case, works: Sequence[StageSpan], ways: Sequence[str], *, in_calls: bool) -> None:
        assembled = assemble(case, in_calls=in_calls)
        self.device, self.works = open_device(case.device), works
        kinds = {**dict.fromkeys((WHOLE, PLAIN, TOGETHER), _kept), EVERY: checkpoint_without_reentry}
        self._checkpoints: Mapping[str, Checkpoint] = {way: kinds.get(way) or saving(way) for way in ways}
        self._way = PLAIN
        self._labels: list[tuple[str, int]] = []
        self._mark: Callable[[], None] = lambda: None
        names = assembled.workload.blocks
        stages = {place: segment_of(names, work.blocks) for place, work in enumerate(works) if work.blocks}
        checkpoints: dict[Segment, Checkpoint] = {stage: partial(self._run, place) for place, stage in stages.items()}

        def together_if_asked(*call: Any, **keywords: Any) -> Any:
            return (checkpoint_without_reentry if self._way == TOGETHER else _kept)(*call, **keywords)

        held = runs(works) if TOGETHER in ways else []
        together = [Segment(blocks=tuple(stages.pop(place) for place in run)) for run in held]
        checkpoints |= dict.fromkeys(together, together_if_asked)
        self._switch = checkpoint_segments(
            assembled.workload, [*together, *stages.values()], checkpoint_of=checkpoints.__getitem__
        )
        _, self._step = assembled.trainer()

    def sample(self, way: str) -> StepSample | None:
        """Time one step; None if it runs out of memory, which EVERY raises."""
        self._way, self._labels = way, []
        self._switch(way != WHOLE)
        self.device.synchronize()
        watch = self.device.stopwatch()
        self._mark, on_core = watch.mark, thread_time()
        is_done = False
        try:
            self._step(self._tell)
            is_done = True
        except torch.OutOfMemoryError:
            if way == EVERY:
                raise
        if not is_done:  # here the error, which holds the step's tensors, is gone
            self.device.release()
            return None
        held = None if self.device.is_asynchronous else thread_time() - on_core
        forward, recompute, backward = ([0.0] * len(self.works) for _ in range(3))
        phase, spans = "", list(zip(self._labels, watch.seconds(), strict=False))
        for (label, place), span in spans:  # a backward lasts from the end of its recompute to the next mark
            if place < 0:
                phase = label
            elif phase == "forward" and label != AFTER:
                forward[place] += span
            elif phase == "backward" and label == INSIDE:
                recompute[place] += span
            elif phase == "backward" and label == BEHIND:
                backward[place] += span
        return StepSample(
            total=sum(span for _, span in spans),
            forward=tuple(forward),
            recompute=tuple(recompute),
            backward=tuple(backward),
            held=held,
        )

    def _run(self, place: int, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Run a stage's call under the current checkpoint; marks enclose its own work, in the recompute too."""

        def inside(*inner: Any, **named: Any) -> Any:
            self._tell(INSIDE, place)
            try:
                return function(*inner, **named)
            finally:  # early stop: a recompute ends with an exception
                self._tell(BEHIND, place)

        self._tell(BEFORE, place)
        value = self._checkpoints[self._way](inside, *arguments, **keywords)
        self._tell(AFTER, place)
        return value

    def _tell(self, label: str, place: int = -1) -> None:
        self._labels.append((label, place))
        self._mark()


def _kept(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    return function(*arguments, **keywords)
