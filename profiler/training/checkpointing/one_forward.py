"""Runs one forward that leaves everything as it was, and reports the tensors that it uses and saves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from profiler.core.errors import Unsupported
from profiler.training import plain_state
from profiler.training.workload import Workload, restored, tensors

METADATA = {  # functions of a tensor that do not use its contents
    "__get__", "__hash__", "__len__", "__repr__", "data_ptr", "dim", "element_size", "get_device", "is_complex",
    "is_contiguous", "is_floating_point", "ndimension", "nelement", "numel", "size", "storage_offset", "stride",
    "untyped_storage",
}  # fmt: skip


NO_HOOKS = "support saved tensor hooks"  # torch.func's message, as in a forward that calls torch.func.grad


class NotKept(Exception):
    """A backward within the forward needs a saved tensor that was not kept."""


class Refused(Unsupported):
    """The forward allows no hooks on what autograd saves."""


def run_forward(workload: Workload, *, keeps: bool, saved: Callable[[torch.Tensor], None] | None = None) -> None:
    """Run one forward and leave everything as it was; `saved` is called with each tensor that autograd would save.

    Raises NotKept if the forward differentiates and nothing is kept, and Refused if it allows no hooks, which only a
    forward that `keeps` all and calls no `saved` does without.
    """

    def pack(tensor: torch.Tensor) -> torch.Tensor | None:
        if saved is not None:
            saved(tensor)  # every node of the graph keeps this hook: see observed_forward._Saved
        return tensor.detach() if keeps else None

    hooks = nullcontext() if keeps and saved is None else saved_tensors_hooks(pack, _unpack)
    try:
        with restored(workload.module), plain_state.kept(workload.module), hooks:
            workload.loss(workload.module, workload.batch)
    except RuntimeError as error:
        if NO_HOOKS not in str(error):
            raise
        text = "its forward, which calls torch.func, allows no hooks on what autograd saves; `all` needs none"
        raise Refused(f"what the blocks save cannot be seen: {text}") from error


def _unpack(kept: torch.Tensor | None) -> torch.Tensor:
    if kept is None:
        raise NotKept
    return kept


class TensorUses(TorchFunctionMode):
    """Function mode that calls `use` with every tensor that is used, in Python or by an operator."""

    def __init__(self, use: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._use = use

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        result = function(*arguments, **(keywords or {}))
        if tensors(result) or function.__name__ not in METADATA:
            for tensor in tensors((arguments, keywords)):
                self._use(tensor)
        return result
