"""Strategies that cut the chain of blocks into segments, each recomputed in the backward; and two that do not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import groupby
from math import isqrt
from typing import Any, Literal

import torch
from torch.autograd.graph import saved_tensors_hooks

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Note
from profiler.training.checkpointing.block_segments import BlockSegment, recompute, recomputes
from profiler.training.checkpointing.observed_forward import ChainBytes, observe
from profiler.training.checkpointing.own_checkpoints import checkpoint
from profiler.training.workload import Workload

LAST_IS_PLAIN = "the last segment is never checkpointed, and there is no other"
DEEPEST = 48  # nested checkpoints; autograd recurses into each, and Python allows about 1000 frames


def none(workload: Workload) -> Applied:
    """Keeps everything: the baseline of every comparison."""
    return Applied(switch=lambda on: None)


def own(workload: Workload) -> Applied:
    """Leaves on the checkpoints that the model calls itself; under `none` and all others they are plain calls."""
    return Applied(keeps_own=True, switch=lambda on: None)


def segments(workload: Workload, *, k: Count, split: Literal["torch", "balanced"] = "torch") -> Applied:
    """Cuts the chain into k segments and recomputes all but the last, as checkpoint_sequential does.

    `split=balanced` cuts by saved bytes instead of by number, and checkpoints the last segment too where that lowers
    the peak. Raises Unsupported where the chain has fewer than k blocks.
    """
    length = len(workload.blocks)
    if k > length:
        raise Unsupported(f"only {length} blocks for {k} segments")
    made = split_as_torch(length, k) if split == "torch" else split_balanced(observe(workload).chain, k)
    applied, notes = split_text(made, length), tuple[Note, ...]()
    if split == "torch" and made and length - made[-1].stop > 1.5 * len(made[0]):
        text = f"the last, plain segment takes the remainder ({applied}); segments:k={k},split=balanced evens it"
        notes = (Note(code="GCP002", text=text),)
    return recompute(workload, made, split=applied, nothing=LAST_IS_PLAIN, notes=notes)


def sqrt(workload: Workload) -> Applied:
    """Cuts the chain into as many segments as the square root of its length: memory grows with sqrt(n).

    The split is checkpoint_sequential's. Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
    """
    length = len(workload.blocks)
    k = round_root(length)
    made = split_as_torch(length, k)
    return recompute(workload, made, split=f"k={k}: {split_text(made, length)}", nothing=LAST_IS_PLAIN)


def all_blocks(workload: Workload) -> Applied:
    """Recomputes every block by itself: what Hugging Face and FSDP call full."""
    return _by_themselves(workload, range(len(workload.blocks)))


def every(workload: Workload, *, k: Count = 2) -> Applied:
    """Recomputes every k-th block by itself: the k-th, the 2k-th and so on.

    Raises Unsupported where there are fewer than k blocks.
    """
    length = len(workload.blocks)
    if k > length:
        raise Unsupported(f"only {length} blocks for every {k}th")
    return _by_themselves(workload, range(k - 1, length, k))


def first(workload: Workload, *, n: Count = 8) -> Applied:
    """Recomputes the first n blocks, each by itself (Megatron's "block" method).

    Raises Unsupported where there are fewer than n blocks.
    """
    length = len(workload.blocks)
    if n > length:
        raise Unsupported(f"only {length} blocks for the first {n}")
    return _by_themselves(workload, range(n))


def _by_themselves(workload: Workload, chosen: range) -> Applied:
    return recompute(workload, [[index] for index in chosen], split=f"{len(chosen)} of {len(workload.blocks)}")


def recursive(workload: Workload) -> Applied:
    """Checkpoints the first half, and within each half again: memory grows with log(n), recompute with n log(n).

    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 4.3.
    """
    made = [item for item in halves(0, len(workload.blocks)) if not isinstance(item, int)]
    return recompute(workload, made, split=f"{max(recomputes(made).values(), default=0)} deep")


def halves(start: int, end: int) -> Sequence[Any]:
    """Return nested segments of blocks start to end: the first half checkpointed, then the items of the second half."""
    if end - start < 2:
        return list(range(start, end))
    middle = start + (end - start) // 2
    return [halves(start, middle), *halves(middle, end)]


def from_start(workload: Workload) -> Applied:
    """Keeps nothing and recomputes from the input for every stage: the least memory, n(n+1)/2 forward computations.

    Raises Unsupported above 48 blocks, which would nest too deep.
    """
    length = len(workload.blocks)
    if length > DEEPEST:
        raise Unsupported(f"{length} blocks would nest {length} checkpoints; {DEEPEST} are the most")
    start: BlockSegment = [0]
    made = [reduce(lambda before, index: [before, index], range(1, length - 1), start)] if length > 1 else []
    return recompute(workload, made, split=f"{length - 1} deep")


def planted(workload: Workload, *, fault: Literal["reentrant", "random-state", "leak"]) -> Applied:
    """Checkpoints wrongly: reentrant from an input without gradient, or with fresh random numbers in the recompute.

    `leak` checkpoints nothing, but runs a forward with a saved-tensor hook that references the loss, a cycle through
    C++, which keeps the model for good. The passes must catch each.
    """
    if fault == "leak":
        kept: list[torch.Tensor] = []
        with (
            torch.random.fork_rng(devices=[]),
            saved_tensors_hooks(lambda tensor: (tensor.detach(), kept), lambda packed: packed[0]),
        ):
            kept.append(workload.loss(workload.module, workload.batch))
        return Applied(switch=lambda on: None)

    def wrong(function: Any, *arguments: Any) -> Any:
        if fault == "reentrant":
            return checkpoint(function, *arguments, use_reentrant=True)
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)

    count = len(workload.blocks) - 1
    return recompute(workload, [range(count)], split=f"{count}+1", checkpoint=wrong, recomputes={})


def round_root(length: int) -> int:
    """The square root, rounded to the nearest whole number; at least 1."""
    root = isqrt(length)
    return max(1, root + (length > root * (root + 1)))


def split_text(checkpointed: Sequence[range], length: int) -> str:
    """`31x3+7`: 31 checkpointed segments of 3, and 7 plain; `4+4+0` where nothing is plain."""
    plain = length - (checkpointed[-1].stop if checkpointed else 0)
    equal = [(len(list(group)), size) for size, group in groupby(map(len, checkpointed))]
    return "+".join([*(f"{count}x{size}" if count > 1 else str(size) for count, size in equal), str(plain)])


def split_as_torch(length: int, segments: int) -> list[range]:
    """Return the checkpointed segments of torch.utils.checkpoint.checkpoint_sequential: the rest is plain."""
    size = length // segments
    return [range(size * number, size * (number + 1)) for number in range(segments - 1)]


def split_balanced(chain: ChainBytes, segments: int) -> list[range]:
    """Return the checkpointed of at most `segments` segments such that the largest saves as few bytes as possible.

    The last one is checkpointed only if that lowers the peak, as when head and loss hold much.
    """
    low, high = max(chain.saved), sum(chain.saved)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_filled(chain.saved, middle)) <= segments else (middle + 1, high)
    made = _filled(chain.saved, low)
    return made if peak(chain, made, is_whole=True) < peak(chain, made, is_whole=False) else made[:-1]


def peak(chain: ChainBytes, segments: Sequence[range], *, is_whole: bool) -> int:
    """Return the most saved bytes held at once, where the last segment is checkpointed or not; without temporaries."""
    saved = [sum(chain.saved[segment.start : segment.stop]) for segment in segments]
    kept = [sum(chain.inputs[segment.start] for segment in segments[: i + 1]) for i in range(len(segments))]
    recomputed = [held + nbytes for held, nbytes in zip(kept, saved, strict=True)]
    at_loss = kept[-1] + chain.tail + (0 if is_whole else saved[-1])
    return max(*recomputed, at_loss)


def _filled(saved: tuple[int, ...], bound: int) -> list[range]:
    """Return segments of all blocks, each filled from the front as long as its bytes stay within the bound."""
    starts, held = [0], 0
    for index, nbytes in enumerate(saved):
        if index > starts[-1] and held + nbytes > bound:
            starts.append(index)
            held = 0
        held += nbytes
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(saved)], strict=True)]
