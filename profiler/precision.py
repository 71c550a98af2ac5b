"""The precisions of a training step: what they do to a workload. Knows nothing of checkpointing."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils import _pytree as pytree

from profiler.workload import Workload

CAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
AMP = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


def in_precision(workload: Workload, name: str) -> Workload:
    """The workload in a precision: `bf16` and `fp16` cast weights and batch, `amp-*` run the forward under autocast."""
    if name in AMP:
        return msgspec.structs.replace(workload, loss=_under_autocast(workload.loss, AMP[name]))
    dtype = CAST[name]
    if dtype is None:
        return workload
    batch = pytree.tree_map_only(
        torch.Tensor, lambda one: one.to(dtype) if one.is_floating_point() else one, workload.batch
    )
    return msgspec.structs.replace(workload, module=workload.module.to(dtype), batch=batch)


def scaler(name: str, device: str) -> torch.amp.GradScaler | None:
    """What keeps small gradients of amp-fp16 from vanishing; None for the others."""
    return torch.amp.GradScaler(device.partition(":")[0]) if name == "amp-fp16" else None


def _under_autocast(loss: Any, dtype: torch.dtype) -> Any:
    def cast(module: nn.Module, batch: Any) -> torch.Tensor:
        device = next(module.parameters()).device.type
        with torch.autocast(device, dtype=dtype):
            result: torch.Tensor = loss(module, batch)
        return result

    return cast
