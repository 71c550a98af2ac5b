"""Compiled code in a traced step: what torch.compile keeps for the backward, run operator by operator.

Inductor's kernels take addresses, of which fake tensors have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from profiler.training.compiled_code import forget

BACKENDS = "torch._dynamo.backends.debugging"


class Unfused:
    """How many graphs were compiled without their kernels."""

    def __init__(self) -> None:
        self.num_graphs = 0

    def compile(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        """The graph with Inductor's decompositions and its choice of what is saved, and without its fused kernels."""
        self.num_graphs += 1
        compiled: Callable[..., Any] = import_module(BACKENDS).aot_eager_decomp_partition(graph, inputs)
        return compiled


@contextmanager
def unfused() -> Iterator[Unfused]:
    """Compile without Inductor's kernels within. Nothing that is compiled before is run within, nor the reverse."""
    made = Unfused()

    def call(wrapper: Any, graph: Any, inputs: Any, **patches: Any) -> Callable[..., Any]:
        return made.compile(graph, inputs)

    forget()
    try:
        with mock.patch.object(torch._TorchCompileInductorWrapper, "__call__", call):
            yield made
    finally:
        forget()


def uncompiled(function: Any) -> None:
    """Have Dynamo leave alone a function of ours, and what it calls, between the parts of what it compiles."""
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
