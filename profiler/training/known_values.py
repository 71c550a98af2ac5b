"""Tracks the values of tensors that have none themselves: fake ones, and those of a rehearsed device.

A model's factory makes a batch with an attention mask, and the step tests whether it masks anything. Small tensors that
the code makes without data of its own (`ones_like`, slices, comparisons, drawn tokens) are therefore also computed on
the CPU. In a step, only tests (`mask.all()`, `equal`) are answered from these values.

While the factory runs, whatever it computes outside of modules is computed on the CPU too, whatever its size, and all
that is read there is answered: it prepares its data as it likes. What modules make for themselves stays limited, so
that weights take no memory.

The last part builds a model on a rehearsed device, and detects code that reads values there.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

import msgspec
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from profiler.core.errors import Exited, Invalid, Unsupported, UserError, frames, is_theirs, users_line
from profiler.core.own_thread import replaced
from profiler.core.units import few
from profiler.training.workload import Workload

aten = torch.ops.aten
MOST_WHOLE = 2**22  # elements of an integer or boolean tensor, such as a batch of tokens
MOST_FRACTIONS = 2**16  # elements of a floating-point tensor; few, since weights are floating-point too, not only masks
FRESH = {  # operators whose results do not depend on the values of their arguments
    aten.ones_like, aten.zeros_like, aten.full_like, aten.rand_like, aten.randint_like,
    aten.new_ones, aten.new_zeros, aten.new_full,
}  # fmt: skip
UNFILLED = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
COMPARISONS = {aten.equal.default, aten.allclose.default}
AS_ANOTHER = {aten.lift_fresh.default, aten.detach.default}  # make a tensor of Python data, a parameter of a tensor
SCALAR = aten._local_scalar_dense.default
HOST = torch.device("cpu")
_IN_FACTORY: ContextVar[bool] = ContextVar("_IN_FACTORY", default=False)


@contextmanager
def in_factory(device: str) -> Iterator[None]:
    """Make tensors on the device by default; keep the values of all that is computed within, outside of modules.

    It need not know of the device: DataLoaders load in this process, since others have neither fake tensors nor CUDA,
    and shuffle on the CPU; NumPy and lists get their numbers from there.
    """
    load = DataLoader.__iter__

    def loaded(loader: Any) -> Any:
        loader = copy.copy(loader)  # the user's stays as it is
        loader.__dict__.update(num_workers=0, timeout=0, persistent_workers=False, pin_memory=False)
        with HOST:
            return load(loader)

    def reading(read: Callable[..., Any], read_unknown: Callable[..., Any]) -> Callable[..., Any]:
        def read_known(tensor: torch.Tensor, **options: Any) -> Any:
            value = value_of(tensor)
            if value is None:
                return read_unknown(tensor.cpu(), **options)
            with no_dispatch():
                return read(value, **options)

        return read_known

    arrays = reading(torch.Tensor.numpy, torch.Tensor.numpy)
    lists = reading(torch.Tensor.tolist, FakeTensor.tolist)  # which reads each element by itself
    patches = (
        replaced(DataLoader, __iter__=loaded), replaced(torch.Tensor, numpy=arrays), replaced(FakeTensor, tolist=lists)
    )  # fmt: skip
    token = _IN_FACTORY.set(True)
    try:
        with torch.device(device), Generators(), patches[0], patches[1], patches[2]:
            yield
    finally:
        _IN_FACTORY.reset(token)


class Generators(TorchFunctionMode):
    """Function mode in which what draws from a generator is made on its device, whatever the default device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        generator = kwargs.get("generator")
        if generator is None or kwargs.get("device") is not None or any(True for _ in _tensors(args, kwargs)):
            return func(*args, **kwargs)
        return func(*args, **{**kwargs, "device": generator.device})


class Draws:
    """A random stream for tracked values; the process's own random state stays as it is."""

    def __init__(self) -> None:
        self._state: torch.Tensor | None = None

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the operator, on this stream if it draws random numbers; return its results."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        with torch.random.fork_rng(devices=[]):
            if self._state is not None:
                torch.set_rng_state(self._state)
            made = func(*args, **kwargs)
            self._state = torch.get_rng_state()
        return made


class Following(TorchDispatchMode):
    """Dispatch mode that tracks the values of new tensors, and answers what is read of known values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws = Draws()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (answer := tested(func, args)) is not None:
            return answer
        if (out := self._by_values(func, args, kwargs)) is None:
            out = func(*args, **kwargs)
        follow(func, args, kwargs, out, self._draws)
        return out

    def _by_values(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the results of a factory's operator whose sizes depend on values, or that copies them to the host."""
        if not _IN_FACTORY.get() or not isinstance(func, torch._ops.OpOverload):
            return None
        device = next((tensor.device for tensor in _tensors(args, kwargs)), HOST)
        to_host = func is aten._to_copy.default and torch.device(kwargs.get("device") or device) == HOST
        if device == HOST or not (to_host or torch.Tag.dynamic_output_shape in func.tags):
            return None
        values = computed(func, args, kwargs, self._draws)
        return values if to_host else placed(values, lambda value: value.to(device))


class Constants(TorchFunctionMode):
    """Function mode that keeps the values of tensors made from Python data, which a dispatch mode sees too late."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        is_made = func in (torch.tensor, torch.as_tensor, torch.asarray) and not isinstance(args[0], torch.Tensor)
        if is_made and out.device.type != "cpu" and _is_kept(out):
            out.known_value = func(*args, **{**kwargs, "device": "cpu"}).detach()
        return out


class Known(torch.Tensor):
    """A tensor with a known value; what is computed from known tensors alone is Known too."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        with torch._C.DisableTorchFunctionSubclass():
            given = list(_tensors(args, kwargs))
            if all(value_of(tensor) is not None for tensor in given):
                with Following():
                    return pytree.tree_map_only(torch.Tensor, _as_known, func(*args, **kwargs))
            versions = [(tensor, tensor._version) for tensor in given if isinstance(tensor, cls)]
            out = func(*args, **kwargs)
            for tensor, version in versions:
                if tensor._version != version:
                    _forget(tensor)
            return out


def in_batch(made: torch.Tensor, moved: torch.Tensor, *, is_followed: bool) -> torch.Tensor:
    """Return a batch tensor with the value it was made with; floating-point values are kept only if they are a mask.

    `is_followed` is for a device that does no arithmetic: its tensors have no values, and no mode tracks them.
    """
    value = value_of(made)
    with no_dispatch():
        if value is not None and value.is_floating_point() and not ((value == 0) | (value == 1)).all():
            value = None
            moved.__dict__.pop("known_value", None)
    if value is None or not is_followed:
        return moved
    moved.known_value = value.clone() if value is made else value  # type: ignore[attr-defined]
    return _as_known(moved)


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor, on the CPU; None if unknown. A real CPU tensor that is kept is its own value."""
    value: torch.Tensor | None = tensor.__dict__.get("known_value")
    if value is not None:
        return None if value.numel() and not value.untyped_storage().nbytes() else value
    return tensor if is_real(tensor) and _is_kept(tensor) else None


def is_real(tensor: torch.Tensor) -> bool:
    """Whether it is a plain tensor on the CPU, as NumPy's data become."""
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.device.type == "cpu"


def is_hosts(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a factory's operator works on real CPU tensors alone, and so can simply run."""
    given = list(_tensors(args, kwargs)) if _IN_FACTORY.get() and func not in AS_ANOTHER else []
    return bool(given) and all(type(tensor) is torch.Tensor and is_real(tensor) for tensor in given)


def tested(func: Any, args: Any) -> bool | int | float | None:
    """Return the result of an operator that tests known values, in a factory of any that reads one; else None."""
    if func is not SCALAR and func not in COMPARISONS:
        return None
    values = [value_of(tensor) for tensor in _tensors(args, {})]
    is_test = func is not SCALAR or args[0].dtype == torch.bool
    if any(value is None for value in values) or not (is_test or _IN_FACTORY.get()):
        return None
    with no_dispatch():
        answer: bool | int | float = func(*values)
        return answer


def follow(func: Any, args: Any, kwargs: Any, out: Any, draws: Draws | None) -> None:
    """Record the values of an operator's results if its inputs are known; else mark what it overwrote as unknown.

    Without `draws`, random numbers are unknown, since a recompute would draw other ones than the forward.
    """
    is_unfilled = getattr(func, "_overloadpacket", None) in UNFILLED
    if not isinstance(func, torch._ops.OpOverload) or (is_unfilled and not _is_data(called=())):
        return
    results = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    values = computed(func, args, kwargs, draws) if results and all(map(_is_kept, results)) else None
    leaves = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    if leaves and [value.shape for value in leaves] == [result.shape for result in results]:
        for result, value in zip(results, leaves, strict=True):
            result.known_value = value  # type: ignore[attr-defined]
    elif func._schema.is_mutable:
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.is_write and isinstance(given, torch.Tensor):
                _forget(given)


def computed(func: Any, args: Any, kwargs: Any, draws: Draws | None) -> Any:
    """Compute the results on the CPU, invisible to modes that watch the step; None if they are unknown."""

    def own_value(tensor: torch.Tensor) -> torch.Tensor:  # which the operator may overwrite
        value = value_of(tensor)
        if value is None:  # uninitialized memory, of which FRESH operators read nothing
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        return value.clone() if value is tensor else value

    if draws is None and torch.Tag.nondeterministic_seeded in func.tags:
        return None
    is_known = func._overloadpacket in FRESH or all(value_of(tensor) is not None for tensor in _tensors(args, kwargs))
    if not is_known:
        return None
    with no_dispatch(), torch.no_grad():
        args, kwargs = pytree.tree_map_only(torch.Tensor, own_value, (args, kwargs))
        if "device" in kwargs:
            kwargs["device"] = HOST
        try:
            return draws.run(func, args, kwargs) if draws else func(*args, **kwargs)
        except (RuntimeError, IndexError):  # the CPU's operator refuses these values
            return None


def placed(values: Any, place: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return computed results as tensors of another kind, which know their values."""

    def known(value: torch.Tensor) -> torch.Tensor:
        out = place(value)
        out.known_value = value  # type: ignore[attr-defined]
        return out

    return pytree.tree_map_only(torch.Tensor, known, values)


def _forget(tensor: torch.Tensor) -> None:
    """Mark the value of a tensor, and of all its views, as unknown."""
    value = tensor.__dict__.get("known_value")
    if value is not None:
        with no_dispatch():
            value.untyped_storage().resize_(0)


def _is_kept(tensor: torch.Tensor) -> bool:
    """Whether a tensor's value is kept: if it is small, or a factory's own data."""
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
        return False
    return tensor.numel() <= (MOST_FRACTIONS if tensor.is_floating_point() else MOST_WHOLE) or _is_data()


def _is_data(*, called: tuple[CodeType, ...] = (nn.Module._call_impl.__code__,)) -> bool:
    """Whether a factory is at work, but none of its modules: none is constructed, and none called (unless `called=()`).

    Modules leave it to initializers, which may not run, to fill what is left empty.
    """
    return _IN_FACTORY.get() and not any(
        frame.f_code in called or _is_constructor(frame.f_code) for frame in frames(sys._getframe(1))
    )


@cache
def _is_constructor(code: CodeType) -> bool:
    """Whether code constructs a module."""
    kinds: list[type[nn.Module]] = [nn.Module] if code.co_name == "__init__" else []
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
    return any(getattr(inspect.unwrap(kind.__init__), "__code__", None) is code for kind in kinds)


def _as_known(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as Known if it is a CUDA tensor with a known value, else as it is."""
    value = value_of(tensor) if type(tensor) is torch.Tensor and tensor.is_cuda else None
    if value is None:
        return tensor
    known = tensor.as_subclass(Known)
    known.known_value = value  # type: ignore[attr-defined]
    return known


def _tensors(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among an operator's arguments."""
    for given in (*args, *kwargs.values()):
        if isinstance(given, torch.Tensor):
            yield given
        elif isinstance(given, (list, tuple)):
            yield from (one for one in given if isinstance(one, torch.Tensor))


BYTES_ONLY = (
    "rehearsed by PyTorch's own CUDA code on a device that computes nothing: bytes only, no gradients, no measured "
    "times"
)
ZEROS = "the step reads values, which are zeros or leftovers here"
NOT_REAL = "sizes that follow from them are not real"
WHOLE = "all() of values that are not known here is taken as true: a mask masks nothing, and would take more if it did"
BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
UNTAGGED = {  # operators whose result sizes depend on values, although no tag says so
    "aten::_coalesce", "aten::_to_sparse", "aten::_to_sparse_csr", "aten::_to_sparse_csc", "aten::_to_sparse_bsr",
    "aten::_to_sparse_bsc", "torchvision::nms",
}  # fmt: skip
HARMLESS = {  # no size depends on the values that these files read
    torch.nn.init.__file__,  # draws until all numbers are within bounds
    torch.autograd.graph.__file__,  # moves saved tensors to the host and back
    str(Path(__file__).with_name("memory_levers.py")),  # inputs of checkpoints
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
        is_on_host = isinstance(out, torch.Tensor) and out.device.type == "cpu"  # as by `.cpu()` and `.tolist()`
        if _reads_values(func, args) or is_on_host:
            self._note(func, args)
        return out

    def __str__(self) -> str:
        return few(list(self.places), MOST_NAMED)

    def _note(self, func: Any, arguments: Any) -> None:
        """Note the operator and the user's line if an argument is a CUDA tensor and the caller is not HARMLESS."""
        if not any(isinstance(value, torch.Tensor) and value.is_cuda for value in arguments):
            return
        if not HARMLESS.isdisjoint(frame.f_code.co_filename for frame in frames(sys._getframe(2))):
            return
        line = users_line(sys._getframe(2))
        name = func.name().partition("::")[2].partition(".")[0].removeprefix("_local_scalar_dense") or "item"
        self.places[f"{name} ({line})" if line else name] = None


def _reads_values(func: Any, arguments: Any) -> bool:
    """Whether an operator's result or its size depends on values; an index tensor counts only if it is a mask."""
    if func is torch.ops.aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in arguments[1])
    return not BY_VALUE.isdisjoint(func.tags) or func.name().partition(".")[0] in UNTAGGED


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
    masks = sys.modules.get("transformers.masking_utils")  # whose fast_all is the same test, as a sum
    for home, name in ((torch.Tensor, "all"), (masks, "fast_all")):
        every = getattr(home, name, None)
        if every is not None and not hasattr(every, "is_passed"):
            setattr(home, name, _passing(every))


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
