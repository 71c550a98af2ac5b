"""Whose code a file is: the user's, an installed library's, or the profiler's own."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType

from profiler.core.errors import Exited

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


def exited(error: SystemExit) -> Exited:
    """What to raise where the user's code called sys.exit: with what it said, or what argparse said for it."""
    code = error.code
    said = _of_argparse(error.__traceback__) if isinstance(code, int | None) else str(code)
    call = f"sys.exit({'' if code is None else code})" if isinstance(code, int | None) else "sys.exit"
    text = f"the model's code called {call}" + (f": {said}" if said else "")
    return Exited(text).with_traceback(error.__traceback__)


def _of_argparse(place: TracebackType | None) -> str | None:
    """What `ArgumentParser.error`, which exits with 2, was given to say."""
    while place is not None:
        code = place.tb_frame.f_code
        if code.co_name == "error" and Path(code.co_filename).name == "argparse.py":
            return str(place.tb_frame.f_locals.get("message"))
        place = place.tb_next
    return None


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


def innermost_line(error: BaseException) -> str | None:
    """`train.py:12`: the innermost such line on the way to an error; None where there is none."""
    lines = [(frame.f_code.co_filename, number) for frame, number in walk_tb(error.__traceback__)]
    theirs = [f"{Path(path).name}:{number}" for path, number in lines if is_theirs(path)]
    return theirs[-1] if theirs else None
