"""The model's own calls of torch.utils.checkpoint, counted and switched off except for `own` and `hf`; compiled code.

While a forward of the model runs, the code of the innermost function of `torch.utils.checkpoint.checkpoint` is
replaced, so that the call leads here by whatever name the model imported it. Checkpoints of gcprof's strategies are
recognized by their function, and go on to PyTorch's own code. Under torch.compile that function is called once, at
compile time: such checkpoints are on or off for as long as the compiled code lives. Nothing here imports Dynamo: if it
is not imported, nothing is compiled.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType
from typing import Any

import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor, fx, nn

from profiler.core.case import OWN, Case
from profiler.core.own_thread import replaced
from profiler.core.record import Note

GRAPHS = "torch._dynamo.output_graph"  # not imported as long as stand-ins replace Dynamo (engines/late_compiler.py)
TAGGED = "tag_activation_checkpoint"  # the name of a torch.utils.checkpoint call in a graph


def num_compiled() -> int:
    """Return the number of frames (functions, or parts of them) that Dynamo compiled in this process."""
    module: Any = sys.modules.get("torch._dynamo.utils") if GRAPHS in sys.modules else None
    return module.counters["frames"]["ok"] if module else 0


def forget() -> None:
    """Reset Dynamo as in a fresh process, since it gives up on code that it compiles too often.

    Does nothing if nothing was compiled.
    """
    if num_compiled():
        sys.modules["torch._dynamo"].reset()


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
    text = (
        f"{len(left_alone)} of {len(checkpointed)} checkpointed blocks run uncompiled, since a checkpoint breaks "
        "the compiled code around it: their time is not that of a checkpoint within compiled code; blocks that are "
        "compiled themselves (block.compile()) stay so"
    )
    return Note(code="GCP066", text=text) if left_alone else None


HAS_OWN = "the model's own checkpoints"  # what a note on them begins with
# PyTorch's function that all forms of checkpoint call; before torch 2.13 it is `checkpoint` itself
_TARGET: Any = inspect.unwrap(getattr(torch_checkpoint, "_checkpoint_impl", None) or torch_checkpoint.checkpoint)
_TAKES_TUPLE = _TARGET.__name__ == "_checkpoint_impl"  # (function, args, kwargs, *, options)
_SETTINGS = {
    *(name for name, one in inspect.signature(_TARGET).parameters.items() if one.kind is one.KEYWORD_ONLY),
    "preserve_rng_state",
}
_original = FunctionType(
    _TARGET.__code__, _TARGET.__globals__, _TARGET.__name__, _TARGET.__defaults__, _TARGET.__closure__
)
_original.__kwdefaults__ = _TARGET.__kwdefaults__
# Hooks around a selective checkpoint, such as save_on_cpu, get what it saves too; before torch 2.15 they never do.
RESPECTING: dict[str, Any] = dict.fromkeys({"respect_saved_tensors_hooks"} & _SETTINGS, True)


class OwnCalls:
    """Counts of the model's own checkpoints: calls in its last forward, and calls in its compiled code."""

    def __init__(self, *, are_off: bool = True) -> None:
        self.num = 0
        self.num_compiled = 0  # calls in the graphs that were compiled, which later forwards run
        self.are_off = are_off
        self.num_before = num_compiled()  # what this process had compiled before the model

    def has_compiled(self) -> bool:
        """Whether anything has been compiled since this object was made."""
        return num_compiled() > self.num_before


class WatchedLoss:
    """A workload's loss that counts the model's checkpoint calls, which are plain calls if `calls.are_off`."""

    def __init__(self, loss: Callable[[nn.Module, Any], Tensor], calls: OwnCalls) -> None:
        self._loss, self._calls = loss, calls

    def __call__(self, module: nn.Module, batch: Any) -> Tensor:
        self._calls.num = 0
        with _watched(self._calls):
            return self._loss(module, batch)


def remark(case: Case, calls: OwnCalls) -> Note | None:
    """Return a note on the model's own checkpoints after a forward of the case, or None."""
    has_some = calls.num or calls.num_compiled
    if case.strategy.name == OWN and not has_some:
        seen = "the model calls no torch.utils.checkpoint of its own"
        if calls.has_compiled():  # perhaps by a version of torch whose graphs are not understood
            seen = "no checkpoint of the model's own was seen, nor any in its compiled code"
        return Note(code="GCP001", text=f"{seen}; it is identical to `none`")
    if case != case.baseline or not has_some:
        return None
    where = "within its compiled code" if calls.num_compiled else f"{calls.num} calls in a forward"
    text = f"{HAS_OWN} ({where}) are switched off here and in all other rows"
    return Note(code="GCP047", text=f"{text} but `own` and `hf`: --strategies own measures them")


def checkpoint(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call PyTorch's checkpoint for gcprof's strategies; the model's own stay on or off in the recompute."""
    return torch_checkpoint.checkpoint(_Ours(function) if _states else function, *arguments, **keywords)


class _Ours:
    """A function under gcprof's checkpoint: own checkpoints in it are handled in the recompute too, but not counted."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._are_off = _states[-1].are_off

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if _states:
            return self._function(*arguments, **keywords)
        with _watched(OwnCalls(are_off=self._are_off)):
            return self._function(*arguments, **keywords)


_states: list[OwnCalls] = []  # of the forwards that are running, the innermost last


@contextmanager
def _watched(calls: OwnCalls) -> Iterator[None]:
    """Redirect the model's calls of checkpoint to `redirect` inside the context; count those in what is compiled."""
    with nullcontext() if _states else _counted():
        _states.append(calls)
        _TARGET.__code__ = _redirected.__code__
        try:
            yield
        finally:
            _states.pop()
            if not _states:
                _TARGET.__code__ = _original.__code__


def _counted() -> AbstractContextManager[Any]:
    """Return a context that counts the torch.utils.checkpoint calls in each graph that is compiled inside it.

    A graph with such calls bypasses PyTorch's on-disk cache: the graph is the same with checkpoints switched off, so
    the cache could give other processes code without them.
    """
    dynamo: Any = sys.modules.get(GRAPHS)
    compiler: Any = dynamo and getattr(dynamo.OutputGraph, "call_user_compiler", None)

    def counting(output: Any, module: fx.GraphModule, *arguments: Any, **keywords: Any) -> Any:
        graphs = [child.graph for child in module.modules() if isinstance(child, fx.GraphModule)]
        num = sum(getattr(node.target, "__name__", "") == TAGGED for graph in graphs for node in graph.nodes)
        _states[-1].num_compiled += num
        with sys.modules["torch._functorch.config"].patch(enable_autograd_cache=False) if num else nullcontext():
            return compiler(output, module, *arguments, **keywords)

    return replaced(dynamo.OutputGraph, call_user_compiler=counting) if compiler else nullcontext()


def _redirected(*arguments, **keywords):  # type: ignore[no-untyped-def]  # its code runs with PyTorch's globals
    from profiler.training.own_checkpoints import redirect  # noqa: PLC0415  its code knows only the names of torch.utils.checkpoint

    return redirect(arguments, keywords)


def redirect(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Run a call of PyTorch's innermost function in a watched forward: count it, and checkpoint or call plainly."""
    function = arguments[0] if arguments else keywords.get("function")
    if isinstance(function, _Ours) or function is None:  # None: a decorator is made, whose calls come here later
        return _original(*arguments, **keywords)
    calls = _states[-1]
    calls.num += 1
    if not calls.are_off:
        return _original(*arguments, **keywords)
    if _TAKES_TUPLE:
        return function(*arguments[1], **arguments[2])
    given = {name: value for name, value in keywords.items() if name not in {*_SETTINGS, "function"}}
    return function(*arguments[1:], **given)
