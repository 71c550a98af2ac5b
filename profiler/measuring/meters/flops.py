"""Floating-point operations of one step, counted operator by operator: knows nothing of clocks or strategies."""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from profiler.training.workload import Workload, loss_of


def read_flops(workload: Workload) -> dict[str, Any]:
    """The FLOP fields of Readings, from one forward and one backward; the recompute counts as backward.

    Counts matrix products, convolutions and attention, as torch.utils.flop_counter does.
    """
    with _Counter() as forward:
        loss = loss_of(workload)
    with _Counter() as backward:
        loss.backward()
    return {"forward_flops": forward.get_total_flops(), "backward_flops": backward.get_total_flops()}


class _Counter(FlopCounterMode):
    """Of the whole model alone: by module it would set hooks, under which no forward may call torch.autograd.grad."""

    def __init__(self) -> None:
        super().__init__(display=False)
        self.mod_tracker = _Nowhere()


class _Nowhere(ModuleTracker):
    def __enter__(self) -> _Nowhere:
        return self

    def __exit__(self, *args: object) -> None:
        return None
