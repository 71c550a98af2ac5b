"""Whether the ranks that train together have the gradients of one process with all their batches.

Knows nothing of how they train together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import torch

from profiler.core.record import Equality
from profiler.measuring.meters import equality
from profiler.measuring.meters.equality import Results, Step
from profiler.measuring.process_group import Group


def verify_averaging(
    found: Equality, step: Step, alone: Callable[[int], Step], nudged: Callable[[int], Step], group: Group
) -> Equality:
    """`found` with how far the gradients of `step`, with all ranks, are from the mean of those that one process has.

    `alone(rank)` is the step of one process with the batch of a rank, `nudged(rank)` the same with weights that differ
    in the last bit: where not all bits are equal, what rounding makes of the gradients says how much that is.
    """
    mine = equality.collect(step)
    mean = _mean([equality.collect(alone(rank)) for rank in range(group.size)], group.rank)
    across = equality.compared(mean, mine, group)
    if not across.largest_difference:
        return msgspec.structs.replace(found, ranks_difference=0.0)
    other = _mean([equality.collect(nudged(rank)) for rank in range(group.size)], group.rank)
    return msgspec.structs.replace(
        found,
        ranks_difference=across.largest_difference,
        rounding_floor=max(group.gather(equality.compare(mean, other).largest_difference or 0.0)),
        worst_parameter=across.worst_parameter,
    )


def _mean(found: Sequence[Results], rank: int) -> Results:
    """What the ranks would have: all of them the mean of the gradients, and each its own of the rest."""
    gradients = {name: _average([one.gradients[name] for one in found]) for name in found[0].gradients}
    return msgspec.structs.replace(found[rank], gradients=gradients)


def _average(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    parts = [one / len(gradients) for one in gradients if one is not None]
    return sum(parts[1:], parts[0]) if parts else None
