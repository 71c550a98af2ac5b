"""Sends inputs of a workload's checkpointed segments to host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from profiler.core.record import Note
from profiler.core.units import bytes_text
from profiler.training.checkpointing.block_segments import checkpointed
from profiler.training.checkpointing.host_memory import HostMemory, OffloadedInput
from profiler.training.workload import Workload


def offload_inputs(workload: Workload, fetched_at: Mapping[str, str], *, least: int = 0) -> Callable[[], Note]:
    """Send the inputs of checkpointed segments to host memory; return what says, after a step, how much that takes.

    `fetched_at` has, for a block of each segment, the block after it at whose backward its input is fetched. Inputs of
    fewer than `least` bytes stay on the device.
    """
    memory = HostMemory()
    segments = checkpointed(workload)
    for name, after in fetched_at.items():
        segments[name].around = OffloadedInput(memory, workload.block(after), least=least)

    def remark() -> Note:
        text = f"inputs of checkpoints wait in {bytes_text(memory.nbytes)} of pinned host memory"
        nothing = "offloads nothing: no checkpoint before the last block has a large input that is computed"
        return Note(code="GCP069", text=text if memory.nbytes else nothing)

    return remark
