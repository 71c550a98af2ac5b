"""What torch.compile has made in this process: whether there is anything, its checkpoints, and how it is forgotten.

Nothing here imports Dynamo. Where it is not imported, nothing is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

from torch import fx, nn

from profiler.core.record import Note

COUNTERS = "torch._dynamo.utils"  # which a compiler that is only stood in for has not imported
GRAPHS = "torch._dynamo.output_graph"
CACHES = "torch._functorch.config"
REMARK = (
    "the compiled code around it: their time is not that of a checkpoint within compiled code; blocks that are "
    "compiled themselves (block.compile()) stay so"
)
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


def compiled_modules(module: nn.Module) -> frozenset[str]:
    """The names of the modules that are compiled: by module.compile(), torch.compile(module), or over their forward."""
    return frozenset(name for name, part in module.named_modules() if _is_compiled(part))


def _is_compiled(module: nn.Module) -> bool:
    is_by_itself = getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")
    return is_by_itself or hasattr(module.forward, "_torchdynamo_orig_callable")


def is_left_alone(block: str, compiled: Collection[str]) -> bool:
    """Whether a block that would be compiled with a module around it is not under a checkpoint.

    A checkpoint breaks the graph of what calls it, and switches the compiler off for what it calls, but for modules
    that are compiled themselves (`_disable_dynamo` over torch.utils.checkpoint.checkpoint).
    """
    is_within = any(not name or block.startswith(f"{name}.") for name in compiled)
    return is_within and not any(name == block or name.startswith(f"{block}.") for name in compiled)


def uncompiled_note(checkpointed: Sequence[str], compiled: Collection[str]) -> Note | None:
    """What there is to say of checkpointed blocks that are left alone, where some of these are."""
    left_alone = [block for block in checkpointed if is_left_alone(block, compiled)]
    text = f"{len(left_alone)} of {len(checkpointed)} checkpointed blocks run uncompiled, since a checkpoint breaks"
    return Note(code="GCP066", text=f"{text} {REMARK}") if left_alone else None
