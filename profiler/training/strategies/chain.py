"""Strategies that cut the chain of blocks into segments, each recomputed in the backward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import isqrt
from typing import Any, Literal

import torch
from torch.autograd.graph import saved_tensors_hooks

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Note
from profiler.training.checkpointing.block_segments import (
    BlockSegment,
    checkpoint_segments,
    notes_of_nothing,
    recomputes,
    unswitched,
)
from profiler.training.checkpointing.observed_forward import observe
from profiler.training.checkpointing.own_checkpoints import checkpoint
from profiler.training.checkpointing.split import LAST_IS_PLAIN, Split, split_as_torch, split_balanced
from profiler.training.workload import Workload


def none(workload: Workload) -> Applied:
    """Keeps everything: the baseline of every comparison."""
    return Applied(switch=unswitched)


def own(workload: Workload) -> Applied:
    """Leaves on the checkpoints that the model calls itself; under `none` and all others they are plain calls."""
    return Applied(keeps_own=True, switch=unswitched)


def segments(workload: Workload, *, k: Count, split: Literal["torch", "balanced"] = "torch") -> Applied:
    """Cuts the chain into k segments and recomputes all but the last, as checkpoint_sequential does.

    `split=balanced` cuts by saved bytes instead of by number, and checkpoints the last segment too where that lowers
    the peak. Raises Unsupported where the chain has fewer than k blocks.
    """
    length = len(workload.blocks)
    if k > length:
        raise Unsupported(f"only {length} blocks for {k} segments")
    made = split_as_torch(length, k) if split == "torch" else split_balanced(observe(workload).chain, k)
    switch = checkpoint_segments(workload, made.checkpointed)
    return Applied(
        split=str(made), recomputes=recomputes(made.checkpointed), notes=_notes_of_split(made, k, split), switch=switch
    )


def _notes_of_split(made: Split, k: int, split: str) -> tuple[Note, ...]:
    *others, last = made.sizes
    if not made.checkpointed:
        return notes_of_nothing(made.checkpointed, LAST_IS_PLAIN)
    if split == "torch" and last > 1.5 * others[0]:
        text = f"the last, plain segment takes the remainder ({made}); segments:k={k},split=balanced evens it"
        return (Note(code="GCP002", text=text),)
    return ()


def sqrt(workload: Workload) -> Applied:
    """Cuts the chain into as many segments as the square root of its length: memory grows with sqrt(n).

    The split is checkpoint_sequential's. Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
    """
    length = len(workload.blocks)
    k = round_root(length)
    made = split_as_torch(length, k)
    switch = checkpoint_segments(workload, made.checkpointed)
    return Applied(
        split=f"k={k}: {made}",
        recomputes=recomputes(made.checkpointed),
        notes=notes_of_nothing(made.checkpointed, LAST_IS_PLAIN),
        switch=switch,
    )


def round_root(length: int) -> int:
    """The square root, rounded to the nearest whole number; at least 1."""
    root = isqrt(length)
    return max(1, root + (length > root * (root + 1)))


def all_blocks(workload: Workload) -> Applied:
    """Recomputes every block by itself: what Hugging Face and FSDP call full."""
    length = len(workload.blocks)
    switch = checkpoint_segments(workload, [[index] for index in range(length)])
    return Applied(split=f"{length} of {length}", recomputes=dict.fromkeys(range(length), 1), switch=switch)


def every(workload: Workload, *, k: Count = 2) -> Applied:
    """Recomputes every k-th block by itself: the k-th, the 2k-th and so on.

    Raises Unsupported where there are fewer than k blocks.
    """
    length = len(workload.blocks)
    chosen = range(k - 1, length, k)
    if not chosen:
        raise Unsupported(f"only {length} blocks for every {k}th")
    switch = checkpoint_segments(workload, [[index] for index in chosen])
    return Applied(split=f"{len(chosen)} of {length}", recomputes=dict.fromkeys(chosen, 1), switch=switch)


def first(workload: Workload, *, n: Count = 8) -> Applied:
    """Recomputes the first n blocks, each by itself (Megatron's "block" method).

    Raises Unsupported where there are fewer than n blocks.
    """
    length = len(workload.blocks)
    if n > length:
        raise Unsupported(f"only {length} blocks for the first {n}")
    switch = checkpoint_segments(workload, [[index] for index in range(n)])
    return Applied(split=f"{n} of {length}", recomputes=dict.fromkeys(range(n), 1), switch=switch)


def recursive(workload: Workload) -> Applied:
    """Checkpoints the first half, and within each half again: memory grows with log(n), recompute with n log(n).

    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 4.3.
    """
    length = len(workload.blocks)
    segments = [item for item in halves(0, length) if not isinstance(item, int)]
    switch = checkpoint_segments(workload, segments)
    counts = recomputes(segments)
    return Applied(
        split=f"{max(counts.values(), default=0)} deep",
        recomputes=counts,
        notes=notes_of_nothing(segments, "the last block is never checkpointed, and there is no other"),
        switch=switch,
    )


def halves(start: int, end: int) -> Sequence[Any]:
    """Return nested segments of blocks start to end: the first half checkpointed, then the items of the second half."""
    if end - start < 2:
        return list(range(start, end))
    middle = start + (end - start) // 2
    return [halves(start, middle), *halves(middle, end)]


DEEPEST = 48  # nested checkpoints; autograd recurses into each, and Python allows about 1000 frames


def from_start(workload: Workload) -> Applied:
    """Keeps nothing and recomputes from the input for every stage: the least memory, n(n+1)/2 forward computations.

    Raises Unsupported above 48 blocks, which would nest too deep.
    """
    length = len(workload.blocks)
    if length > DEEPEST:
        raise Unsupported(f"{length} blocks would nest {length} checkpoints; {DEEPEST} are the most")
    start: BlockSegment = [0]
    segments = [reduce(lambda before, index: [before, index], range(1, length - 1), start)] if length > 1 else []
    switch = checkpoint_segments(workload, segments)
    return Applied(
        split=f"{length - 1} deep",
        recomputes=recomputes(segments),
        notes=notes_of_nothing(segments, "the last block is never checkpointed, and there is no other"),
        switch=switch,
    )


def planted(workload: Workload, *, fault: Literal["reentrant", "random-state", "leak"]) -> Applied:
    """Checkpoints wrongly: reentrant from an input without gradient, or with fresh random numbers in the recompute.

    `leak` checkpoints nothing, but looks at the model in a way that keeps it for good.
    """
    if fault == "leak":
        _keep_for_good(workload)
        return Applied(switch=unswitched)

    def wrong(function: Any, *arguments: Any) -> Any:
        if fault == "reentrant":
            return checkpoint(function, *arguments, use_reentrant=True)
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)

    count = len(workload.blocks) - 1
    switch = checkpoint_segments(workload, [range(count)], checkpoint=wrong)
    return Applied(split=f"{count}+1", switch=switch)


def _keep_for_good(workload: Workload) -> None:
    """Leak a graph: run a forward with a saved-tensor hook that references the loss, a cycle through C++."""
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return tensor.detach(), kept

    with torch.random.fork_rng(devices=[]), saved_tensors_hooks(pack, lambda packed: packed[0]):
        kept.append(workload.loss(workload.module, workload.batch))
