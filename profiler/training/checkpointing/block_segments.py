"""Segments of consecutive blocks computed under checkpoints: the mechanism, which does not choose where to cut."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from profiler.core.errors import Unsupported
from profiler.core.plan_file import recompute_counts
from profiler.core.record import Note
from profiler.training.blocks import refuse_none
from profiler.training.checkpointing.call_routes import run_ahead
from profiler.training.checkpointing.linked_blocks import refuse_unlinked
from profiler.training.checkpointing.observed_forward import Observation
from profiler.training.checkpointing.own_checkpoints import checkpoint
from profiler.training.checkpointing.routed_block import RoutedBlock, route, unroute
from profiler.training.workload import Workload

Checkpoint = Callable[..., Any]
Switch = Callable[[bool], None]


class OwnCheckpoint(NamedTuple):
    """A segment under a checkpoint of its own, as selective ones are."""

    segment: Sequence[Any]
    checkpoint: Checkpoint


# Indices into the blocks, and segments within: checkpoints within the checkpoint.
BlockSegment = Sequence[Any] | OwnCheckpoint


class SegmentChoice:
    """What a strategy chose to checkpoint."""

    def __init__(self) -> None:
        self.segments: list[BlockSegment] | None = None  # None where it checkpoints in another way
        self.blocks: tuple[str, ...] = ()  # that its indices are of
        self.has_own_checkpoint = False


_CHOICE: ContextVar[SegmentChoice | None] = ContextVar("_CHOICE", default=None)


@contextmanager
def chosen_segments() -> Iterator[SegmentChoice]:
    """Note what `checkpoint_segments` is given within, which is all that it does there."""
    choice = SegmentChoice()
    token = _CHOICE.set(choice)
    try:
        yield choice
    finally:
        _CHOICE.reset(token)


def checkpoint_segments(
    workload: Workload, segments: Iterable[BlockSegment], *, checkpoint: Checkpoint | None = None
) -> Switch:
    """Change the module in place so that each segment of its blocks is recomputed in the backward.

    Returns what switches that off, until it is switched on again: between steps, the module is as it was before.

    A segment holds the indices of consecutive blocks, and may hold segments: `[[0, 1], 2]` recomputes 0 to 2, and in
    that recompute 0 and 1 once more. `checkpoint` is that of all segments without an OwnCheckpoint. When the module's
    own forward calls the first block of a segment, the whole segment is computed under the checkpoint; its calls of the
    other blocks return their input. So the forward that strings the blocks together, a Sequential or a loop, stays as
    it is. Where a segment is longer than one block, one forward is observed; raises Unsupported where its blocks do not
    feed each other, and nothing else, or where a block is checkpointed already.
    """
    refuse_none(workload.blocks)
    chosen = list(segments)
    _refuse_twice(workload, chosen)
    choice = _CHOICE.get()
    if choice:
        choice.segments, choice.blocks, choice.has_own_checkpoint = chosen, workload.blocks, checkpoint is not None
        return unswitched
    together = [pair for segment in chosen for pair in pairwise(flat(segment))]
    seen = refuse_unlinked(workload, together) if together else None
    routed = [
        _CheckpointedSegment(workload, segment, checkpoint or checkpoint_without_reentry, seen) for segment in chosen
    ]
    ends_within = bool(together) and not workload.calls  # where it leaves blocks out; calls watch that themselves
    if ends_within:
        _follow(workload.module, routed, True)

    def switch(on: bool) -> None:
        for segment in routed:
            segment.switch(on)
        if ends_within:
            _follow(workload.module, routed, on)

    return switch


def unswitched(on: bool) -> None:
    """The switch of a strategy that changes nothing in the module."""


def checkpoint_without_reentry(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Calls PyTorch's checkpoint in its non-reentrant form.

    The reentrant kind leaves gradients missing, in silence, where no input of the first segment needs one.
    """
    return checkpoint(function, *arguments, use_reentrant=False, **keywords)


def flat(segment: BlockSegment) -> list[int]:
    """All indices of a segment, in order."""
    return [index for item in items(segment) for index in (flat(item) if isinstance(item, Sequence) else [item])]


def items(segment: BlockSegment) -> Sequence[Any]:
    """What the segment's checkpoint holds: indices and segments."""
    return segment.segment if isinstance(segment, OwnCheckpoint) else segment


def recomputes(segments: Iterable[BlockSegment]) -> dict[int, int]:
    """How often each block is computed again: once for every checkpoint around it, but as `recompute_counts` says."""
    return recompute_counts(segments, lambda item: items(item) if isinstance(item, Sequence) else None)


def notes_of_nothing(segments: Sequence[BlockSegment], why: str) -> tuple[Note, ...]:
    """What there is to say where no segment is checkpointed; `why` follows `checkpoints nothing: `."""
    text = f"checkpoints nothing: {why}; it is `none` by another name"
    return () if segments else (Note(code="GCP001", text=text),)


class _CheckpointedSegment:
    """One checkpointed segment. Its blocks give it their calls, unless it is computing them."""

    def __init__(
        self, workload: Workload, segment: BlockSegment, checkpoint: Checkpoint, seen: Observation | None
    ) -> None:
        self._blocks = {index: workload.block(workload.blocks[index]) for index in flat(segment)}
        self._names = {index: workload.blocks[index] for index in self._blocks}
        self._segment = segment
        self._checkpoint = checkpoint
        self._order = list(self._blocks)
        self._in_tuples = seen.in_tuples if seen else set()
        _, *behind = self._blocks
        self._given = {index: seen.given[index] for index in behind if seen and index in seen.given}
        for index in behind:
            run_ahead(self._blocks[index])
        self.inside = False
        self.due = 0  # the place of the block whose call comes next
        self._kept_inputs = _keep_inputs(self._blocks, segment)
        for block in self._blocks.values():
            route(block, self)

    def switch(self, on: bool) -> None:
        """While it is off, every block is as it was before."""
        for block in self._blocks.values():
            if on:
                route(block, self)
            else:
                unroute(block)
        for module in self._kept_inputs:
            module.inplace = not on  # type: ignore[assignment]

    def call(self, block: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        """The whole segment's output where its first block is called, of the others what they are given.

        Raises Unsupported where a forward leaves blocks out, as layer dropout and early exits do, or gives a block
        other parameters or values than it was computed with.
        """
        place = self._place(block)
        self._expect(place)
        if place == 0:
            value = self._under(self._segment)(*arguments, **keywords)
            self.due = 1 % len(self._blocks)
            return value
        self.due = (place + 1) % len(self._blocks)
        value, *further = arguments
        index = self._order[place]
        given = self._given.get(index)
        if given and not given.agrees(tuple(further), keywords):
            raise Unsupported(f"'{self._names[index]}' takes other values than when it was looked at")
        return (value,) if index in self._in_tuples else value

    def _place(self, block: nn.Module) -> int:
        """Where the block stands: where one is due, unless blocks were left out. All others are looked at only then."""
        if self._blocks[self._order[self.due]] is block:
            return self.due
        return next(place for place, index in enumerate(self._order) if self._blocks[index] is block)

    def _expect(self, place: int) -> None:
        """Raises Unsupported where another block is due: what runs together is computed at the first one's call."""
        due, self.due = self.due, 0
        if place != due:
            raise self.refusal(f"called '{self.name(place)}'", due)

    def refusal(self, did: str, due: int) -> Unsupported:
        """Why a forward is refused that did this where the block at that place was due."""
        what = f"the forward {did} where '{self.name(due)}' was due"
        return Unsupported(f"{what}: what leaves blocks out at random cannot be cut; --strategies all can")

    def name(self, place: int) -> str:
        """The name of the block at this place."""
        return self._names[self._order[place]]

    def call_forward(self, forward: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """The block's own work under the checkpoint, where it is alone; others are called by the module's name only."""
        if len(self._blocks) > 1:
            return forward(*arguments, **keywords)
        return self._chosen(self._segment)(forward, *arguments, **keywords)

    def _under(self, segment: BlockSegment) -> Callable[..., Any]:
        """The segment under its checkpoint."""
        return partial(self._chosen(segment), self._compute(segment))

    def _chosen(self, segment: BlockSegment) -> Checkpoint:
        return segment.checkpoint if isinstance(segment, OwnCheckpoint) else self._checkpoint

    def _compute(self, segment: BlockSegment) -> Callable[..., Any]:
        """The segment as one function; segments within it are under a checkpoint of their own."""

        def compute(*arguments: Any, **keywords: Any) -> Any:
            before, self.inside = self.inside, True
            try:
                for item in items(segment):
                    given = self._given.get(flat(item)[0] if isinstance(item, Sequence) else item)
                    if given:
                        further, keywords = given.after(arguments[1:], keywords)
                        arguments = (arguments[0], *further)
                    step = self._under(item) if isinstance(item, Sequence) else self._blocks[item]
                    value = step(*arguments, **keywords)
                    arguments = (_bare(value), *arguments[1:])
            finally:
                self.inside = before
            return value

        return compute


class _WholeForward:
    """The forward of the whole module: it ends within no segment, whose first block has returned the output of all.

    Forwards within forwards are a part of it.
    """

    def __init__(self, segments: Sequence[_CheckpointedSegment]) -> None:
        self.inside = False
        self.segments = segments

    def call(self, block: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        """The module's own output. Raises Unsupported where its forward ends with blocks due."""
        return self.call_forward(block, *arguments, **keywords)

    def call_forward(self, forward: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """The same, past the hooks."""
        before = [segment.due for segment in self.segments]  # of blocks that were called by themselves
        self.inside = True
        try:
            value = forward(*arguments, **keywords)
        except BaseException:
            for segment, left in self._left(before):
                names = f"'{segment.name(left - 1)}' and '{segment.name(left)}'"
                what = f"an exception left the forward between {names}, which are computed together"
                warnings.warn(f"{what}: a value of the first that it carries is of both", RuntimeWarning, stacklevel=3)
            raise
        finally:
            self.inside = False
        for segment, left in self._left(before):
            raise segment.refusal("ended", left)
        return value

    def _left(self, before: list[int]) -> list[tuple[_CheckpointedSegment, int]]:
        """The segments that the forward began and did not end, with what was due; it is set back."""
        left = []
        for segment, due in zip(self.segments, before, strict=True):
            if segment.due not in (0, due):
                left.append((segment, segment.due))
                segment.due = due
        return left


def _follow(module: nn.Module, segments: Sequence[_CheckpointedSegment], on: bool) -> None:
    """Follow the forwards of a module for these segments too, or for them no longer."""
    there = vars(module).get("_route")
    others = [one for one in there.segments if one not in segments] if isinstance(there, _WholeForward) else []
    followed = [*others, *segments] if on else others
    if followed:
        route(module, _WholeForward(followed))
    else:
        unroute(module)


def _keep_inputs(blocks: dict[int, nn.Module], segment: BlockSegment) -> list[nn.Module]:
    """A checkpoint computes again from its input, so a module that begins one (ReLU) must not write over it.

    Returns the modules that did.
    """
    first = blocks[flat(segment)[0]]
    changed = [first] if getattr(first, "inplace", False) else []
    for module in changed:
        module.inplace = False  # type: ignore[assignment]
    inner = (_keep_inputs(blocks, item) for item in items(segment) if isinstance(item, Sequence))
    return [*changed, *(module for modules in inner for module in modules)]


def _refuse_twice(workload: Workload, segments: Iterable[BlockSegment]) -> None:
    """Raises Unsupported for blocks that another strategy has checkpointed."""
    for name in (workload.blocks[index] for segment in segments for index in flat(segment)):
        block = workload.block(name)
        if isinstance(block, RoutedBlock) and not isinstance(vars(block).get("_route"), _WholeForward):
            raise Unsupported(f"'{name}' is checkpointed already: apply one strategy to a fresh module")


def _bare(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value
