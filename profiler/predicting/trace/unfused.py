"""Runs compiled code in a traced step operator by operator, saving for the backward what torch.compile saves.

Inductor's kernels take addresses, which fake tensors do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from profiler.core.own_thread import replaced
from profiler.training.compiled_code import forget

BACKENDS = "torch._dynamo.backends.debugging"


class Unfused:
    """Compiles graphs without Inductor's kernels, and counts them."""

    def __init__(self) -> None:
        self.num_graphs = 0

    def compile(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        """Return the graph with Inductor's decompositions and choice of saved tensors, without its fused kernels."""
        self.num_graphs += 1
        compiled: Callable[..., Any] = import_module(BACKENDS).aot_eager_decomp_partition(graph, inputs)
        return compiled


@contextmanager
def unfused() -> Iterator[Unfused]:
    """Compile without Inductor's kernels within. Code compiled before is not run within, nor the reverse."""
    made = Unfused()

    def call(wrapper: Any, graph: Any, inputs: Any, **patches: Any) -> Callable[..., Any]:
        return made.compile(graph, inputs)

    forget()
    try:
        with replaced(torch._TorchCompileInductorWrapper, __call__=call):
            yield made
    finally:
        forget()


def uncompiled(function: Any) -> None:
    """Have Dynamo not compile one of our functions, nor what it calls, when it runs amid compiled code."""
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
