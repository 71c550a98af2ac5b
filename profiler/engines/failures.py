"""What becomes of a trial that raised: its outcome, in words that name the user's line and the likely cause."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import CheckpointError

from profiler.core.case import Trial
from profiler.core.errors import Exited, Invalid, Unsupported, UserError, exited, innermost_line, is_ours, is_theirs
from profiler.core.record import IN_BUILD, Environment, Note, Outcome, Record, Shortage
from profiler.core.safe_files import hide
from profiler.core.units import GIB, KIB, MIB
from profiler.measuring.devices import available_bytes, environment, open_device, versions
from profiler.measuring.failure_causes import CAUSE, CLOSURE, WHERE, lacks_closure
from profiler.rehearsal.device import is_open
from profiler.training.known_values import ZEROS
from profiler.training.own_checkpoints import HAS_OWN

OF_HOST = ("can't allocate memory",)  # c10/core/impl/alloc_cpu.cpp
OF_DEVICE = (  # besides torch.OutOfMemoryError
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
NOT_HOLLOW = {  # prefix of PyTorch's message -> what the hollow device lacks; users' mistakes fail earlier
    "cuDNN error: ": "no recurrent networks and no CTC loss of cuDNN",
    "cusolver error: ": "no linear algebra of cuSOLVER",
}
TWICE = (
    "DDP with a reentrant checkpoint around parameters that are used twice: each backward marks them ready; with "
    "use_reentrant=False in the model's checkpoints they are marked once"
)
WRITTEN = "modified by an inplace operation"  # torch/csrc/autograd/saved_variable.cpp
WRITTEN_INPUT = (
    "a checkpoint keeps its inputs to recompute from, and one was modified in place since: x += y and "
    "F.relu(x, inplace=True) do that, x = x + y does not"
)
CAUSES = {  # phrase of PyTorch's message -> likely cause
    "Tensor cached during selective activation checkpoint has been mutated": (  # torch/utils/checkpoint.py
        "the blocks modify a kept result in place, as nn.ReLU(inplace=True) does that of a convolution; "
        "inplace=False does not"
    ),
    "mark a variable ready only once": TWICE,  # torch/csrc/distributed/c10d/reducer.cpp
    "marked as ready twice": TWICE,
}
MACHINERY = re.compile(r"/torch/(_|utils/(flop_counter|_))")  # its dispatch, below an operator that the user calls
UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"


def attempt(trial: Trial, *, on_pass: Callable[[str], None], by: Callable[..., Record]) -> Record:
    """Return the trial's record; an error that the model raises becomes the outcome of this trial."""
    try:
        return by(trial, on_pass=on_pass)
    except SystemExit as error:
        return error_record(trial, exited(error))
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        return error_record(trial, error)


def error_record(trial: Trial, error: Exception) -> Record:
    """Return the record of a trial that raised: skipped, invalid, out_of_memory or failed; without secrets.

    The traceback, from the user's own code on, is printed to stderr, which is the trial's log.
    """
    if isinstance(error, (Unsupported, UserError)):
        return without_readings(trial, "skipped", hide(str(error)))
    if isinstance(error, Invalid):
        return without_readings(trial, "invalid", hide(str(error)))
    if absent := absent_library(error):
        return without_readings(trial, "skipped", absent)
    print(user_traceback(error), file=sys.stderr, end="")
    missing = shortage(error)
    if missing:
        return _out_of_memory(trial, error, missing)
    read = tuple(Note(code="GCP041", text=hide(text)) for text in _added(error) if text.startswith(ZEROS))
    return msgspec.structs.replace(without_readings(trial, "failed", error_detail(error)), notes=read)


def without_readings(trial: Trial, outcome: Outcome, detail: str) -> Record:
    """Return a record of the trial with an outcome and no readings."""
    software = versions()
    described = _with_device(trial, software) if is_open() else software  # its name says that nothing was measured
    return Record(case=trial.case, round=trial.round, outcome=outcome, detail=detail, environment=described)


def _out_of_memory(trial: Trial, error: Exception, missing: Shortage) -> Record:
    detail = _first_line(error).partition(" Including non-PyTorch")[0]  # what comes then fills half a screen
    where = f"{IN_BUILD}: " if IN_BUILD in _added(error) else ""
    record = without_readings(trial, "out_of_memory", where + detail)
    own = tuple(Note(code="GCP047", text=hide(text)) for text in _added(error) if text.startswith(HAS_OWN))
    described = _with_device(trial, record.environment)
    return msgspec.structs.replace(record, shortage=missing, environment=described, notes=own)


def _with_device(trial: Trial, software: Environment | None) -> Environment | None:
    """Return the environment with the trial's device, if the device still answers."""
    try:
        return software if trial.case.is_predicted else environment(open_device(trial.case.device))
    except RuntimeError:
        return software


def _added(error: BaseException) -> tuple[str, ...]:
    return tuple(text for text in getattr(error, "__notes__", ()) if isinstance(text, str))


def absent_library(error: Exception) -> str | None:
    """Return which CUDA library the hollow device lacks, and the line that used it; None for any other error."""
    lacking = next((name for begin, name in NOT_HOLLOW.items() if str(error).startswith(begin)), None)
    if lacking is None or not is_open():
        return None
    place = raised_at(error)
    return f"a rehearsal has {lacking}" + (f" ({place})" if place else "") + "; --device fake:h100 estimates it"


def error_detail(error: Exception) -> str:
    """Return what was raised and where, and the cause if it is known."""
    place, cause = raised_at(error), _cause(error)
    if isinstance(error, CheckpointError):
        return f"checkpoint mismatch: the recompute gives different tensors: {cause or _first_line(error)}"
    words = _first_line(error).partition(". ")[0] if cause else _first_line(error)
    kind = "" if isinstance(error, Exited) else f"{type(error).__name__}: "
    text = f"{kind}{words}" + (f" ({place})" if place else "")
    text = ", ".join([text, *(hide(note) for note in _added(error) if note.startswith(WHERE))])
    return f"{text}; {CAUSE}{cause}" if cause else text


def _cause(error: Exception) -> str | None:
    """Return the likely cause of an error, in words; None if unknown."""
    notes = [note for note in _added(error) if note.startswith(CAUSE)]
    if notes:
        return hide(notes[0].removeprefix(CAUSE))
    if lacks_closure(error):
        return CLOSURE
    frames = traceback.extract_tb(error.__traceback__)
    is_in_checkpoint = bool(frames) and frames[-1].filename == torch.utils.checkpoint.__file__
    causes = {**CAUSES, WRITTEN: WRITTEN_INPUT} if is_in_checkpoint else CAUSES
    return next((cause for phrase, cause in causes.items() if phrase in str(error)), None)


def _first_line(error: BaseException) -> str:
    return (hide(str(error)).strip().splitlines() or ["no message"])[0]  # after hiding, as a secret may have many lines


def shortage(error: BaseException) -> Shortage | None:
    """Return whose memory was too small, what was requested and what was free; None for any other error."""
    words = str(error)

    def says(phrases: tuple[str, ...]) -> bool:
        return isinstance(error, RuntimeError) and any(phrase in words for phrase in phrases)

    def size(pattern: str) -> int | None:
        match = re.search(pattern, words)
        return round(float(match[1]) * UNITS[match[2]]) if match else None

    if isinstance(error, torch.OutOfMemoryError) or says(OF_DEVICE):
        asked_bytes, free_bytes = size(f"[Tt]ried to allocate {SIZE}"), size(f"of which {SIZE} is free")
        return Shortage(of="device", asked_bytes=asked_bytes, free_bytes=free_bytes)
    if isinstance(error, MemoryError) or says(OF_HOST):
        return Shortage(of="host", asked_bytes=size(f"tried to allocate {SIZE}"), free_bytes=available_bytes())
    return None


def user_traceback(error: BaseException) -> str:
    """Return the traceback without the profiler's frames, and of libraries only those below the user's last frame.

    PyTorch's own frames that dispatch operators are left out there too, unless there is no frame of the user's.
    """
    whole = traceback.TracebackException.from_exception(error)
    _trim(whole)
    return "".join(whole.format())


def raised_at(error: BaseException) -> str | None:
    """Return the innermost line (`file.py:12`) of the user's, else of a library; None if the profiler raised it."""
    if theirs := innermost_line(error):
        return theirs
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return None if is_ours(frame.filename) else f"{Path(frame.filename).name}:{frame.lineno}"


def _trim(error: traceback.TracebackException) -> None:
    """Trim the traceback of an error and of those that caused it."""
    frames = list(error.stack)
    last = max((index for index, frame in enumerate(frames) if is_theirs(frame.filename)), default=-1)
    below = (
        index > last and not is_ours(frame.filename) and not (last >= 0 and MACHINERY.search(frame.filename))
        for index, frame in enumerate(frames)
    )
    kept = [frame for frame, is_below in zip(frames, below, strict=True) if is_theirs(frame.filename) or is_below]
    error.stack = traceback.StackSummary.from_list(kept)
    for cause in (error.__cause__, error.__context__):
        if cause is not None:
            _trim(cause)
