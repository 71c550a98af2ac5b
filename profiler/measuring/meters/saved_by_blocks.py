"""Reads in which modules the graph of a loss keeps what it saves: whether other blocks than those found hold most."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from profiler.core.units import bytes_text
from profiler.measuring.meters.needless_graph import resting, saved_bytes
from profiler.training.blocks import offered_blocks
from profiler.training.workload import Workload, bytes_by_storage, tensors

GAIN = 0.25  # of all that is saved: blocks that lower it by less are not named, as a backward takes more than that


class _Call(NamedTuple):
    """One call of a module: autograd numbers the nodes of a forward, and those it made begin at `first`."""

    module: str
    first: int
    last: int  # the first number after it
    inputs: dict[int, int]  # bytes by storage


class SavedByBlocks:
    """Watches the calls of every module that could be a block."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._offered = offered_blocks(workload.module)
        self._calls: list[_Call] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note each call within; the hooks change nothing."""
        names = dict.fromkeys(name for names in self._offered.values() for name in names)
        modules = [(name, self._workload.module.get_submodule(name)) for name in names]
        begun, resident = list[int](), bytes_by_storage(resting(self._workload))

        def enter(module: Any, arguments: Any, keywords: Any) -> None:
            begun.append(torch._C._autograd._get_sequence_nr())

        def leave(name: str) -> Any:
            def left(module: Any, arguments: Any, keywords: Any, output: Any) -> None:
                last, inputs = torch._C._autograd._get_sequence_nr(), tensors((arguments, keywords))
                given = {storage: size for storage, size in bytes_by_storage(inputs).items() if storage not in resident}
                self._calls.append(_Call(name, begun.pop(), last, given))

            return left

        handles = [module.register_forward_pre_hook(enter, with_kwargs=True) for _, module in modules]
        handles += [module.register_forward_hook(leave(name), with_kwargs=True) for name, module in modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def remark(self, loss: torch.Tensor) -> str | None:
        """Return what is outside of the workload's blocks and which others hold it; None unless these save more."""
        savers: dict[int, tuple[int, int, int]] = {}  # by storage: its bytes, the first and the last node that saves it
        for node, saved in saved_bytes(loss, self._workload).items():
            for storage, nbytes in saved.items():
                number = node._sequence_nr()
                _, first, last = savers.get(storage, (nbytes, number, number))
                savers[storage] = nbytes, min(first, number), max(last, number)
        total = sum(nbytes for nbytes, _, _ in savers.values())
        own = self._left(self._workload.blocks, savers)
        if not total or own.within > total / 2:
            return None
        others = [(self._left(names, savers), pattern) for pattern, names in self._offered.items() if pattern]
        best, pattern = min(others, default=(own, ""))
        if best.most > min(own.most, total) - GAIN * total:
            return None
        percent = (1 - own.within / total) * 100
        return (
            f"{percent:.0f} % of what the forward saves is outside of the blocks that strategies checkpoint; with "
            f"--blocks '{pattern}', `all` keeps and recomputes at most {bytes_text(best.most)} of {bytes_text(total)}"
        )

    def _left(self, names: Sequence[str], savers: dict[int, tuple[int, int, int]]) -> _Left:
        """Return what stays where each of these blocks is a checkpoint, with what its largest recompute brings back."""
        calls = sorted((call for call in self._calls if call.module in names), key=lambda call: call.first)
        begins = [call.first for call in calls]
        inputs = {storage: nbytes for call in calls for storage, nbytes in call.inputs.items()}

        def at(number: int) -> int | None:
            """Return the place of the call that made this node."""
            place = bisect_right(begins, number) - 1
            return place if place >= 0 and number < calls[place].last else None

        kept, within, freed = 0, 0, [0] * len(calls)
        for storage, (nbytes, first, last) in savers.items():
            begin, end = at(first), at(last)
            within += nbytes if begin is not None and end is not None else 0
            if begin is None or begin != end or storage in inputs:
                kept += nbytes
            else:
                freed[begin] += nbytes
        kept += sum(nbytes for storage, nbytes in inputs.items() if storage not in savers)
        return _Left(most=kept + max(freed, default=0), within=within)


class _Left(NamedTuple):
    most: int  # bytes that are kept, and recomputed at once
    within: int  # bytes that are saved by these blocks alone
