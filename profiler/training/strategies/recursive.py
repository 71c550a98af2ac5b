"""Strategy `recursive`: nested checkpoints, by halves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiler.core.record import Applied
from profiler.training.checkpointing.block_segments import checkpoint_segments, notes_of_nothing, recomputes
from profiler.training.workload import Workload


def apply(workload: Workload) -> Applied:
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
