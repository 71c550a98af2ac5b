"""Precisions of a training step: casts, autocast and gradient scaling."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils import _pytree as pytree

from profiler.training.workload import Workload

CAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
AMP = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


def in_precision(workload: Workload, name: str) -> Workload:
    """Return the workload in a precision: `bf16` and `fp16` cast weights and batch, `amp-*` use autocast."""
    if name in AMP:
        loss = workload.loss

        def cast(module: nn.Module, batch: Any) -> torch.Tensor:
            with torch.autocast(next(module.parameters()).device.type, dtype=AMP[name]):
                return loss(module, batch)

        return msgspec.structs.replace(workload, loss=cast)
    dtype = CAST[name]
    if dtype is None:
        return workload
    batch = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, workload.batch
    )
    return msgspec.structs.replace(workload, module=workload.module.to(dtype), batch=batch)


def scaler(name: str, device: str) -> torch.amp.GradScaler | None:
    """Return the gradient scaler of amp-fp16; None for the others."""
    return torch.amp.GradScaler(device.partition(":")[0]) if name == "amp-fp16" else None


def unscaled(
    leaves: Collection[torch.Tensor],
    scaler: torch.amp.GradScaler | None,
    step: Callable[[torch.amp.GradScaler | None], torch.Tensor],
) -> torch.Tensor:
    """Run a step up to the gradients of leaves and divide them by their scale, a power of two; return its loss.

    If they overflow, the step runs again at half the scale, as the scaler does from one step to the next.
    """
    loss = step(scaler)
    if scaler is None:
        return loss
    while scaler.get_scale() > 1 and bool(loss.isfinite()):
        values = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in _gradients(leaves)]
        if all(bool(value.isfinite().all()) for value in values):
            break
        scaler.update(scaler.get_scale() / 2)
        loss = step(scaler)
    for gradient in _gradients(leaves):
        gradient.div_(scaler.get_scale())
    return loss


def _gradients(leaves: Collection[torch.Tensor]) -> list[torch.Tensor]:
    return [leaf.grad for leaf in leaves if leaf.grad is not None]
