"""Floating-point operations of one step, counted operator by operator: knows nothing of clocks or strategies."""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from profiler.workload import Workload, loss_of


def read(workload: Workload) -> dict[str, Any]:
    """The FLOP fields of Readings, from one forward and one backward; the recompute counts as backward.

    Counts matrix products, convolutions and attention, as torch.utils.flop_counter does.
    """
    with FlopCounterMode(display=False) as forward:
        loss = loss_of(workload)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return {"forward_flops": forward.get_total_flops(), "backward_flops": backward.get_total_flops()}
