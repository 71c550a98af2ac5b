"""Whose code a file is: the user's, an installed library's, or the profiler's own."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

OURS = Path(__file__).parents[1]
MODELS = OURS / "training" / "models"
ADAPTERS = ("user.py",)  # models' files that only call what is the user's
INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib"))
ELSEWHERE = re.compile(r"[\\/](?:site|dist)-packages[\\/]|[\\/]lib[\\/]python3\.\d+[\\/]|^\?\?$")  # or a line in C++


@cache
def is_theirs(filename: str) -> bool:
    """Whether a file of a traceback, of this machine or another, is neither a library's nor the profiler's."""
    return not is_ours(filename) and not filename.startswith((*INSTALLED, "<")) and not ELSEWHERE.search(filename)


@cache
def is_ours(filename: str) -> bool:
    """Whether a file is the profiler's; built-in models count as the user's, since they are what is measured."""
    path = Path(filename)
    is_model = path.is_relative_to(MODELS) and path.name not in ADAPTERS
    return path.is_relative_to(OURS) and not is_model


def shipped(*parts: str) -> Path:
    """Where a folder that comes with gcprof is: in the installed package, else beside it in the checkout."""
    installed = OURS.joinpath(*parts)
    return installed if installed.is_dir() else OURS.parent.joinpath(*parts)


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and all that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_line(frame: FrameType | None) -> str | None:
    """`train.py:12`: the innermost line that is neither a library's nor the profiler's; None where there is none."""
    for caller in frames(frame):
        path = caller.f_code.co_filename
        if is_theirs(path):
            return f"{Path(path).name}:{caller.f_lineno}"
    return None
