"""Strategies that act on the whole model: a Hugging Face switch, offloading to the host, compiling with a budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu

from profiler.core.case import Choice
from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Note
from profiler.training.blocks import refuse_none
from profiler.training.workload import Workload


def hugging_face(workload: Workload) -> Applied:
    """Calls the model's own activation_checkpointing_enable(), or enable_gradient_checkpointing() of diffusers.

    Before transformers 5.23 it is gradient_checkpointing_enable(). Raises Unsupported where the model has none of
    these, or where it does not support it.
    """
    module: Any = workload.module
    named = [word for word in ("activation", "gradient") if hasattr(module, f"{word}_checkpointing_enable")]
    if not named and not hasattr(module, "enable_gradient_checkpointing"):
        raise Unsupported(
            "the model has no activation_checkpointing_enable(), as a Hugging Face model has; where your code switches "
            "its checkpoints on, `own` measures them"
        )

    def switch(on: bool) -> None:
        if not named:
            (module.enable_gradient_checkpointing if on else module.disable_gradient_checkpointing)()
        elif on:
            getattr(module, f"{named[0]}_checkpointing_enable")({"use_reentrant": False})
        else:
            getattr(module, f"{named[0]}_checkpointing_disable")()

    try:
        switch(True)
    except ValueError as error:  # "... does not support gradient checkpointing"
        raise Unsupported(str(error).splitlines()[0]) from error
    enabled = [submodule for submodule in module.modules() if getattr(submodule, "gradient_checkpointing", False)]
    if not enabled:
        raise Unsupported("its switch for gradient checkpointing reached no layer of this model")
    return Applied(split=f"{len(enabled)} switched on", keeps_own=True, switch=switch)


def offload(workload: Workload) -> Applied:
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


def compile_budget(workload: Workload, *, budget: float = 0.5, per: Literal["block", "graph"] = "block") -> Applied:
    """Compiles with an activation memory budget, a fraction from 0 to 1, of each block or of the whole graph.

    Its gradients have been wrong in silence with dropout: look at the gradients column. Raises Unsupported for a budget
    that is no fraction. Source: torch._functorch.config.activation_memory_budget.
    """
    from torch import _dynamo  # noqa: PLC0415  takes seconds to import, which only this needs
    from torch._functorch import config  # noqa: PLC0415
    from torch._inductor import config as inductor  # noqa: PLC0415

    if not 0 <= budget <= 1:
        raise Unsupported(f"budget={budget:g} is not a fraction from 0 to 1")
    _dynamo.reset()  # compiled code is reused if code and guards match, and the budget is not a guard
    config.activation_memory_budget = budget  # global to this process, which runs only this trial
    inductor.fallback_random = True  # the same random numbers as eager PyTorch, so that dropout can be compared
    reference = (
        Choice.of("compile-budget", {"budget": 1.0} | ({"per": per} if per != "block" else {})) if budget < 1 else None
    )
    parts: list[nn.Module] = [workload.module]
    if per == "block":
        refuse_none(workload.blocks)
        parts = [workload.module.get_submodule(name) for name in workload.blocks]
    for part in parts:
        part.compile()
    return Applied(split=f"{len(parts)} compiled", changes_kernels=True, reference=reference)
