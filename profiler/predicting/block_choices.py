"""Estimates the peaks of coarser and finer block choices of a model, from one traced step without checkpointing."""

from __future__ import annotations

from torch import nn

from profiler.analysis.peak_floor import floor
from profiler.core.errors import Unsupported
from profiler.core.trace_data import BlockChoice, BlockChoices, Trace, live
from profiler.predicting.trace.compose import compose
from profiler.training.blocks import offered_blocks

MOST = 24  # choices that are evaluated, the shallowest first


def block_choices(
    trace: Trace,
    module: nn.Module,
    blocks: tuple[str, ...],
) -> BlockChoices:
    """Return the memory floor, and the peak under `all`, of the current blocks and of the model's other block choices.

    `trace` must have been traced with its saves. A choice is left out if one of its blocks did not run.
    """

    def choice(pattern: str, names: tuple[str, ...]) -> BlockChoice:
        return BlockChoice(
            pattern=pattern,
            num_blocks=len(names),
            floor_bytes=floor(trace, blocks=names).nbytes,
            all_bytes=_peak_of_all(trace, names),
        )

    ran = {call.module for call in trace.calls}
    offered = offered_blocks(module)
    own = next((pattern for pattern, names in offered.items() if names == blocks), "")
    others = [(pattern, names) for pattern, names in offered.items() if names != blocks and ran.issuperset(names)]
    return BlockChoices(own=choice(own, blocks), others=tuple(choice(*other) for other in others[:MOST]))


def _peak_of_all(trace: Trace, blocks: tuple[str, ...]) -> int | None:
    """Return the peak with each block checkpointed by itself; None if that trace cannot be composed."""
    try:
        return max(live(compose(trace, blocks, [[index] for index in range(len(blocks))])))
    except Unsupported:
        return None
