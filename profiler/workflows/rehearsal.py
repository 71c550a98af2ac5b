"""A rehearsed GPU that takes for CUDA and cuDNN what a measured run says they took."""

from __future__ import annotations

from profiler.analysis import taken_besides
from profiler.core import rehearsed_gpu
from profiler.core.case import Choice, split_choices
from profiler.request.device_choice import to_rehearse
from profiler.runs import store
from profiler.runs.find import run_folder


def calibrated(devices: str, run: str, **sizes: str | None) -> str:
    """Returns the devices to rehearse, `h100,t4`, with what a measured run of each says, but for the sizes given.

    Raises UserError where it is no run, or nothing in it was measured on one of them.
    """
    records = store.load(run_folder(run)).records
    words = []
    for device in split_choices(to_rehearse(devices)):
        gpu = rehearsed_gpu.gpu_of(str(device))
        measured = {name: str(nbytes) for name, nbytes in taken_besides.sizes(records, gpu).items()}
        given = {name: size for name, size in sizes.items() if size is not None}
        words.append(to_rehearse(str(device), **{**measured, **Choice(device).options, **given}))
    return ",".join(words)
