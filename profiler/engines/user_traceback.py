"""Whose line raised: the frames of an error that are the user's. Knows nothing of trials."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

OURS = Path(__file__).parents[1]
MODELS = OURS / "training" / "models"
ADAPTERS = ("user.py",)  # models' files that only call what is the user's
INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib"))


def told(error: BaseException) -> str:
    """The traceback without the profiler's own frames, nor a library's but those below the last of the user's."""
    whole = traceback.TracebackException.from_exception(error)
    _trim(whole)
    return "".join(whole.format())


def place(error: BaseException) -> str | None:
    """`file.py:12`: the innermost line that is the user's, else a library's; None where it was raised by ours."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if _is_theirs(frame)]
    if not theirs and _is_ours(frames[-1]):
        return None
    frame = (theirs or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _trim(error: traceback.TracebackException) -> None:
    """Of the error itself, and of those that it came from."""
    frames = list(error.stack)
    last = max((index for index, frame in enumerate(frames) if _is_theirs(frame)), default=-1)
    kept = [frame for index, frame in enumerate(frames) if _is_theirs(frame) or (index > last and not _is_ours(frame))]
    error.stack = traceback.StackSummary.from_list(kept)
    for other in (error.__cause__, error.__context__):
        if other is not None:
            _trim(other)


def _is_theirs(frame: traceback.FrameSummary) -> bool:
    return not _is_ours(frame) and not frame.filename.startswith((*INSTALLED, "<"))


def _is_ours(frame: traceback.FrameSummary) -> bool:
    """The built-in models count as the user's: they, too, are what is measured."""
    path = Path(frame.filename)
    is_model = path.is_relative_to(MODELS) and path.name not in ADAPTERS
    return path.is_relative_to(OURS) and not is_model
