"""Levers that change the optimizer alone: its kernels, and the bytes of its state."""

from __future__ import annotations

import msgspec
import torch

from profiler.core.case import Case
from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.training.workload import Workload


def fused(workload: Workload, case: Case) -> tuple[Workload, Applied]:
    """One kernel for the optimizer's whole step (fused=True), without the copies that its foreach kernels make."""
    return _changed(workload, fused=True, foreach=None)


def _changed(workload: Workload, **options: bool | None) -> tuple[Workload, Applied]:
    def change(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        kind = type(optimizer)
        if kind.__module__.partition(".")[0] != "torch" or not options.keys() <= optimizer.defaults.keys():
            raise Unsupported(f"its optimizer, {kind.__name__}, has no option {next(iter(options))}")
        groups = [{**group, **options} for group in optimizer.param_groups]
        try:
            return kind(groups, **{"lr": optimizer.defaults["lr"], **options})
        except RuntimeError as error:  # "`fused=True` requires all the params to be floating point Tensors ..."
            raise Unsupported(str(error).splitlines()[0]) from error

    changes = (*workload.optimizer_changes, change)
    return msgspec.structs.replace(workload, optimizer_changes=changes), Applied()
