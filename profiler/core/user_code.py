"""Tells whether a file is the user's code, an installed library's, or the profiler's own."""

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
ADAPTERS = ("user.py", "live.py")  # files of models that only call the user's code
INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib"))
ELSEWHERE = re.compile(r"[\\/](?:site|dist)-packages[\\/]|[\\/]lib[\\/]python3\.\d+[\\/]|^\?\?$")  # ??: C++ code


@cache
def is_theirs(filename: str) -> bool:
    """Whether a file in a traceback, of this machine or another, is neither a library's nor the profiler's."""
    return not is_ours(filename) and not filename.startswith((*INSTALLED, "<")) and not ELSEWHERE.search(filename)


@cache
def is_ours(filename: str) -> bool:
    """Whether a file is the profiler's; built-in models count as the user's, since they are what is measured."""
    path = Path(filename)
    is_model = path.is_relative_to(MODELS) and path.name not in ADAPTERS
    return path.is_relative_to(OURS) and not is_model


def shipped(*parts: str) -> Path:
    """Return the path of a folder that comes with gcprof: in the installed package, else next to it in the checkout."""
    installed = OURS.joinpath(*parts)
    return installed if installed.is_dir() else OURS.parent.joinpath(*parts)


def exited(error: SystemExit) -> Exited:
    """Return the error to raise if the user's code called sys.exit, with its message or the one given to argparse."""
    code = error.code
    said = _of_argparse(error.__traceback__) if isinstance(code, int | None) else str(code)
    call = f"sys.exit({'' if code is None else code})" if isinstance(code, int | None) else "sys.exit"
    text = f"the model's code called {call}" + (f": {said}" if said else "")
    return Exited(text).with_traceback(error.__traceback__)


def _of_argparse(place: TracebackType | None) -> str | None:
    """Return the message given to `ArgumentParser.error`, which exits with 2; None if it was not called."""
    while place is not None:
        code = place.tb_frame.f_code
        if code.co_name == "error" and Path(code.co_filename).name == "argparse.py":
            return str(place.tb_frame.f_locals.get("message"))
        place = place.tb_next
    return None


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and all its callers, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_line(frame: FrameType | None) -> str | None:
    """Return the innermost line of the user's code as `train.py:12`; None if there is none."""
    for caller in frames(frame):
        path = caller.f_code.co_filename
        if is_theirs(path):
            return f"{Path(path).name}:{caller.f_lineno}"
    return None


def innermost_line(error: BaseException) -> str | None:
    """Return the innermost line of the user's code in an error's traceback, as `train.py:12`; None if there is none."""
    lines = [(frame.f_code.co_filename, number) for frame, number in walk_tb(error.__traceback__)]
    theirs = [f"{Path(path).name}:{number}" for path, number in lines if is_theirs(path)]
    return theirs[-1] if theirs else None
