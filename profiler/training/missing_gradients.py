"""Finds trainable parameters that get no gradient, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from profiler.core.units import few
from profiler.training.checkpointing.observed_forward import TensorUses
from profiler.training.kept_state import kept
from profiler.training.workload import Workload, tensors

MOST_NAMED = 3
REENTRANT = (
    "in a reentrant checkpoint of which no input needs a gradient; use_reentrant=False gives them theirs, and so does "
    "requires_grad_() on an input"
)
OFF = "used only where gradients are off, as under torch.no_grad"
DETACHED = "used, but the loss does not depend on it: detached, or its result is not used"
UNUSED = "not used in the forward"


def trainable(module: nn.Module) -> list[str]:
    """Return the names of the parameters that need a gradient."""
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def without_gradient(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters that need a gradient and have none, as they are after a backward."""
    parameters = dict(module.named_parameters())
    return tuple(name for name in trainable(module) if parameters[name].grad is None)


def explanation(workload: Workload, names: Sequence[str]) -> str:
    """Return a sentence: how many parameters get no gradient, which, and why; one forward is run to find the causes."""
    reasons = causes(workload, names)
    groups = [
        f"{few([name for name in names if reasons[name] == cause], MOST_NAMED)} ({cause})"
        for cause in dict.fromkeys(reasons.values())
    ]
    count = f"{len(names)} of {len(trainable(workload.module))} trainable parameters get no gradient"
    return f"{count}: {'; '.join(groups)}"


def causes(workload: Workload, names: Sequence[str]) -> dict[str, str]:
    """Return why each of these parameters gets no gradient, by how one forward uses it."""
    parameters = dict(workload.module.named_parameters())
    uses: dict[int, set[str]] = {id(parameters[name]): set() for name in names}

    def use(tensor: torch.Tensor) -> None:
        if id(tensor) in uses:
            uses[id(tensor)].add(_way(sys._getframe(1)))

    with kept(workload.module), TensorUses(use):
        workload.loss(workload.module, workload.batch)
    order = (DETACHED, REENTRANT, OFF)  # a use with gradients on means that the gradient was lost later
    return {name: next((cause for cause in order if cause in uses[id(parameters[name])]), UNUSED) for name in names}


def _way(frame: FrameType | None) -> str:
    """Return why a parameter that is used in this frame would get no gradient."""
    if torch.is_grad_enabled():
        return DETACHED
    while frame is not None:
        if frame.f_code is CheckpointFunction.forward.__code__:
            inputs = tensors(frame.f_locals["args"])
            return DETACHED if any(tensor.requires_grad for tensor in inputs) else REENTRANT
        frame = frame.f_back
    return OFF
