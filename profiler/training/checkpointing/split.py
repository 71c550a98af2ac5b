"""Cuts a chain into segments: arithmetic on lengths and bytes, without torch."""

from __future__ import annotations

from itertools import groupby, pairwise

import msgspec

LAST_IS_PLAIN = "the last segment is never checkpointed, and there is no other"


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Segments of a chain, in order. The last is checkpointed only if `last_checkpointed`."""

    sizes: tuple[int, ...]
    last_checkpointed: bool = False

    @property
    def checkpointed(self) -> list[range]:
        """The checkpointed segments as ranges of indices."""
        starts = [sum(self.sizes[:i]) for i in range(len(self.sizes) + 1)]
        segments = [range(start, end) for start, end in pairwise(starts)]
        return segments if self.last_checkpointed else segments[:-1]

    def __str__(self) -> str:
        """`31x3+7`: 31 checkpointed segments of 3, and 7 plain; `4+4+0` where nothing is plain."""
        checkpointed = self.sizes if self.last_checkpointed else self.sizes[:-1]
        plain = 0 if self.last_checkpointed else self.sizes[-1]
        equal = [(len(list(group)), size) for size, group in groupby(checkpointed)]
        return "+".join([*(f"{count}x{size}" if count > 1 else str(size) for count, size in equal), str(plain)])


class ChainBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a forward saves, by block, and after the chain (head and loss)."""

    saved: tuple[int, ...]
    inputs: tuple[int, ...]  # of each block: bytes that a checkpoint beginning there keeps
    tail: int = 0


def split_as_torch(length: int, segments: int) -> Split:
    """Cut exactly as torch.utils.checkpoint.checkpoint_sequential does: the last segment takes the whole remainder."""
    size = length // segments
    return Split(sizes=(*(size,) * (segments - 1), length - size * (segments - 1)))


def split_balanced(chain: ChainBytes, segments: int) -> Split:
    """Return at most `segments` segments such that the largest saves as few bytes as possible.

    The last one is checkpointed only if that lowers the peak, as when head and loss hold much.
    """
    low, high = max(chain.saved), sum(chain.saved)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_fill(chain.saved, middle)) <= segments else (middle + 1, high)
    sizes = tuple(_fill(chain.saved, low))
    plain, whole = Split(sizes=sizes), Split(sizes=sizes, last_checkpointed=True)
    return whole if peak(chain, whole) < peak(chain, plain) else plain


def peak(chain: ChainBytes, split: Split) -> int:
    """Return the most saved bytes held at once; a model of saved bytes alone, without temporaries."""
    starts = [sum(split.sizes[:i]) for i in range(len(split.sizes))]
    segments = [sum(chain.saved[start : start + size]) for start, size in zip(starts, split.sizes, strict=True)]
    kept = [sum(chain.inputs[start] for start in starts[: i + 1]) for i in range(len(starts))]
    recomputed = [held + segment for held, segment in zip(kept, segments, strict=True)]
    at_loss = kept[-1] + chain.tail + (0 if split.last_checkpointed else segments[-1])
    return max(*recomputed, at_loss)


def _fill(saved: tuple[int, ...], bound: int) -> list[int]:
    """Return segment sizes, each filled from the front as long as its bytes stay within the bound."""
    sizes, held = [0], 0
    for nbytes in saved:
        if sizes[-1] and held + nbytes > bound:
            sizes.append(0)
            held = 0
        sizes[-1] += 1
        held += nbytes
    return sizes
