"""Segments of consecutive blocks computed under checkpoints: the mechanism, which does not choose where to cut.

BatchNorm that runs again in a recompute would update its running statistics again: `repaired` keeps it from that.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from profiler.core.errors import Unsupported
from profiler.core.plan_file import Segment, every, names, recomputes
from profiler.core.record import Applied, Note
from profiler.training import called_blocks
from profiler.training.blocks import Route, refuse_none, route, unroute
from profiler.training.called_blocks import CalledBlock
from profiler.training.observed_forward import Observation, refuse_unlinked
from profiler.training.own_checkpoints import checkpoint
from profiler.training.workload import Workload

FEW_BLOCKS = 2  # with so few blocks, sqrt and segments:k=1 checkpoint nothing
Checkpoint = Callable[..., Any]
Switch = Callable[[bool], None]
# The reentrant form silently loses gradients if no input of the first segment needs one.
checkpoint_without_reentry: Checkpoint = partial(checkpoint, use_reentrant=False)
Indices = Sequence[Any]  # of the blocks of a segment, and the Indices of segments inside


def recompute(
    workload: Workload,
    segments: Sequence[Segment | Indices],
    *,
    split: str,
    nothing: str = "the last block is never checkpointed, and there is no other",
    checkpoint_of: Callable[[Segment], Checkpoint] = lambda segment: checkpoint_without_reentry,
    **more: Any,
) -> Applied:
    """Change the module as `checkpoint_segments` does; return what was done.

    Without segments a note says why `nothing` is checkpointed. `more` are other fields of Applied.
    """
    made = [segment_of(workload.blocks, segment) for segment in segments]
    switch = checkpoint_segments(workload, made, checkpoint_of=checkpoint_of)
    if not segments:
        text = f"checkpoints nothing: {nothing}; it is identical to `none`"
        more["notes"] = (Note(code="GCP001", text=text),)
    places = {name: place for place, name in enumerate(workload.blocks)}
    again = {places[name]: count for name, count in recomputes(made).items()}
    return Applied(**{"split": split, "recomputes": again, "switch": switch, **more})


def segment_of(blocks: Sequence[str], indices: Segment | Indices, save: str | None = None) -> Segment:
    """Return a segment of these blocks, with a save option: `[[0, 1], 2]` has a segment inside."""
    if isinstance(indices, Segment):
        return indices
    inside = (blocks[item] if isinstance(item, int) else segment_of(blocks, item) for item in indices)
    return Segment(blocks=tuple(inside), save=save)


def checkpoint_segments(
    workload: Workload,
    segments: Sequence[Segment | Indices],
    *,
    checkpoint_of: Callable[[Segment], Checkpoint] = lambda segment: checkpoint_without_reentry,
) -> Switch:
    """Change the module in place so that each segment of its blocks is recomputed in the backward.

    Returns a switch that turns this off and on between steps; while it is off, the module is as it was before.

    A segment holds consecutive blocks, and may hold segments: `[[0, 1], 2]` recomputes 0 to 2, and in that recompute 0
    and 1 once more. `checkpoint_of` returns the checkpoint function of each. When the module's own forward calls the
    first block of a segment, the whole segment is computed under the checkpoint; its calls of the other blocks return
    their input. So the forward that runs the blocks in order, a Sequential or a loop, is not
    changed. If a segment is longer than one block, one forward is observed. Raises Unsupported if the blocks of a
    segment do not feed each other and nothing else, or if a block is checkpointed already.
    """
    refuse_none(workload.blocks)
    made = [segment_of(workload.blocks, segment) for segment in segments]
    places = {name: place for place, name in enumerate(workload.blocks)}
    for name in (name for segment in made for name in names(segment)):
        if not isinstance(vars(workload.block(name)).get("_route"), _WholeForward | None):
            raise Unsupported(f"'{name}' is checkpointed already: apply one strategy to a fresh module")
    together = [pair for segment in made for pair in pairwise(places[name] for name in names(segment))]
    seen = refuse_unlinked(workload, together) if together else None
    routed = [CheckpointedSegment(workload, segment, checkpoint_of, seen) for segment in made]
    ends_within = bool(together) and not workload.calls  # watch forwards for skipped blocks; Calls watches its own

    def switch(on: bool) -> None:
        for segment in routed:
            segment.switch(on)
        if not ends_within:
            return
        there = vars(workload.module).get("_route")
        others = [one for one in there.segments if one not in routed] if isinstance(there, _WholeForward) else []
        if watched := [*others, *(routed if on else ())]:
            route(workload.module, _WholeForward(watched))
        else:
            unroute(workload.module)

    switch(True)
    return switch


def checkpointed(workload: Workload) -> dict[str, CheckpointedSegment]:
    """Return the segment of each block that is checkpointed by itself or with others, in the order of the blocks."""
    routes = {name: vars(workload.block(name)).get("_route") for name in workload.blocks}
    return {name: route for name, route in routes.items() if isinstance(route, CheckpointedSegment)}


class CheckpointedSegment(Route):
    """One checkpointed segment. It receives the calls of its blocks, unless it is running them."""

    def __init__(
        self,
        workload: Workload,
        segment: Segment,
        checkpoint_of: Callable[[Segment], Checkpoint],
        seen: Observation | None,
    ) -> None:
        self.segment = segment
        self.names = names(segment)
        self._blocks = {name: workload.block(name) for name in self.names}
        self._checkpoints = {one: checkpoint_of(one) for one in every([segment])}
        self._in_tuples = {workload.blocks[index] for index in seen.in_tuples} if seen else set()
        given = {workload.blocks[index]: given for index, given in seen.given.items()} if seen else {}
        self._given = {name: given[name] for name in self.names[1:] if name in given}
        for block in (self._blocks[name] for name in self.names[1:]):
            if isinstance(block, CalledBlock):
                block.runs_ahead = True
        self.around: Callable[..., Any] | None = None  # calls the checkpoint: where the input waits in host memory
        self.due = 0  # the position of the block whose call comes next
        self.passed: Any = None  # the segment's output, which every later block is to be given
        # A recompute needs the input of a module (ReLU) that begins a checkpoint
        firsts = dict.fromkeys(self._blocks[names(one)[0]] for one in every([segment]))
        self._in_place = [first for first in firsts if getattr(first, "inplace", False)]

    def switch(self, on: bool) -> None:
        """Switch the checkpoint on or off; while it is off, every block is as it was before."""
        for block in self._blocks.values():
            if on:
                route(block, self)
            else:
                unroute(block)
        for module in self._in_place:
            module.inplace = not on  # type: ignore[assignment]

    def called(self, block: nn.Module, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        """Return the whole segment's output if its first block is called; for the others, the value they are given.

        A `forward` that is called directly runs under the checkpoint if the segment is one block, else as it is. Raises
        Unsupported if a forward leaves blocks out, as layer dropout and early exits do, or gives a block other
        parameters or values than it was computed with, as where a module was put around each block later (LoRA).
        """
        if own is not block:
            run = partial(self._chosen(self.segment), own) if len(self._blocks) == 1 else own
            return run(*arguments, **keywords)
        due = self.due
        place = due if self._blocks[self.names[due]] is block else [*self._blocks.values()].index(block)
        self.due = 0
        if place != due:
            raise self.refusal(f"called '{self.names[place]}'", due)
        if place == 0:
            value = self._under(self.segment)(*arguments, **keywords)
            self.due = 1 % len(self._blocks)
            self.passed = _bare(value) if self.due else None
            return value
        passed, self.due = self.passed, (place + 1) % len(self._blocks)
        self.passed = passed if self.due else None
        value, *further = arguments
        name = self.names[place]
        if value is not passed:
            raise Unsupported(
                f"'{name}' is not given what the block before it returned: "
                "what is put around blocks, such as LoRA, comes before the strategy"
            )
        given = self._given.get(name)
        if given and not given.agrees(tuple(further), keywords):
            raise Unsupported(f"'{name}' gets other arguments than when it was observed")
        return (value,) if name in self._in_tuples else value

    def refusal(self, did: str, due: int) -> Unsupported:
        """Return the error for a forward that did `did` when the block at position `due` was to come."""
        why = "a forward that skips blocks at random cannot be cut into segments; --strategies all works"
        return Unsupported(f"the forward {did} where '{self.names[due]}' was expected: {why}")

    def _under(self, segment: Segment) -> Callable[..., Any]:
        """Return a function that runs the segment under its checkpoint."""
        return partial(self._chosen(segment), partial(self._compute, segment))

    def _chosen(self, segment: Segment) -> Checkpoint:
        chosen = self._checkpoints[segment]
        return partial(self.around, chosen) if self.around and segment is self.segment else chosen

    def _compute(self, segment: Segment, *arguments: Any, **keywords: Any) -> Any:
        """Run the segment; segments inside it run under checkpoints of their own."""
        before, self.inside = self.inside, True
        try:
            for item in segment.blocks:
                given = self._given.get(names(item)[0])
                if given:
                    further, keywords = given.after(arguments[1:], keywords)
                    arguments = (arguments[0], *further)
                step = self._under(item) if isinstance(item, Segment) else self._blocks[item]
                value = step(*arguments, **keywords)
                arguments = (_bare(value), *arguments[1:])
        finally:
            self.inside = before
        return value


class _WholeForward(Route):
    """Watches that no forward of the whole module ends in the middle of a segment.

    The segment's first block has then returned the output of all its blocks. Nested forwards are part of the outer one.
    """

    def __init__(self, segments: Sequence[CheckpointedSegment]) -> None:
        self.segments = segments

    def called(self, block: nn.Module, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        """Return the module's output. Raises Unsupported if its forward ends with blocks due."""
        before = [segment.due for segment in self.segments]  # not 0 after blocks were called outside of a forward
        try:
            value = self.run(own, arguments, keywords)
        except BaseException:  # raised again
            for segment, left in self._left(before):
                between = f"'{segment.names[left - 1]}' and '{segment.names[left]}'"
                what = f"an exception left the forward between {between}, which run as one segment"
                carried = "if it carries the output of the first, that may be the output of both"
                warnings.warn(f"{what}: {carried}", RuntimeWarning, stacklevel=3)
            raise
        for segment, left in self._left(before):
            raise segment.refusal("ended", left)
        return value

    def _left(self, before: list[int]) -> list[tuple[CheckpointedSegment, int]]:
        """Return the segments that the forward began and did not end, with the position due; `due` is reset."""
        left = []
        for segment, due in zip(self.segments, before, strict=True):
            if segment.due not in (0, due):
                left.append((segment, segment.due))
                segment.due, segment.passed = due, None
        return left


def _bare(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def apply_strategy(workload: Workload, strategy: str, apply: Callable[[Workload], Applied]) -> tuple[Workload, Applied]:
    """Apply a strategy: to the blocks, or else, if it counts blocks, to the calls of blocks that run several times.

    Calls are taken if the strategy cannot be applied to the blocks, or does nothing with few of them. Raises as the
    strategy does.
    """
    may_count = strategy in called_blocks.COUNTING and workload.batch is not None
    refused = None
    try:
        made = apply(workload)
        if not may_count or made.recomputes or len(workload.blocks) > FEW_BLOCKS:
            return workload, made
    except Unsupported as error:
        refused = error
    chain = called_blocks.repeated(workload) if may_count else workload
    if chain is workload and refused:
        raise refused from None
    if chain is workload:
        return workload, made
    made = apply(chain)
    counts = Counter(name.partition(called_blocks.SIGN)[0] for name in chain.calls)
    name, count = next(iter(counts.items()))
    others = f", and {len(counts) - 1} more run several times" if len(counts) > 1 else ""
    text = (
        f"{name} runs {count} times in a forward{others}: the calls are the blocks, {next(iter(chain.calls))} and so on"
    )
    return chain, msgspec.structs.replace(made, notes=(*made.notes, Note(code="GCP050", text=text)))


def repaired(workload: Workload, applied: Applied) -> Applied:
    """Make recomputes leave the running statistics of BatchNorm, and its counts of batches, as the forward left them.

    Each layer of a recomputed block is hooked once, however often and in whatever order it runs; a note says how many.
    Raises Unsupported if blocks are recomputed and no block of the workload has such a layer.
    """
    layers = updated_again(workload, applied)
    for layer in layers:
        layer.register_forward_pre_hook(_hold)
        layer.register_forward_hook(_release, always_call=True)  # a recompute stops at the last tensor that it needs
    if applied.recomputes and not norms(workload):
        raise Unsupported("--repair-batchnorm: no BatchNorm with running statistics is in a block")
    why = "no BatchNorm is in a checkpointed block" if applied.recomputes else "no block is known to run again"
    held = f"the running statistics of {len(layers)} BatchNorm layers are held while these are recomputed"
    text = held if layers else f"--repair-batchnorm did nothing: {why}"
    return msgspec.structs.replace(applied, notes=(*applied.notes, Note(code="GCP010", text=text)))


def with_note(workload: Workload, applied: Applied, *, mended_by: str) -> Applied:
    """Return `applied` with a note if a step updates the running statistics of BatchNorm a second time."""
    if not updated_again(workload, applied):
        return applied
    text = f"BatchNorm updates its statistics again when it is recomputed; {mended_by} mends it"
    return msgspec.structs.replace(applied, notes=(*applied.notes, Note(code="GCP004", text=text)))


def updated_again(workload: Workload, applied: Applied) -> list[_NormBase]:
    """Return the BatchNorm layers with running statistics that a step would update again, each once."""
    return list(dict.fromkeys(layer for index, layer in norms(workload) if applied.recomputes.get(index)))


def norms(workload: Workload) -> list[tuple[int, _NormBase]]:
    """Return the layers of each block that keep running statistics, with the block's index."""
    modules = [(index, layer) for index, name in enumerate(workload.blocks) for layer in workload.block(name).modules()]
    return [(index, one) for index, one in modules if isinstance(one, _NormBase) and one.track_running_stats]


def _hold(layer: Any, _: Any) -> None:
    """Freeze the statistics (momentum 0) and the batch count if this runs in a backward, which makes it a recompute.

    The kernel still gets the statistics, since a checkpoint needs as many saved tensors as the forward had.
    """
    in_backward = not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
    if in_backward and layer.training:
        layer.__dict__["_held"] = layer.momentum, layer.num_batches_tracked
        layer.momentum, layer.num_batches_tracked = 0.0, None


def _release(layer: Any, *_: Any) -> None:
    if "_held" in layer.__dict__:
        layer.momentum, layer.num_batches_tracked = layer.__dict__.pop("_held")
