"""Runs one forward that leaves everything as it was, and reports the tensors that it uses and saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from profiler.training import plain_state
from profiler.training.workload import Workload, restored, tensors

METADATA = {  # functions of a tensor that do not use its contents
    "__get__", "__hash__", "__len__", "__repr__", "data_ptr", "dim", "element_size", "get_device", "is_complex",
    "is_contiguous", "is_floating_point", "ndimension", "nelement", "numel", "size", "storage_offset", "stride",
    "untyped_storage",
}  # fmt: skip


class NotKept(Exception):
    """A backward within the forward needs a saved tensor that was not kept."""


def run_forward(
    workload: Workload, *, keeps: bool, saved: Callable[[torch.Tensor], None] = lambda tensor: None
) -> None:
    """Run one forward and leave everything as it was; `saved` is called with each tensor that autograd would save.

    Raises NotKept if the forward differentiates and nothing is kept.
    """

    def pack(tensor: torch.Tensor) -> torch.Tensor | None:
        saved(tensor)  # every node of the graph keeps this hook: see observed_forward._Saved
        return tensor.detach() if keeps else None

    with restored(workload.module), plain_state.kept(workload.module), saved_tensors_hooks(pack, _unpack):
        workload.loss(workload.module, workload.batch)


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
