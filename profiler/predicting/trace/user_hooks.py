"""Follows the model's hooks on saved tensors where these only copy to the host and back, and refuses others on CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from profiler.core.errors import Unsupported
from profiler.core.own_thread import replaced
from profiler.core.user_code import is_ours
from profiler.predicting.trace.tracer import on_host

OF_TORCH = ("torch.utils.checkpoint",)  # modules whose hooks are subclasses and rerun the model's own code
OWN = (
    "the model packs what autograd saves by hooks of its own (saved_tensors_hooks), which an estimate does not follow "
    "to the host and back; `gcprof rehearse` runs them"
)
_REFUSAL: ContextVar[str | None] = ContextVar("_REFUSAL", default=None)


@contextmanager
def user_hooks(*, on_cuda: bool) -> Iterator[None]:
    """Trace save_on_cpu as on CUDA, and raise Unsupported at other hooks there; on a CPU, hooks run as they are."""
    enter = saved_tensors_hooks.__enter__

    def entered(hooks: Any) -> Any:
        code = getattr(hooks.pack_hook, "__code__", None)
        is_moved = on_cuda and isinstance(hooks, save_on_cpu)
        if not is_moved and (type(hooks).__module__ in OF_TORCH or (code and is_ours(code.co_filename))):
            return enter(hooks)
        if reason := _REFUSAL.get() or (OWN if on_cuda and not is_moved else None):
            raise Unsupported(reason)
        return enter(saved_tensors_hooks(_to_host, torch.empty_like) if is_moved else hooks)

    with replaced(saved_tensors_hooks, __enter__=entered):
        yield


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    with on_host():
        return torch.empty_like(tensor)


@contextmanager
def refused_hooks(reason: str) -> Iterator[None]:
    """Raise Unsupported with this reason if the model enters hooks of its own within."""
    token = _REFUSAL.set(reason)
    try:
        yield
    finally:
        _REFUSAL.reset(token)
