"""Lines of the user's own code, told from those of libraries: the standard library alone."""

from __future__ import annotations

import builtins
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache
from traceback import walk_stack
from types import TracebackType
from typing import Any

LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]")
STANDARD = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
STRATEGIES = os.path.join(PACKAGE, "training") + os.sep  # gcprof's, which is no library where it is installed to edit
GENERATED = os.sep + "torchinductor_"  # folders of code that torch.compile made


@cache  # asked for each frame at each mark: without it a step of 10 ms took 5 % longer
def is_the_users(file: str) -> bool:
    """Whether a file is neither a library's, nor made by torch.compile, nor gcprof's."""
    path = os.path.realpath(file)
    is_generated = GENERATED in path or path.startswith(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "\0"))
    is_ours = is_generated or path.startswith((STANDARD, HERE, STRATEGIES))
    return not LIBRARY.search(path) and not is_ours and (os.path.isfile(path) or file in _cells())


def _cells() -> dict[str, int]:
    """Return the numbers of a notebook's cells by the names that their code has."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    return getattr(getattr(shell, "compile", None), "_filename_map", {})


def causes(error: BaseException | None) -> list[BaseException]:
    """Return an error with all that led to it."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this folder's files."""
    if trace is None:
        return None
    following = without_ours(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(HERE):
        return following
    return TracebackType(following, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


@cache
def short(file: str) -> str:
    """Return a file as seen from the working folder, or a notebook's cell by its number."""
    if file in _cells():
        return f"In [{_cells()[file]}]"
    path = os.path.relpath(file)
    return os.path.basename(file) if path.startswith("..") else path


def line_now() -> str:
    """Return the innermost line that is no library's: `train.py:61`."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def line_of(frames: Iterable[Mapping[str, Any]]) -> str:
    """Return the innermost line that is no library's, of frames as the allocator's history has them."""
    for frame in frames:
        if is_the_users(frame["filename"]):
            return f"{short(frame['filename'])}:{frame['line']}"
    return ""


def functions_now() -> list[str]:
    """Return the names of the functions that are being called, the innermost first."""
    return [frame.f_code.co_name for frame, _ in walk_stack(sys._getframe(1))]
