"""How a model is made on a rehearsed device, whose tensors have no values; and what asks for values there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.core.errors import Exited, Invalid, Unsupported, UserError
from profiler.core.user_code import frames, is_theirs, users_line
from profiler.training.known_values import Constants, Following, value_of
from profiler.training.workload import Workload

ZEROS = "the step reads values, which are zeros or leftovers here"
WHOLE = "all() of values that are not known here is taken as true: a mask masks nothing, and would take more if it did"
BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
UNTAGGED = {  # have sizes that follow from values too, and no tag that says so
    "aten::_coalesce",
    "aten::_to_sparse",
    "aten::_to_sparse_csr",
    "aten::_to_sparse_csc",
    "aten::_to_sparse_bsr",
    "aten::_to_sparse_bsc",
    "torchvision::nms",
}
HARMLESS = {  # no size follows from what these read
    torch.nn.init.__file__,  # draws until all numbers are within bounds
    torch.autograd.graph.__file__,  # moves what is saved to the host and back
}
MASK_DIMENSIONS = 2  # sequences and their tokens; of positions one number a sequence is asked, of NaN all dimensions
MOST_NAMED = 3
T = TypeVar("T")
unknown_masks: dict[str | None, None] = {}  # the users' lines under which all() was taken as true


class ValueReads(TorchDispatchMode):
    """While it is entered, collects what asks a CUDA tensor for values: the operator, and the user's line."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: dict[str, None] = {}  # `nonzero (train.py:12)`, in the order of their first call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            out = func(*args, **kwargs)
        except Exception as error:
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
        """Note the operator and the user's line, where it was given a CUDA tensor."""
        files = {frame.f_code.co_filename for frame in frames(sys._getframe(2))}
        if files & HARMLESS or not any(isinstance(value, torch.Tensor) and value.is_cuda for value in arguments):
            return
        line = users_line(sys._getframe(2))
        name = func.name().partition("::")[2].partition(".")[0].removeprefix("_local_scalar_dense") or "item"
        self.places[f"{name} ({line})" if line else name] = None


def _reads_values(func: Any, arguments: Any) -> bool:
    """Whether an operator's result or its size follows from values; indices do not, unless they are a mask."""
    if func is torch.ops.aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in arguments[1])
    return bool(BY_VALUE & set(func.tags)) or func.name().partition(".")[0] in UNTAGGED


def _fails_by_values(func: Any, arguments: Any, keywords: Any, error: Exception) -> bool:
    """Whether an operator that failed takes such arguments where they have no values: it has read them itself."""
    if isinstance(error, torch.OutOfMemoryError) or " error: " in str(error):  # the last are CUDA's and its libraries'
        return False
    given = [leaf for leaf in pytree.tree_leaves((arguments, keywords)) if isinstance(leaf, torch.Tensor)]
    if not all(tensor.is_cuda for tensor in given):
        return False
    try:
        unmade = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (arguments, keywords))
        func(*unmade[0], **unmade[1])
    except Exception:  # noqa: BLE001  an operator may refuse in any way
        return False
    return True


def _is_copied_to_host(out: Any, arguments: Any) -> bool:
    """Whether an operator brought a CUDA tensor to the host, as `.cpu()` and `.tolist()` do."""
    is_on_host = isinstance(out, torch.Tensor) and out.device.type == "cpu"
    return is_on_host and any(isinstance(value, torch.Tensor) and value.is_cuda for value in arguments)


def made_on_device(build: Callable[[], T], device: str) -> tuple[T, str | None]:
    """Calls a model's factory under a rehearsed device, so that no weight takes host memory.

    A factory that reads values there, or fails for anything but want of memory, is called once more under the CPU;
    the second result says why.
    """
    reads = ValueReads()
    try:
        with torch.device(device), Constants(), reads, Following():
            built = build()
        if not reads.places:
            return built, None
        why = f"it reads values: {reads}"
    except (torch.OutOfMemoryError, Exited, Invalid, Unsupported, UserError):
        raise
    except Exception as error:  # noqa: BLE001  the user's factory may raise anything, for want of values too
        why = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
    with torch.device("cpu"):
        return build(), why


def made_without_storages(build: Callable[[], Workload], device: str) -> Workload:
    """Calls a factory on the meta device, and makes its batch as zeros, of which views stay views."""
    with torch.device("meta"), Constants(), Following():
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
    """Answers, from now on in this process, what transformers asks of masks and positions whose values are not known.

    `tensor.all()` of such a CUDA tensor is true, as of whole sequences: masks mask nothing (`unknown_masks` has them),
    and positions are those of one sequence each. In the user's own code it is true too, so that checks for NaN pass;
    ValueReads sees it there.
    """
    if not getattr(torch.Tensor.all, "is_passed", False):
        torch.Tensor.all = _passing(torch.Tensor.all)  # type: ignore[method-assign]
    masks = sys.modules.get("transformers.masking_utils")
    every = getattr(masks, "fast_all", None)  # the same by a sum
    if every is not None and not getattr(every, "is_passed", False):
        masks.fast_all = _passing(every)  # type: ignore[union-attr]


def _passing(every: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def passed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = every(tensor, *args, **kwargs)  # takes what it takes
        if args or kwargs or not tensor.is_cuda or value_of(out) is not None:
            return out
        true = torch.ones((), dtype=torch.bool, device="cpu")
        if torch.compiler.is_compiling():
            return true
        is_asked_by_user = is_theirs(sys._getframe(1).f_code.co_filename)
        if is_asked_by_user or tensor.ndim == MASK_DIMENSIONS:
            unknown_masks[users_line(sys._getframe(1))] = None
        return out.copy_(true) if is_asked_by_user else true  # on the device, where ValueReads sees that it is read

    passed.is_passed = True  # type: ignore[attr-defined]
    return passed
