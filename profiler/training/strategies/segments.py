"""Strategy `segments`: cuts a chain into k segments, as checkpoint_sequential does or balanced by bytes."""

from __future__ import annotations

from typing import Literal

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Note
from profiler.training.checkpointing.block_segments import checkpoint_segments, notes_of_nothing, recomputes
from profiler.training.checkpointing.observed_forward import observe
from profiler.training.checkpointing.split import LAST_IS_PLAIN, Split, split_as_torch, split_balanced
from profiler.training.workload import Workload


def apply(workload: Workload, *, k: Count, split: Literal["torch", "balanced"] = "torch") -> Applied:
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
        split=str(made), recomputes=recomputes(made.checkpointed), notes=_notes(made, k, split), switch=switch
    )


def _notes(made: Split, k: int, split: str) -> tuple[Note, ...]:
    *others, last = made.sizes
    if not made.checkpointed:
        return notes_of_nothing(made.checkpointed, LAST_IS_PLAIN)
    if split == "torch" and last > 1.5 * others[0]:
        text = f"the last, plain segment takes the remainder ({made}); segments:k={k},split=balanced evens it"
        return (Note(code="GCP002", text=text),)
    return ()
