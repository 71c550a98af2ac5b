"""Case -> a summary of its model's blocks, from one forward."""

from __future__ import annotations

from typing import Any

from torch import nn

from profiler.core.case import Case
from profiler.core.errors import Unsupported
from profiler.core.record import BlockSummary, ModelSummary
from profiler.training.assemble import assemble
from profiler.training.blocks import refuse_none
from profiler.training.checkpointing.called_blocks import CalledBlock
from profiler.training.checkpointing.observed_forward import observe
from profiler.training.workload import Workload, num_parameters, tensors


def describe(case: Case) -> ModelSummary:
    """Return a summary of the model's blocks. Raises Unsupported if it has none, and whatever the model raises."""
    workload = assemble(case.baseline).workload
    refuse_none(workload.blocks)
    outputs: dict[str, str] = {}
    handles = [_note(outputs, name, workload.block(name)) for name in workload.blocks]
    linked, remark = _linked(workload)
    for handle in handles:
        handle.remove()
    return ModelSummary(
        model=str(case.model),
        num_parameters=num_parameters(workload.module),
        batch_size=case.batch_size,
        blocks=tuple(
            _block(workload.block(name), name, outputs.get(name, ""), feeds)
            for name, feeds in zip(workload.blocks, linked, strict=True)
        ),
        remark=remark,
    )


def _linked(workload: Workload) -> tuple[list[bool | None], str | None]:
    """Return whether each block feeds only the next one (None for the last); or all None, and why that is unknown."""
    try:
        *linked, _ = observe(workload).linked
    except Unsupported as error:
        return [None] * len(workload.blocks), str(error)
    return [*linked, None], None


def _note(outputs: dict[str, str], name: str, block: nn.Module) -> Any:
    def leave(module: nn.Module, arguments: Any, output: Any) -> None:
        shapes = [" x ".join(map(str, tensor.shape)) for tensor in tensors(output)]
        outputs[name] = ", ".join(shapes)

    return block.register_forward_hook(leave)


def _block(block: nn.Module, name: str, output: str, feeds_next: bool | None) -> BlockSummary:
    return BlockSummary(
        name=name,
        kind=block.kind if isinstance(block, CalledBlock) else type(block).__name__,
        num_parameters=num_parameters(block),
        output=output,
        feeds_next=feeds_next,
    )
