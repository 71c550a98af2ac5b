"""Detects recomputation by a model's own code: modules that run again within its backward, with gradients on."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from profiler.core.trace_data import Operator
from profiler.core.units import few
from profiler.core.user_code import frames
from profiler.training.checkpointing.observed_forward import run_forward
from profiler.training.workload import Workload

MOST_NAMED = 3  # modules


class OwnRecomputes:
    """Records what ran within a backward: the model's modules, and the custom Functions whose backward ran some.

    Autograd disables gradients in a backward, and a recompute enables them again; a hook that runs a module only to
    look at something does not.
    """

    def __init__(self) -> None:
        self.modules: dict[int, nn.Module] = {}  # by identity, in the order of their first run
        self.functions: set[str] = set()

    def watching(self) -> AbstractContextManager[Any]:
        """Watch the backward that runs in the block."""
        return register_module_forward_pre_hook(self._see)

    def _see(self, module: nn.Module, arguments: object) -> None:
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() == -1:
            return
        self.modules[id(module)] = module
        if function := _function_at_work():
            self.functions.add(function)

    def names(self, workload: Workload) -> list[str]:
        """Return the outermost modules that ran in the backward and that one more forward runs too."""
        modules = {name: module for name, module in workload.module.named_modules() if id(module) in self.modules}
        seen: dict[int, None] = {}
        with ExitStack() as watching:
            for module in modules.values():
                see = module.register_forward_pre_hook(lambda module, arguments: seen.setdefault(id(module)))
                watching.enter_context(see)
            run_forward(workload, keeps=True)
        return _outermost([name for name, module in modules.items() if id(module) in seen])


def remark(names: Sequence[str]) -> str:
    """Return the text of a note on modules that run again in the backward."""
    told = few([name or "the whole model" for name in names], MOST_NAMED)
    runs = "run" if len(names) > 1 else "runs"
    text = f"the model recomputes by its own means: {told} {runs} again in its backward, with gradients on"
    return (
        f"{text}; this is not switched off here nor in any other row, and whether it changes gradients is not verified"
    )


def of_trace(operators: Sequence[Operator]) -> list[str]:
    """Return the outermost modules that a traced step runs again in its backward."""
    forward, again = (
        dict.fromkeys(operator.module for operator in operators if operator.phase == phase)
        for phase in ("forward", "recompute")
    )
    return _outermost([name for name in forward if name and name in again])


def _outermost(names: Collection[str]) -> list[str]:
    """Return the names of modules that are not within another of them."""
    return [
        name
        for name in names
        if not any(name != other and (not other or name.startswith(f"{other}.")) for other in names)
    ]


def _function_at_work() -> str | None:
    """Return the custom Function whose backward is running; None within a recompute by PyTorch's checkpoint.

    That recompute begins where a backward asks for a saved tensor, which may be a custom Function's backward.
    """
    function = getattr(type(torch._C._current_autograd_node()), "_forward_cls", None)
    code = getattr(getattr(function, "backward", None), "__code__", None)
    for frame in frames(sys._getframe(1)):
        if frame.f_code is code:
            return str(function.__name__)  # type: ignore[union-attr]  # it has a backward
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            return None
    return None
