"""What torch.compile has made in this process: whether there is anything, its checkpoints, and how it is forgotten.

Nothing here imports Dynamo. Where it is not imported, nothing is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

from torch import fx

COUNTERS = "torch._dynamo.utils"  # which a compiler that is only stood in for has not imported
GRAPHS = "torch._dynamo.output_graph"
CACHES = "torch._functorch.config"
TAGGED = "tag_activation_checkpoint"  # what a call of torch.utils.checkpoint is in a graph


def num_compiled() -> int:
    """How many functions, and parts of functions, Dynamo has made code of in this process."""
    module: Any = sys.modules.get(COUNTERS)
    return module.counters["frames"]["ok"] if module else 0


def forget() -> None:
    """Have what was compiled compiled anew, as in a fresh process: Dynamo gives up on code that it compiles too often.

    Without effect where nothing has been compiled.
    """
    if num_compiled():
        sys.modules["torch._dynamo"].reset()


@contextmanager
def counted_checkpoints(count: Callable[[int], None]) -> Iterator[None]:
    """Tell `count` of each graph that is compiled within how many calls of torch.utils.checkpoint are in it.

    A graph that has some is compiled past PyTorch's cache on disk, which would keep code without its checkpoints for
    other processes, since the graph is the same where they are switched off.
    """
    dynamo: Any = sys.modules.get(GRAPHS)
    compiler: Any = dynamo and getattr(dynamo.OutputGraph, "call_user_compiler", None)

    def counting(output: Any, module: fx.GraphModule, *arguments: Any, **keywords: Any) -> Any:
        num = _num_checkpoints(module)
        count(num)
        with sys.modules[CACHES].patch(enable_autograd_cache=False) if num else nullcontext():
            return compiler(output, module, *arguments, **keywords)

    with mock.patch.object(dynamo.OutputGraph, "call_user_compiler", counting) if compiler else nullcontext():
        yield


def _num_checkpoints(module: fx.GraphModule) -> int:
    graphs = [child.graph for child in module.modules() if isinstance(child, fx.GraphModule)]
    return sum(getattr(node.target, "__name__", "") == TAGGED for graph in graphs for node in graph.nodes)
