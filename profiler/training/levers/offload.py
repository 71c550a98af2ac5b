"""Lever that moves the inputs of checkpoints to host memory; plans that do so use its mechanism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from itertools import pairwise

from torch._guards import detect_fake_mode

from profiler.core.case import Case
from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Note
from profiler.core.units import bytes_text
from profiler.training.checkpointing.block_segments import checkpointed
from profiler.training.checkpointing.host_memory import HostMemory, OffloadedInput
from profiler.training.workload import Workload

IS_LOOK = ContextVar("is_look", default=False)  # parameters are fake for a look alone, and no step runs on them


def inputs(workload: Workload, case: Case, *, least: Count = 1048576) -> tuple[Workload, Applied]:
    """Moves the inputs of checkpoints to pinned host memory until the backward is a block away.

    Those of fewer than `least` bytes stay. Raises Unsupported where no strategy has checkpointed a block.
    """
    segments = checkpointed(workload)
    if not segments:
        raise Unsupported(f"{case.strategy} checkpoints no block, so there is no input to move to host memory")
    ends = [(name, after) for name, after in pairwise(workload.blocks) if segments.get(name) is not segments.get(after)]
    waiting = {name: after for name, after in ends if name in segments}
    return workload, Applied(remark=offload_inputs(workload, waiting, least=least), switch=lambda on: None)


def offload_inputs(workload: Workload, fetched_at: Mapping[str, str], *, least: int = 0) -> Callable[[], Note]:
    """Send the inputs of checkpointed segments to host memory; return what says, after a step, how much that takes.

    `fetched_at` has, for a block of each segment, the block after it at whose backward its input is fetched. Inputs of
    fewer than `least` bytes stay on the device. Raises Unsupported in an estimate, where all tensors are on one device.
    """
    if detect_fake_mode([*workload.module.parameters()]) and not IS_LOOK.get():
        raise Unsupported("an estimate does not follow inputs of checkpoints to host memory: rehearse or measure it")
    memory = HostMemory()
    segments = checkpointed(workload)
    for name, after in fetched_at.items():
        segments[name].around = OffloadedInput(memory, workload.block(after), least=least)

    def remark() -> Note:
        text = f"inputs of checkpoints wait in {bytes_text(memory.nbytes)} of pinned host memory"
        nothing = "offloads nothing: no checkpoint before the last block has a large input that is computed"
        return Note(code="GCP069", text=text if memory.nbytes else nothing)

    return remark
