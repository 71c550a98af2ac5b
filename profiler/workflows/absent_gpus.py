"""GPUs that are not here: whether PyTorch's own CUDA code or an estimate answers for one, and its measured sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from profiler.core import gpu_specs
from profiler.core.case import Choice, split_choices
from profiler.core.errors import UserError
from profiler.core.gpu_specs import absent, parse, to_predict, to_rehearse
from profiler.core.record import Record, evidence
from profiler.engines.local import why_no_rehearsal
from profiler.request import device_choice
from profiler.runs import run_folder, store

CONVOLUTIONS = "aten.convolution"  # and aten.convolution_backward


def for_gpus(word: str, *, say: Callable[[str], None], is_estimated: bool = False) -> str:
    """Return the devices of a command that needs none, as cases have them: `t4,h100` -> `rehearse:t4,rehearse:h100`.

    They are estimated (`fake:t4`) where the word says so, for a CPU, if `is_estimated`, and where this machine cannot
    rehearse them; why is then said. `cuda` is an H100. Raises UserError for a GPU that is not known.
    """
    is_named = word == device_choice.SEVERAL or all(map(gpu_specs.is_known, word.split(",")))
    if is_estimated or not is_named:
        return word if parse(word).is_rehearsed else to_predict(word)
    asked = to_rehearse("h100" if word == device_choice.SEVERAL else word)
    if why := why_no_rehearsal(asked):
        say(f"note: estimated, not rehearsed: {why}")
        return to_predict(word)
    return asked


def planned(word: str | None, *, say: Callable[[str], None], is_estimated: bool = False) -> str | None:
    """Do as `for_gpus` for a GPU by its name; other devices are kept: they are measured, or say how they are known."""
    if word is None or not gpu_specs.is_known(word):
        return word
    return for_gpus(word, say=say, is_estimated=is_estimated)


def calibrated(devices: str, run: str, **sizes: str | None) -> str:
    """Return the devices to rehearse, `h100,t4`, with the sizes that a run measured on each, except those given.

    Raises UserError if it is no run, or nothing in it was measured on one of them.
    """
    records = store.load(run_folder(run)).records
    words = []
    for device in split_choices(to_rehearse(devices)):
        gpu = absent(str(device)).name
        measured = {name: str(nbytes) for name, nbytes in measured_sizes(records, gpu).items()}
        given = {name: size for name, size in sizes.items() if size is not None}
        words.append(to_rehearse(str(device), **{**measured, **Choice(device).options, **given}))
    return ",".join(words)


def measured_sizes(records: Sequence[Record], gpu: str) -> dict[str, int]:
    """Return the sizes `context` and `cudnn_workspace` of a rehearsed GPU, in bytes, as far as the records have them.

    `gpu` is its name in configs/devices. The context is the most that was taken of the device besides what PyTorch's
    allocator had reserved, while no other process used it. The workspace is the most that a convolution took besides
    its results. Raises UserError if no record was measured on such a GPU.
    """
    measured = [
        record
        for record in records
        if record.outcome == "ok"
        and evidence(record.case, device := record.environment) == "measured"
        and gpu_specs.word_of((device and device.device_name) or "") == gpu
    ]
    if not measured:
        raise UserError(f"nothing in it was measured on {gpu}", hint="--calibrate takes a measured run of that GPU")
    hidden = [(record.readings.hidden_bytes or {}).items() for record in measured]
    workspaces = [nbytes for calls in hidden for call, nbytes in calls if call.startswith(CONVOLUTIONS)]
    found = {"context": max(map(_context_bytes, measured)), "cudnn_workspace": max(workspaces, default=0)}
    return {name: nbytes for name, nbytes in found.items() if nbytes > 0}


def _context_bytes(record: Record) -> int:
    """Return the most of any phase, since some show too little between marks; 0 if others used the device too."""
    if any(at.others_bytes for at in record.readings.conditions or ()):
        return 0
    return max(
        (
            phase.device - phase.reserved
            for phase in (record.readings.phases or {}).values()
            if phase.device is not None and phase.reserved is not None
        ),
        default=0,
    )
