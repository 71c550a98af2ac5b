"""Reads the FLOPs of a step, those of attention kernels included."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

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


KERNELS = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")


def _forward(query: Any, key: Any, value: Any, *arguments: Any, **keywords: Any) -> int:
    """Return the FLOPs of scores and of results; each head of keys and values serves a group of queries' heads."""
    batch, heads, queries, width = query.shape
    flops: int = 2 * batch * heads * queries * key.shape[-2] * (width + value.shape[-1])
    return flops


def _backward(gradient: Any, query: Any, key: Any, value: Any, *arguments: Any, **keywords: Any) -> int:
    """Return the FLOPs of the scores again, and of the gradients of scores, queries, keys and values."""
    batch, heads, queries, width = query.shape
    flops: int = 2 * batch * heads * queries * key.shape[-2] * (3 * width + 2 * value.shape[-1])
    return flops


_forward._get_raw = _backward._get_raw = True  # type: ignore[attr-defined]  # the counter passes tensors
FORMULAS: dict[Any, Callable[..., int]] = {
    packet: formula
    for ending, formula in (("", _forward), ("_backward", _backward))
    for kernel in KERNELS
    if (packet := getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}{ending}", None)) is not None
}
