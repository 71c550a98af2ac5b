"""Strategy `compile-budget`: torch.compile with an activation memory budget."""

from __future__ import annotations

from typing import Literal

from torch import _dynamo, nn
from torch._functorch import config
from torch._inductor import config as inductor

from profiler.core.case import Choice
from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.training.blocks import refuse_none
from profiler.training.workload import Workload


def apply(workload: Workload, *, budget: float = 0.5, per: Literal["block", "graph"] = "block") -> Applied:
    """Compiles with an activation memory budget, a fraction from 0 to 1, of each block or of the whole graph.

    Its gradients have been wrong in silence with dropout: look at the gradients column. Raises Unsupported for a budget
    that is no fraction. Source: torch._functorch.config.activation_memory_budget.
    """
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
