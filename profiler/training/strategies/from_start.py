"""Strategy `from-start`: keeps no block and recomputes every stage from the input."""

from __future__ import annotations

from functools import reduce

from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.training.checkpointing.block_segments import (
    BlockSegment,
    checkpoint_segments,
    notes_of_nothing,
    recomputes,
)
from profiler.training.workload import Workload

DEEPEST = 48  # nested checkpoints; autograd recurses into each, and Python allows about 1000 frames


def apply(workload: Workload) -> Applied:
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
