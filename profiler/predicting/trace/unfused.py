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
from profiler.training.checkpointing.own_checkpoints import forget

BACKENDS = "torch._dynamo.backends.debugging"


@contextmanager
def unfused() -> Iterator[list[Any]]:
    """Compile without Inductor's kernels within, and yield the graphs as they are compiled."""
    graphs: list[Any] = []

    def call(wrapper: Any, graph: Any, inputs: Any, **patches: Any) -> Callable[..., Any]:
        graphs.append(graph)
        compiled: Callable[..., Any] = import_module(BACKENDS).aot_eager_decomp_partition(graph, inputs)
        return compiled

    forget()  # code compiled before is not run within, nor the reverse
    try:
        with replaced(torch._TorchCompileInductorWrapper, __call__=call):
            yield graphs
    finally:
        forget()


def uncompiled(function: Any) -> None:
    """Have Dynamo not compile one of our functions, nor what it calls, when it runs amid compiled code."""
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
