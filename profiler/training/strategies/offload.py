"""Strategy `offload`: moves saved tensors to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu

from profiler.core.record import Applied, Note
from profiler.training.workload import Workload


def apply(workload: Workload) -> Applied:
    """Moves what the forward saves to the host and back (torch.autograd.graph.save_on_cpu); pinned on CUDA."""
    on_cuda = any(parameter.is_cuda for parameter in workload.module.parameters())
    offloaded = _Offloaded(workload.module.forward, pinned=on_cuda and torch.cuda.is_available())
    workload.module.forward = offloaded
    text = "on a CPU there is nowhere to offload to: what is saved is copied within the same memory"
    notes = () if on_cuda else (Note(code="GCP008", text=text),)
    return Applied(notes=notes, switch=offloaded.switch)


class _Offloaded:
    """A module's forward with offloading; no closure, so that a deep copy of the module runs its own forward."""

    def __init__(self, forward: Callable[..., Any], *, pinned: bool) -> None:
        self._forward, self._pinned, self._is_on = forward, pinned, True

    def switch(self, on: bool) -> None:
        self._is_on = on

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if not self._is_on:
            return self._forward(*arguments, **keywords)
        with save_on_cpu(pin_memory=self._pinned):
            return self._forward(*arguments, **keywords)
