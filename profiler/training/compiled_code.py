"""torch.compile in this process: how much code it compiled, the checkpoints in it, and its reset.

Nothing here imports Dynamo: if it is not imported, nothing is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import fx, nn

from profiler.core.own_thread import replaced
from profiler.core.record import Note

COUNTERS = "torch._dynamo.utils"
GRAPHS = "torch._dynamo.output_graph"  # not imported as long as stand-ins replace Dynamo (predicting/late_compiler.py)
CACHES = "torch._functorch.config"
REMARK = (
    "the compiled code around it: their time is not that of a checkpoint within compiled code; blocks that are "
    "compiled themselves (block.compile()) stay so"
)
TAGGED = "tag_activation_checkpoint"  # the name of a torch.utils.checkpoint call in a graph


def num_compiled() -> int:
    """Return the number of frames (functions, or parts of them) that Dynamo compiled in this process."""
    module: Any = sys.modules.get(COUNTERS) if GRAPHS in sys.modules else None
    return module.counters["frames"]["ok"] if module else 0


def forget() -> None:
    """Reset Dynamo as in a fresh process, since it gives up on code that it compiles too often.

    Does nothing if nothing was compiled.
    """
    if num_compiled():
        sys.modules["torch._dynamo"].reset()


@contextmanager
def counted_checkpoints(count: Callable[[int], None]) -> Iterator[None]:
    """Call `count` with the number of torch.utils.checkpoint calls in each graph that is compiled inside the context.

    A graph with such calls bypasses PyTorch's on-disk cache: the graph is the same with checkpoints switched off, so
    the cache could give other processes code without them.
    """
    dynamo: Any = sys.modules.get(GRAPHS)
    compiler: Any = dynamo and getattr(dynamo.OutputGraph, "call_user_compiler", None)

    def counting(output: Any, module: fx.GraphModule, *arguments: Any, **keywords: Any) -> Any:
        graphs = [child.graph for child in module.modules() if isinstance(child, fx.GraphModule)]
        num = sum(getattr(node.target, "__name__", "") == TAGGED for graph in graphs for node in graph.nodes)
        count(num)
        with sys.modules[CACHES].patch(enable_autograd_cache=False) if num else nullcontext():
            return compiler(output, module, *arguments, **keywords)

    with replaced(dynamo.OutputGraph, call_user_compiler=counting) if compiler else nullcontext():
        yield


def compiled_modules(module: nn.Module) -> frozenset[str]:
    """Return the names of the compiled modules: by module.compile(), torch.compile(module), or a compiled forward."""
    return frozenset(
        name
        for name, part in module.named_modules()
        if getattr(part, "_compiled_call_impl", None) is not None
        or hasattr(part, "_orig_mod")
        or hasattr(part.forward, "_torchdynamo_orig_callable")
    )


def is_left_alone(block: str, compiled: Collection[str]) -> bool:
    """Whether a block that is compiled only as part of a module around it runs uncompiled under a checkpoint.

    A checkpoint breaks the graph of its caller and disables the compiler for what it calls, except for modules that are
    compiled themselves (`_disable_dynamo` on torch.utils.checkpoint.checkpoint).
    """
    is_within = any(not name or block.startswith(f"{name}.") for name in compiled)
    return is_within and not any(name == block or name.startswith(f"{block}.") for name in compiled)


def uncompiled_note(checkpointed: Sequence[str], compiled: Collection[str]) -> Note | None:
    """Return a note on checkpointed blocks that run uncompiled; None if there are none."""
    left_alone = [block for block in checkpointed if is_left_alone(block, compiled)]
    text = f"{len(left_alone)} of {len(checkpointed)} checkpointed blocks run uncompiled, since a checkpoint breaks"
    return Note(code="GCP066", text=f"{text} {REMARK}") if left_alone else None
