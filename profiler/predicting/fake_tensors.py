"""Runs models and steps without memory or compute: PyTorch's fake tensors, with known values and set routings."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from os import PathLike
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
)
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from profiler.core.errors import Unsupported
from profiler.core.own_thread import replaced, stop_if_interrupted
from profiler.predicting.step_tracer import is_in_place, is_sum_in_place
from profiler.training.known_values import Draws, computed, follow, is_hosts, placed, tested
from profiler.training.workload import uncollected

aten = torch.ops.aten
DEVICE = torch.ops.prim.device.default  # called by autograd several times for every tensor
KNOWN = 1024  # elements: building a model reads no larger tensors
FACTORIES = {
    *(aten.arange.default, aten.arange.start, aten.arange.start_step, aten.linspace.default, aten.full.default),
    *(aten.ones.default, aten.zeros.default, aten.scalar_tensor.default, aten.eye.default),
}
QUANTIZERS = {aten.quantize_per_tensor, aten.quantize_per_tensor_dynamic, aten.quantize_per_channel}
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
NUM_KNOWN = 2**24  # elements: the largest tensor with known values, such as a mask of tokens by experts
_CHOOSING: dict[Any, tuple[int | None, int]] = {  # places of the indices (None: the sole result) and of `dim`
    aten.topk: (1, 2),
    aten.sort: (1, 1),
    aten.max: (1, 1),
    aten.min: (1, 1),
    aten.kthvalue: (1, 2),
    aten.argmax: (None, 1),
    aten.argmin: (None, 1),
    aten.argsort: (None, 1),
}
Known = Callable[[torch.Tensor], torch.Tensor]  # makes a fake tensor with the values of a real one

LAZY = (nn.UninitializedParameter, nn.UninitializedBuffer)
NEW_PARAMETER = nn.Parameter.__new__
DEEPCOPY: Callable[..., torch.Tensor] = torch.Tensor.__deepcopy__


@contextmanager
def fake_tensors(routing: str | None = None) -> Iterator[FakeTensors]:
    """Make every tensor created within fake; modules are neither initialized nor copied for a conversion.

    Compiled code runs operator by operator: Inductor's kernels take addresses, which fake tensors do not have.
    `routing` (balanced, worst) sets where tokens go if data would decide; None leaves that unknown.
    """
    compiler = torch.compile

    def compiled(*arguments: Any, **keywords: Any) -> Any:
        if not fakes.is_compiled:
            fakes.is_compiled = True
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        return compiler(*arguments, **keywords)

    with as_fake(), uncollected(), ExitStack() as stack:
        fakes = FakeTensors(routing)
        stack.enter_context(mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", fakes.most_known))
        stack.enter_context(mock.patch.object(fake_tensor.log, "disabled", True))  # it logs what it raises, at length
        stack.enter_context(replaced(torch, compile=compiled))
        yield stack.enter_context(fakes)


@contextmanager
def unseen() -> Iterator[None]:
    """Make transformers treat fake tensors as real ones: otherwise it builds masks that a real run skips."""
    imports, masks = (sys.modules.get(f"transformers.{name}") for name in ("utils.import_utils", "masking_utils"))
    every: Any = getattr(masks, "fast_all", None)

    def fast_all(mask: torch.Tensor) -> Any:
        out = every(mask)  # `mask.all()` by a sum; as with `all()`, a result of unknown value counts as true
        out.is_true = True
        return out

    with ExitStack() as stack:
        if imports:
            stack.enter_context(replaced(imports, is_fake_tensor=lambda tensor: False))
        if every:
            stack.enter_context(replaced(masks, fast_all=fast_all))
        yield


class FakeTensors(FakeTensorMode):
    """Fake tensors with known values if these are small and follow from the code alone, not from data.

    Building a model reads such values: the depth and widths of its stages, the rates of stochastic depth. Tests are
    also answered from values of the batch (known_values). If only data could decide, `all()` is taken as true, other
    tests as false (`equal` by shape) and floats as 0, each counted in `num_guesses`; integers, which are sizes, are
    refused (DataDependentOutputException).
    """

    def __init__(self, routing: str | None = None) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.fake_tensor_converter = _Converter(copy_data=False, export=False)
        self.num_guesses = 0
        self.is_compiled = False  # whether any code is to be compiled
        self.most_known = NUM_KNOWN if routing else KNOWN
        self._routing = routing
        self._has_chosen = False  # whether an operator has chosen among entries by unknown values
        self._draws: Draws | None = Draws()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled within, and asking takes 10 us a call

    def __enter__(self) -> Any:
        """Enter the mode, or leave it if that fails: within an operator, PyTorch aborts where it is still on."""
        depth = len(self.enter_stack)
        try:
            return super().__enter__()
        except BaseException:  # raised again
            if len(self.enter_stack) > depth:
                self.__exit__(None, None, None)
            raise

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device
        stop_if_interrupted()
        if (answer := tested(func, args)) is not None:
            return answer
        if is_hosts(func, args, kwargs or {}):
            with no_dispatch():
                return func(*args, **(kwargs or {}))
        try:
            out = self._outcome(func, types, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            out = placed(computed(func, args, kwargs or {}, self._draws), self._made_of)
            if out is None:
                raise
        follow(func, args, kwargs or {}, out, self._draws)
        return out

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Make drawn numbers unknown within: each step draws others, and a recompute repeats those of its forward."""
        draws, self._draws = self._draws, None
        try:
            yield
        finally:
            self._draws = draws

    def _outcome(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is aten._local_scalar_dense.default:
            return self._scalar(func, args[0])
        if func._overloadpacket in QUANTIZERS:
            raise Unsupported("a quantized tensor cannot be traced: without data its type and its size are not known")
        if func in (aten.equal.default, aten.allclose.default):
            self.num_guesses += 1
            # ATen functions test a condition by comparing it with `true`
            is_test = args[0].dtype == torch.bool and args[0].ndim == 0
            return getattr(args[0], "is_true", False) if is_test else args[0].shape == args[1].shape
        if func in FACTORIES:
            new: Any = super().__torch_dispatch__(func, (), args, kwargs or {})
            if new.numel() <= self.most_known and new.device.type == "cpu":
                with no_dispatch():
                    real = func(*args, **(kwargs or {}))
                new = self._made_of(real, make_constant=True)
            return new
        if (_only_writes(func) and not _is_known(args[0])) or is_in_place(func, args):
            return args[0] if isinstance(args[0], torch.Tensor) else None
        if is_sum_in_place(func, args):
            return super().__torch_dispatch__(aten.alias.default, (), (args[0],))
        if self._routing:
            with self:
                args = without_masks(func, args)
        out: Any = super().__torch_dispatch__(func, types, args, kwargs)
        if func._overloadpacket is aten.all:
            out.is_true = True
        is_choice = chooses(func, args)
        self._has_chosen = self._has_chosen or is_choice
        if not (is_choice and self._routing):
            return out
        known = partial(self._made_of, make_constant=True)
        return with_choices(out, func, args, kwargs or {}, self._routing, known)

    def _made_of(self, real: torch.Tensor, *, make_constant: bool = False) -> torch.Tensor:
        return self.fake_tensor_converter.from_real_tensor(self, real, make_constant=make_constant)

    def _scalar(self, func: Any, tensor: Any) -> bool | int | float:
        constant = getattr(tensor, "constant", None)
        if constant is not None:
            value: bool | int | float = constant.item()
            return value
        if not tensor.is_floating_point() and tensor.dtype != torch.bool:
            raise DataDependentOutputException(func)
        if self._has_chosen and tensor.dtype == torch.bool and not self._routing:
            raise DataDependentOutputException(func)  # it may ask whether an expert has tokens
        self.num_guesses += 1
        return getattr(tensor, "is_true", False) if tensor.dtype == torch.bool else 0.0


class _Converter(FakeTensorConverter):
    """Converts tensors without a log entry, for which torch would import its compiler."""

    def from_real_tensor(self, *arguments: Any, **keywords: Any) -> Any:
        return super().from_real_tensor(*arguments, **{**keywords, "trace": False})


@cache
def _only_writes(func: Any) -> bool:
    """Whether the operator is elementwise and in place: its result is its first argument, so it need not run."""
    name = func._overloadpacket.__name__
    is_in_place = func._schema.is_mutable and name.endswith("_") and func.namespace == "aten"
    return bool(is_in_place and (torch.Tag.pointwise in func.tags or name.startswith("_foreach_")))


def _is_known(written: Any) -> bool:
    """Whether the written tensor has a known value, as an optimizer's step count has."""
    first = written if isinstance(written, torch.Tensor) else written[0]
    return getattr(first, "constant", None) is not None


def chooses(func: Any, args: Any) -> bool:
    """Whether the operator chooses among entries by unknown values."""
    return func._overloadpacket in _CHOOSING and getattr(args[0], "constant", None) is None


def with_choices(out: Any, func: Any, args: Any, kwargs: Any, routing: str, known: Known) -> Any:
    """Return the results of an operator that chooses, with values for its indices along a dimension.

    Balanced ones cycle through the entries, row by row; the worst are the same in all rows.
    """
    scores, (index, where) = args[0], _CHOOSING[func._overloadpacket]
    if index is not None and not isinstance(out, (tuple, list)):
        return out  # over all entries, as `max()`
    dimension = kwargs.get("dim", args[where] if len(args) > where else -1)
    if not isinstance(dimension, int) or not scores.ndim:
        return out  # over the whole tensor, as `argmax()`
    indices = out if index is None else out[index]
    dimension, is_kept = dimension % scores.ndim, indices.ndim == scores.ndim
    shape = [*indices.shape] if is_kept else [*indices.shape[:dimension], 1, *indices.shape[dimension:]]
    each = shape.pop(dimension)
    num_rows = torch.Size(shape).numel()
    numbers = torch.arange(num_rows * each) if routing == "balanced" else torch.arange(each).repeat(num_rows)
    rows = (numbers % scores.shape[dimension]).reshape(*shape, each).movedim(-1, dimension)
    chosen = known((rows if is_kept else rows.squeeze(dimension)).contiguous())
    return chosen if index is None else type(out)((*out[:index], chosen, *out[index + 1 :]))


def without_masks(func: Any, args: Any) -> Any:
    """Return the arguments of an indexing operator, with positions in place of masks of known values."""
    if func._overloadpacket not in INDEXING:
        return args
    indices: list[torch.Tensor | None] = []
    for index in args[1]:
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        if is_mask and getattr(index, "constant", None) is not None:
            indices += aten.nonzero.default(index).unbind(1)
        else:
            indices.append(index)
    return (args[0], indices, *args[2:])


@contextmanager
def as_fake() -> Iterator[None]:
    """Let modules be built, copied and converted within although their tensors are fake."""
    initialisers = [name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")]
    with ExitStack() as stack:
        for name in initialisers:
            stack.enter_context(replaced(nn.init, **{name: lambda tensor, *_, **keywords: tensor}))
        stack.enter_context(replaced(nn.Module, _apply=_converted))
        stack.enter_context(replaced(torch.Tensor, __deepcopy__=_copied))
        stack.enter_context(replaced(torch, from_numpy=_real(torch.from_numpy), load=_loading(torch.load)))
        stack.enter_context(replaced(nn.Parameter, __new__=_fake_parameter))
        for kind in LAZY:
            stack.enter_context(replaced(kind, __new__=_real(kind.__new__), materialize=_materialized))
        yield


def _copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Stand-in for Tensor.__deepcopy__ that also takes fake tensors, whose storages cannot be copied."""
    if not isinstance(tensor, FakeTensor):
        return DEEPCOPY(tensor, memo)
    if id(tensor) not in memo:
        copy = tensor.detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy
    copied: torch.Tensor = memo[id(tensor)]
    return copied


def _fake_parameter(kind: type[nn.Parameter], data: Any = None, requires_grad: bool = True) -> nn.Parameter:
    """Stand-in for nn.Parameter.__new__: a real tensor, such as one that was loaded, becomes a fake parameter."""
    if type(data) is torch.Tensor and data.device.type == "cpu":
        data = torch.empty_strided(data.shape, data.stride(), dtype=data.dtype, device="cpu")
    return NEW_PARAMETER(kind, data, requires_grad)


def _materialized(lazy: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """Stand-in for the `materialize` of lazy parameters and buffers, which are real until then."""
    with _disable_current_modes():
        dtype = dtype or lazy.data.dtype
    made = torch.empty(shape, dtype=dtype, device="cpu")
    is_parameter = isinstance(lazy, nn.Parameter)
    torch.utils.swap_tensors(lazy, nn.Parameter(made, lazy.requires_grad) if is_parameter else made)


def _real(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes real tensors."""

    def made(*arguments: Any, **keywords: Any) -> Any:
        with _disable_current_modes():
            return make(*arguments, **keywords)

    return made


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.load that loads values, mapped into memory from a file of which not all is read."""

    def loaded(file: Any, map_location: Any = "cpu", *arguments: Any, **keywords: Any) -> Any:
        if isinstance(file, (str, PathLike)) and zipfile.is_zipfile(file):
            keywords.setdefault("mmap", True)
        with _disable_current_modes():
            return load(file, map_location or "cpu", *arguments, **keywords)

    return loaded


def _converted(module: nn.Module, convert: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
    """Stand-in for nn.Module._apply: fake parameters cannot be swapped, so each stays the same object."""
    for parameter in module.parameters():
        with torch.no_grad():
            converted = convert(parameter)
            if parameter.device == converted.device:
                parameter.data = converted
            else:  # it was on the device meta
                torch.utils.swap_tensors(parameter, nn.Parameter(converted, parameter.requires_grad))
            if isinstance(parameter, FakeTensor):
                parameter.constant = None  # the values before the conversion
    for child in module.modules():
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = convert(buffer)
    return module
