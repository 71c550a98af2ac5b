"""Reads the FLOPs of a step, those of attention kernels included."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from profiler.measuring.meters.attention_flops import FORMULAS
from profiler.training.workload import Workload, loss_of


def read(
    workload: Workload,
    look: Callable[[torch.Tensor], None] = lambda loss: None,
    *,
    watching: AbstractContextManager[None] | None = None,
) -> dict[str, Any]:
    """Return the FLOP fields of Readings, from one forward and one backward; the recompute counts as backward.

    Counts matrix products, convolutions and attention, as torch.utils.flop_counter does. `look` is called with
    the loss before the backward, which runs within `watching`.
    """
    with _Counter() as forward:
        loss = loss_of(workload)
    look(loss)
    with watching or nullcontext(), _Counter() as backward:
        loss.backward()
    return {"forward_flops": forward.get_total_flops(), "backward_flops": backward.get_total_flops()}


class _Counter(FlopCounterMode):
    """Counts only for the whole model: hooks, as needed by module, would forbid torch.autograd.grad in a forward."""

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=FORMULAS)
        self.mod_tracker = _Nowhere()


class _Nowhere(ModuleTracker):
    def __enter__(self) -> _Nowhere:
        return self

    def __exit__(self, *args: object) -> None:
        return None
