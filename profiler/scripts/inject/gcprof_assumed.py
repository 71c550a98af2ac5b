"""What is assumed of values that are not known, each told with its line: torch and the standard library alone.

`zeros` takes unknown numbers as zero. `none`, `all` and `balanced` say what comparisons of them give (false, true, each
second one), and which integers are chosen along a dimension: the first, the last, or one after the other.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

lines: Any = import_module("gcprof_lines")  # beside this file
FINITE = {"isnan", "isinf", "isfinite", "isposinf", "isneginf"}  # of which unknown numbers are finite
PRINTS = "_tensor_str.py"  # of torch: what it computes to print a tensor is no matter of the script


class Assumptions:
    """Chooses, and tells each choice once. `tell` gets rows for the watch's file."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], how: str) -> None:
        self.how = how
        self.counts: dict[int, str] = {}  # sizes above 1 that came from assumed values, and their lines
        self._tell = tell
        self._told: set[tuple[str, str, bool]] = set()

    def told(self, operator: str, shape: Any, *, is_size: bool = False) -> None:
        """Tell an assumption, or a size that came from one."""
        if _is_printing():
            return
        line = lines.line_now()
        if is_size:
            self.counts.update({int(size): line for size in shape if size > 1})
        if (operator, line, is_size) not in self._told:
            self._told.add((operator, line, is_size))
            self._tell(
                {"kind": "assumed", "operator": operator, "line": line, "shape": list(shape), "is_size": is_size}
            )

    def compared(self, name: str, args: Any) -> bool | None:
        """Return what a comparison of unknown numbers gives; None where it is as of zeros."""
        if self.how in ("zeros", "balanced") or _tests_finiteness(name, args):
            return None
        return self.how == "all"

    def alternates(self, name: str, args: Any) -> bool:
        """Whether each second of a comparison's results is true."""
        return self.how == "balanced" and not _tests_finiteness(name, args)

    def chosen(self, source: Any, dim: int | None, shape: Any) -> Any:
        """Return indices into the source along a dimension, or into all of it; of this shape, on the CPU."""
        is_kept = dim is not None and len(shape) == source.dim() > 0
        size = source.numel() if dim is None or not source.dim() else source.shape[dim]
        num = shape[dim] if is_kept else 1
        if self.how == "balanced" and num < size:
            spread = torch.arange(math.prod(shape), device="cpu") % size
            others = [extent for place, extent in enumerate(shape) if dim is None or place != dim % len(shape)]
            return spread.view(*others, num).movedim(-1, dim) if is_kept and dim is not None else spread.view(shape)
        first = size - num if self.how == "all" else 0
        along = torch.arange(first, first + num, device="cpu")
        if not is_kept or dim is None:
            return along[0].expand(shape)
        return along.view([-1 if place == dim % len(shape) else 1 for place in range(len(shape))]).expand(shape)


def _tests_finiteness(name: str, args: Any) -> bool:
    """Whether a comparison asks whether numbers are finite: of numbers with themselves, or with infinity."""
    is_same = len(args) > 1 and args[0] is args[1]
    is_infinite = any(isinstance(value, float) and not math.isfinite(value) for value in args)
    return name.partition(".")[0] in FINITE or is_same or is_infinite


def _is_printing() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith(PRINTS):
            return True
        frame = frame.f_back
    return False
