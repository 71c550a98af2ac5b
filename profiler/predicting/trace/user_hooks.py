"""Runs the model's own hooks on saved tensors under a trace, and refuses those that cannot run without data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from profiler.core.errors import Unsupported
from profiler.core.own_thread import replaced
from profiler.core.user_code import is_ours
from profiler.predicting.trace.fake_tensors import without_guesses
from profiler.predicting.trace.host_state import HostMoves

OF_TORCH = ("torch.utils.checkpoint",)  # modules whose hooks are subclasses and rerun the model's own code
ADDRESSED = (torch.Tensor, torch.UntypedStorage)  # types with a data_ptr, which is 0 for fake ones
_REFUSAL: ContextVar[str | None] = ContextVar("_REFUSAL", default=None)
_PLACES: ContextVar[list[str]] = ContextVar("_PLACES", default=[])  # noqa: B039  the default is never written; of hooks that ran
_IN_HOOK: ContextVar[bool] = ContextVar("_IN_HOOK", default=False)


@contextmanager
def user_hooks(*, on_cuda: bool) -> Iterator[None]:
    """Trace what the model's own `saved_tensors_hooks` pack and unpack; with `on_cuda`, also moves to the host.

    Autograd keeps what a hook packs, which is tracked like every storage. Raises Unsupported, from the step, if a hook
    fails on tensors without data or asks for values or addresses.
    """
    enter = saved_tensors_hooks.__enter__

    def entered(hooks: Any) -> Any:
        if type(hooks).__module__ in OF_TORCH or _is_ours(hooks.pack_hook):
            return enter(hooks)
        if reason := _REFUSAL.get():
            raise Unsupported(reason)
        _PLACES.get().append(_place(hooks.pack_hook))
        pair = (_Followed(hook, on_cuda=on_cuda) for hook in (hooks.pack_hook, hooks.unpack_hook))
        return torch._C._autograd._push_saved_tensors_default_hooks(*pair)

    token = _PLACES.set([])
    with ExitStack() as stack:
        stack.callback(_PLACES.reset, token)
        stack.enter_context(replaced(saved_tensors_hooks, __enter__=entered))
        for kind in ADDRESSED:
            stack.enter_context(replaced(kind, data_ptr=_address(kind.data_ptr)))
        yield


def refuse_cycles(cycle_bytes: int) -> None:
    """Raise Unsupported if hooks ran and only the garbage collector frees some of the step."""
    if _PLACES.get() and cycle_bytes:
        raise Unsupported(
            f"what the model's own hook on saved tensors ({_PLACES.get()[0]}) packs is in a reference cycle, so that "
            "Python's collector frees it at an unpredictable time"
        )


@contextmanager
def refused_hooks(reason: str) -> Iterator[None]:
    """Raise Unsupported with this reason if the model enters hooks of its own within."""
    token = _REFUSAL.set(reason)
    try:
        yield
    finally:
        _REFUSAL.reset(token)


class _Followed:
    """Runs one of the model's own hooks on tensors without data."""

    def __init__(self, hook: Callable[[Any], Any], *, on_cuda: bool) -> None:
        self._hook, self._on_cuda = hook, on_cuda

    def __call__(self, value: Any) -> Any:
        token = _IN_HOOK.set(True)
        try:
            with ExitStack() as stack:
                stack.enter_context(without_guesses())
                if self._on_cuda:
                    stack.enter_context(HostMoves())
                return self._hook(value)
        except Unsupported:
            raise
        except Exception as error:  # user code that is not written for fake tensors can raise anything
            text = f"the model's own hook on saved tensors ({_place(self._hook)}) cannot run without data"
            line = next(iter(str(error).splitlines()), "") or type(error).__name__
            raise Unsupported(f"{text}: {line}") from error
        finally:
            _IN_HOOK.reset(token)


def _is_ours(hook: Any) -> bool:
    code = getattr(hook, "__code__", None)
    return code is not None and is_ours(code.co_filename)


def _place(hook: Any) -> str:
    code = getattr(hook, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else getattr(hook, "__qualname__", repr(hook))


def _address(read: Callable[[Any], int]) -> Callable[[Any], int]:
    def address(held: Any) -> int:
        if _IN_HOOK.get():
            raise Unsupported(
                "the model's own hook on saved tensors asks for addresses (data_ptr), which a trace lacks"
            )
        return read(held)

    return address
