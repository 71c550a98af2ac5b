"""Estimates the peaks of coarser and finer block choices of a model, from one traced step without checkpointing."""

from __future__ import annotations

from torch import nn

from profiler.analysis.peak_floor import floor
from profiler.core.errors import NotOnce, Unsupported
from profiler.core.trace_data import BlockChoice, BlockChoices, Trace
from profiler.planning.candidates import all_stages
from profiler.planning.simulator import simulate
from profiler.predicting.staging.chains import chain_of
from profiler.predicting.staging.pooled_seconds import NOTHING
from profiler.predicting.staging.stage_operators import refuse_backward_in_forward, spans
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
    """Return the peak with each block checkpointed by itself; None if its blocks are not a chain of stages."""
    ends = {call.module: call.last for call in trace.calls}
    blocks = tuple(sorted(blocks, key=lambda name: ends[name]))  # in the order in which they run
    try:
        refuse_backward_in_forward(trace)
        stages = spans(trace, blocks)
    except (NotOnce, Unsupported):
        return None
    chain = chain_of(trace, stages, dict.fromkeys(blocks, ()), [NOTHING] * len(stages), options={})
    return simulate(chain, all_stages(chain)).peak_bytes
