"""Case -> a summary of its model's blocks, from one forward."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from profiler.core.case import Case
from profiler.core.errors import Unsupported
from profiler.core.record import BlockSummary, ModelSummary
from profiler.training.assemble import assemble
from profiler.training.blocks import refuse_none
from profiler.training.checkpointing.called_blocks import CalledBlock
from profiler.training.checkpointing.observed_forward import observe
from profiler.training.workload import num_parameters, tensors


def describe(case: Case) -> ModelSummary:
    """Return a summary of the model's blocks. Raises Unsupported if it has none, and whatever the model raises."""
    workload = assemble(case.baseline).workload
    refuse_none(workload.blocks)
    outputs: dict[str, str] = {}

    def leave(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        outputs[name] = ", ".join(" x ".join(map(str, tensor.shape)) for tensor in tensors(output))

    handles = [workload.block(name).register_forward_hook(partial(leave, name)) for name in workload.blocks]
    remark = None
    linked: list[bool | None] = [None] * len(workload.blocks)  # whether each block feeds only the next one
    try:
        linked = [*observe(workload).linked[:-1], None]
    except Unsupported as error:
        remark = str(error)
    for handle in handles:
        handle.remove()
    blocks = [workload.block(name) for name in workload.blocks]
    return ModelSummary(
        model=str(case.model),
        num_parameters=num_parameters(workload.module),
        batch_size=case.batch_size,
        blocks=tuple(
            BlockSummary(
                name=name,
                kind=block.kind if isinstance(block, CalledBlock) else type(block).__name__,
                num_parameters=num_parameters(block),
                output=outputs.get(name, ""),
                feeds_next=feeds,
            )
            for name, block, feeds in zip(workload.blocks, blocks, linked, strict=True)
        ),
        remark=remark,
    )
