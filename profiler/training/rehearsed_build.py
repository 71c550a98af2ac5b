"""Builds a model on a rehearsed device, whose tensors have no values, and detects code that reads values there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.core.errors import Exited, Invalid, Unsupported, UserError
from profiler.core.user_code import frames, is_theirs, users_line
from profiler.training.known_values import Constants, Following, in_factory, value_of
from profiler.training.levers import memory
from profiler.training.workload import Workload

ZEROS = "the step reads values, which are zeros or leftovers here"
NOT_REAL = "sizes that follow from them are not real"
WHOLE = "all() of values that are not known here is taken as true: a mask masks nothing, and would take more if it did"
BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
UNTAGGED = {  # operators whose result sizes depend on values, although no tag says so
    "aten::_coalesce",
    "aten::_to_sparse",
    "aten::_to_sparse_csr",
    "aten::_to_sparse_csc",
    "aten::_to_sparse_bsr",
    "aten::_to_sparse_bsc",
    "torchvision::nms",
}
HARMLESS = {  # no size depends on the values that these files read
    torch.nn.init.__file__,  # draws until all numbers are within bounds
    torch.autograd.graph.__file__,  # moves saved tensors to the host and back
    memory.__file__,  # inputs of checkpoints
}
MASK_DIMENSIONS = 2  # (batch, time); positions are tested with one number per sequence, NaN checks with all dimensions
MOST_NAMED = 3
T = TypeVar("T")
unknown_masks: dict[str | None, None] = {}  # the user's lines where all() was assumed to be true


class ValueReads(TorchDispatchMode):
    """Dispatch mode that collects reads of a CUDA tensor's values: the operator and the user's line."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: dict[str, None] = {}  # `nonzero (train.py:12)`, in the order of their first call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            out = func(*args, **kwargs)
        except Exception as error:  # raised again
            if _reads_values(func, args) or _fails_by_values(func, args, kwargs, error):
                self._note(func, args)
            raise
        if _reads_values(func, args) or _is_copied_to_host(out, args):
            self._note(func, args)
        return out

    def __str__(self) -> str:
        names = list(self.places)
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return ", ".join(names[:MOST_NAMED]) + more

    def _note(self, func: Any, arguments: Any) -> None:
        """Note the operator and the user's line if an argument is a CUDA tensor and the caller is not HARMLESS."""
        files = {frame.f_code.co_filename for frame in frames(sys._getframe(2))}
        if files & HARMLESS or not any(isinstance(value, torch.Tensor) and value.is_cuda for value in arguments):
            return
        line = users_line(sys._getframe(2))
        name = func.name().partition("::")[2].partition(".")[0].removeprefix("_local_scalar_dense") or "item"
        self.places[f"{name} ({line})" if line else name] = None


def _reads_values(func: Any, arguments: Any) -> bool:
    """Whether an operator's result or its size depends on values; an index tensor counts only if it is a mask."""
    if func is torch.ops.aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in arguments[1])
    return _is_by_value(func)


@cache
def _is_by_value(func: Any) -> bool:
    return bool(BY_VALUE & set(func.tags)) or func.name().partition(".")[0] in UNTAGGED


def _fails_by_values(func: Any, arguments: Any, keywords: Any, error: Exception) -> bool:
    """Whether an operator that failed accepts the same arguments on the meta device: then values made it fail."""
    if isinstance(error, torch.OutOfMemoryError) or " error: " in str(error):  # in messages of CUDA and its libraries
        return False
    given = [leaf for leaf in pytree.tree_leaves((arguments, keywords)) if isinstance(leaf, torch.Tensor)]
    if not all(tensor.is_cuda for tensor in given):
        return False
    try:
        unmade = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (arguments, keywords))
        func(*unmade[0], **unmade[1])
    except Exception:  # noqa: BLE001  an operator may fail in any way
        return False
    return True


def _is_copied_to_host(out: Any, arguments: Any) -> bool:
    """Whether an operator brought a CUDA tensor to the host, as `.cpu()` and `.tolist()` do."""
    is_on_host = isinstance(out, torch.Tensor) and out.device.type == "cpu"
    return is_on_host and any(isinstance(value, torch.Tensor) and value.is_cuda for value in arguments)


def made_on_device(build: Callable[[], T], device: str) -> tuple[T, str | None]:
    """Call a model's factory under a rehearsed device, so that no weight takes host memory.

    A factory that reads values there, or fails other than by lack of memory or one of gcprof's own errors, is called
    once more under the CPU; the second result says why.
    """
    reads = ValueReads()
    try:
        with in_factory(device), Constants(), reads, Following():
            built = build()
        if not reads.places:
            return built, None
        why = f"it reads values: {reads}"
    except (torch.OutOfMemoryError, Exited, Invalid, Unsupported, UserError):
        raise
    except Exception as error:  # noqa: BLE001  the user's factory may raise anything, also because values are missing
        why = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
    with in_factory("cpu"):
        return build(), why


def made_without_storages(build: Callable[[], Workload], device: str) -> Workload:
    """Call a factory on the meta device, and fill its batch with zeros on the device; views stay views."""
    with in_factory("meta"), Constants(), Following():
        workload = build()
    storages: dict[int, torch.UntypedStorage] = {}

    def zeros(tensor: torch.Tensor) -> torch.Tensor:
        unmade = tensor.untyped_storage()
        if unmade._cdata not in storages:
            made = torch.zeros(unmade.nbytes(), dtype=torch.uint8, device=device)
            storages[unmade._cdata] = made.untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device=device)
        made_zeros = empty.set_(storages[unmade._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())
        made_zeros.known_value = value_of(tensor)  # type: ignore[attr-defined]
        return made_zeros

    return msgspec.structs.replace(workload, batch=pytree.tree_map_only(torch.Tensor, zeros, workload.batch))


def pass_tests() -> None:
    """Patch `Tensor.all` for the rest of this process, for transformers' tests of masks and positions without values.

    For such a CUDA tensor it returns true, as for whole sequences: masks mask nothing (`unknown_masks` lists them), and
    each row of positions is one sequence. In the user's own code it also returns true, so that checks for NaN pass, but
    there ValueReads notes it.
    """
    if not getattr(torch.Tensor.all, "is_passed", False):
        torch.Tensor.all = _passing(torch.Tensor.all)  # type: ignore[method-assign]
    masks = sys.modules.get("transformers.masking_utils")
    every = getattr(masks, "fast_all", None)  # the same test, implemented as a sum
    if every is not None and not getattr(every, "is_passed", False):
        masks.fast_all = _passing(every)  # type: ignore[union-attr]


def _passing(every: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def passed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = every(tensor, *args, **kwargs)  # run for the memory that it takes
        if args or kwargs or not tensor.is_cuda or value_of(out) is not None:
            return out
        true = torch.ones((), dtype=torch.bool, device="cpu")
        if torch.compiler.is_compiling():
            return true
        is_asked_by_user = is_theirs(sys._getframe(1).f_code.co_filename)
        if is_asked_by_user or tensor.ndim == MASK_DIMENSIONS:
            unknown_masks[users_line(sys._getframe(1))] = None
        return out.copy_(true) if is_asked_by_user else true  # on the device, so that ValueReads sees it being read

    passed.is_passed = True  # type: ignore[attr-defined]
    return passed
