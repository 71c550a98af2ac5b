"""Which operators are followed on a GPU that computes nothing, and what they make of known values on the CPU.

A hollow GPU's memory is this process's own, so that a CPU tensor can stand over it; nothing is allocated on the device.
What is known is remembered by the address of a storage, together with a weak reference to it: whether a tensor is
known is asked without a Python object for its storage, which would make autograd add gradients out of place.
Torch and the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from typing import Any

import torch

REAL, ASSUMED = 1, 2  # made of what came from the host alone; made also of what was assumed
LIMIT = 1 << 20  # elements of an integer or boolean tensor whose values are kept
FLOATS = 1 << 15  # elements of a floating-point tensor: few, as weights are such too; and more would take threads
TENSORS = {torch.Tensor, torch.nn.Parameter}
_storage: Any = torch.UntypedStorage
MOST = 1 << 24  # elements of an input, of which a larger one is not looked at
FAILURES = (RuntimeError, IndexError, ValueError, NotImplementedError)  # the CPU cannot, or not with zeros
MESSAGE_BYTES = 1 << 20  # that ranks get of each other
CARRIED_BYTES = int(os.environ.get("HOLLOW_COPY_BYTES") or MESSAGE_BYTES)  # of which the values are not followed
UNSEEN = re.compile(  # views, memory without values, and kinds of tensors that have no values here
    r"alias|as_strided|detach|diagonal|empty\w*|new_empty\w*|expand|permute|_reshape_alias|select|set_|slice"
    r"|split\w*|squeeze|t|transpose|unbind|unfold|unsqueeze|view|view_as_\w+|_unsafe_view|record_stream|resize\w*"
    r"|\w*(?:sparse|quantize|mkldnn|nested|_jagged|cudnn_rnn|mps)\w*|_local_scalar_dense|_pin_memory|is_pinned"
)
FLOATING = re.compile(  # which make floating-point numbers alone, and write nothing; most of what a model runs
    r"\w+_backward|\w*convolution\w*|mm|addmm|bmm|baddbmm|native_layer_norm|native_group_norm|_fused_rms_norm"
    r"|_scaled_dot_product\w+|\w*attention\w*|_?(?:log_)?softmax|gelu|silu|relu|elu|leaky_relu|tanh|sigmoid|embedding"
    r"|max_pool\w+|avg_pool\w+|_?adaptive\w+|upsample\w+|native_dropout|nll_loss\w*|mse_loss|smooth_l1_loss|_to_copy_"
)
OVERWRITES = re.compile(r"(?:zero|fill|normal|uniform|random|bernoulli|exponential|log_normal|cauchy|geometric)_")
MADE = re.compile(r"(?:zeros|ones|full|rand|randn|randint)_like|new_(?:zeros|ones|full)")  # only shapes are read
FILLED = {"zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}
SEEN_WITHIN = {  # what they call is followed: their sizes come of other operators
    "masked_select", "bincount", "repeat_interleave.Tensor", "is_nonzero", "nonzero_static", "masked_scatter_",
    "masked_scatter_backward", "segment_reduce", "histc", "unique_dim_consecutive_",
}  # fmt: skip
INDEXED = {"index.Tensor", "index.Tensor_out", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index.Tensor"}
COUNTED = {  # of which PyTorch's own code reads the size of what it makes
    "nonzero", "_unique2", "_unique", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
}  # fmt: skip
COMPARES = {"equal", "allclose"}
MERGES = "_coalesce"  # elements of a sparse tensor, and counts those that are left
ENDS = {"le.Scalar", "le.Tensor", "lt.Scalar", "gt.Scalar"}  # of what LBFGS computed, to a tolerance in most
COPIES = {"_to_copy", "copy_"}
LIFTED = "lift_fresh"  # of what `torch.tensor` makes, whose copying is hidden from all of this
CHOOSERS = {  # which make indices along a dimension, and where those are among the results
    "argmax": 0, "argmin": 0, "argsort": 0, "argsort.stable": 0, "topk": 1, "sort": 1, "sort.stable": 1, "max.dim": 1,
    "min.dim": 1, "median.dim": 1, "nanmedian.dim": 1, "mode": 1, "kthvalue": 1, "multinomial": 0,
}  # fmt: skip
MESSAGES = "c10d"


def names(*, is_whole: bool) -> dict[str, list[str]]:
    """Return the operators that are followed, by namespace; also those that only make floats if `is_whole`."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    found: dict[str, list[str]] = {"aten": [], MESSAGES: []}
    for whole in torch._C._dispatch_get_all_op_names():
        namespace, _, name = whole.partition("::")
        base = name.partition(".")[0]
        if namespace == MESSAGES and base not in ("monitored_barrier_", "barrier"):
            found[namespace].append(name)
        if (
            namespace != "aten"
            or UNSEEN.fullmatch(base)
            or UNSEEN.fullmatch(base.removesuffix("_"))  # in place: another view of the same memory
            or (has(whole, "CompositeImplicitAutograd") and name != LIFTED)
        ):
            continue
        if is_whole or not FLOATING.fullmatch(base) or name.endswith("out"):
            found[namespace].append(name)
    return found


class Plan:
    """What is known of an operator before it is called."""

    def __init__(self, name: str) -> None:
        self.namespace, _, self.name = name.partition("::")
        base, _, overload = self.name.partition(".")
        self.func: Any = getattr(getattr(getattr(torch.ops, self.namespace), base), overload or "default")
        schema = self.func._schema
        self.written = [
            (place, argument.name)
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.is_foreach = base.startswith(("_foreach", "_fused", "_amp_foreach"))
        self.dims = [(place, one.default_value) for place, one in enumerate(schema.arguments) if one.name == "dim"]
        self.is_random = torch.Tag.nondeterministic_seeded in self.func.tags
        self.is_pointwise = torch.Tag.pointwise in self.func.tags and not self.written
        self.takes_generator = any(argument.name == "generator" for argument in schema.arguments)
        self.joins = base in ("cat", "stack")
        self.is_filled = base in FILLED
        self.is_out = overload.endswith("out")
        self.is_made = bool(MADE.fullmatch(base))
        self.overwrites = bool(OVERWRITES.fullmatch(base))
        self.chosen = CHOOSERS.get(self.name)
        self.is_sized = self.name in SEEN_WITHIN | INDEXED | COUNTED | COMPARES
        self.tensors = [place for place, one in enumerate(schema.arguments) if str(one.type) == "Tensor"]
        self.has_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)

    def reads_within(self, args: Any) -> bool:
        """Whether it calls others that read sizes: an index does where a mask is among its indices."""
        if self.name not in INDEXED:
            return True
        return any(isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1])

    def makes(self, args: Any, out: Any) -> bool:
        """Whether results are to be looked at: they are integers or booleans, or the first input is known."""
        if self.namespace == MESSAGES or self.name in COPIES:  # these to the host, too
            return True
        kind = type(out)
        made = out if kind is torch.Tensor else out[0] if kind in (tuple, list) and out else None
        if type(made) is not torch.Tensor or not made.is_cuda:
            return False
        if self.chosen is not None or self.name == LIFTED or not self.has_tensors or self.is_made or is_discrete(made):
            return True
        for value in args:
            if type(value) is list and value:
                value = value[-1] if self.joins else value[0]
            if type(value) in TENSORS and value.is_cuda:
                return bool(value.numel() <= LIMIT and mark_of(value) is not None)
        return False


class Computing:
    """Writes the values of operators' results into them, and remembers which are known; `read` makes unknown ones."""

    def __init__(self, assumptions: Any, read: Callable[[], float]) -> None:
        self._assumptions, self._read = assumptions, read
        self.lost_bytes = 0  # of the largest message between ranks that may be a pickle and was not carried

    def follow(self, plan: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Write what an operator has made, as far as it is known or has to be assumed."""
        if plan.namespace == MESSAGES:
            self._carried(plan, args, kwargs)
        elif plan.name in COPIES:
            self._copied(args[0] if plan.written else out, args[1] if plan.written else args[0])
        elif plan.name == LIFTED:
            if is_small(args[0]):
                remember(args[0], REAL)
        elif plan.written:
            self._written(plan, args, kwargs)
        else:
            self._made(plan, args, kwargs, [made for made in flat(out) if is_ours(made)])

    # ---- what an operator makes

    def _made(self, plan: Any, args: Any, kwargs: Any, made: list[Any]) -> None:
        inputs = [] if plan.is_made else flat((args, kwargs))
        state = self._state(inputs)
        if plan.name in ENDS and state != REAL and self._assumptions.goes_on():
            is_good = plan.name == "le.Tensor" or (plan.name == "gt.Scalar" and args[1] > 0)  # a slope, a curvature
            put(made[0], torch.tensor(is_good, device="cpu"), ASSUMED)
        elif not made or self._is_uniform(plan, args, kwargs, inputs, made, state):
            return
        elif plan.chosen is not None and not state:  # indices along a dimension of unknown values
            if len(made) > plan.chosen and made[plan.chosen].numel() <= LIMIT:
                tensor = made[plan.chosen]
                place, default = plan.dims[0] if plan.dims else (len(args), -1)
                dim = kwargs.get("dim", args[place] if place < len(args) else default)  # None: all of them
                put(tensor, self._assumptions.chosen(args[0], dim, tensor.shape), ASSUMED)
                self._assumptions.told(plan.name, tensor.shape)
        elif all(map(is_small, made)) and not any(tensor.numel() > MOST for tensor in inputs):
            if plan.joins and not state and not is_discrete(made[0]):
                self._joined(plan, args, kwargs, inputs, made[0])
            elif state or is_discrete(made[0]):  # else a mask or the like beside the result, which nothing reads
                self._compute(plan, args, kwargs, made, state)

    def _compute(self, plan: Any, args: Any, kwargs: Any, made: list[Any], state: int) -> None:
        discrete = [tensor for tensor in made if is_discrete(tensor)]
        try:
            values = flat(self._computed(plan, args, kwargs))
        except FAILURES:
            values = [torch.zeros((), dtype=tensor.dtype, device="cpu").expand(tensor.shape) for tensor in discrete]
            made, state = discrete, 0
        for tensor, value in zip(made, values, strict=False):
            if tensor.shape == value.shape and (state or is_discrete(tensor)):
                put(tensor, value if state else self._assumed(plan, args, tensor, value), state or ASSUMED)
        if made and not state:
            self._assumptions.told(plan.name, made[0].shape)

    def _joined(self, plan: Any, args: Any, kwargs: Any, inputs: list[Any], made: Any) -> None:
        """Write what joins known numbers and others, and which of its elements are real: a count beside means."""
        marks = [mark_of(tensor) if is_ours(tensor) else None for tensor in inputs]
        if not any(marks):
            return
        pairs = zip(inputs, marks, strict=True)
        real = iter([torch.full(one.shape, bool(mark and mark.state == REAL), device="cpu") for one, mark in pairs])
        put(made, self._computed(plan, args, kwargs), ASSUMED)
        if (mark := mark_of(made)) and made.is_contiguous():
            mark.real = plan.func(*_mapped(lambda tensor: next(real), args), **kwargs).reshape(-1)

    def _state(self, inputs: list[Any]) -> int:
        """Return REAL or ASSUMED where all inputs are known, and 0 where one is not."""
        state: int = REAL
        for tensor in inputs:
            if not tensor.is_cuda:
                if tensor.requires_grad or not is_small(tensor):
                    return 0
                continue
            mark = mark_of(tensor) if is_ours(tensor) and tensor.numel() <= MOST else None
            if tensor.numel() and (mark is None or tensor.requires_grad):
                return 0
            state = max(state, mark.state_of(tensor) if mark else REAL)
        return state

    def _is_uniform(self, plan: Any, args: Any, kwargs: Any, inputs: Any, made: list[Any], state: int) -> bool:
        """Write a result that is one value, whatever its size; whether it is."""
        if not (plan.is_pointwise or plan.is_filled) or len(made) != 1 or plan.is_random:
            return False
        (tensor,) = made
        is_large = tensor.numel() > LIMIT
        if not is_discrete(tensor) or (state and not is_large):
            return False
        several = [one for one in inputs if one.numel() > 1]
        if any(not one.is_cuda or ((mark := mark_of(one)) and mark.uniform is None) for one in several):
            return False
        value = torch.full((), self._of_one(plan, args, kwargs), dtype=tensor.dtype, device="cpu")
        if not is_large:
            put(tensor, self._assumed(plan, args, tensor, value.expand(tensor.shape)), ASSUMED)
        elif state or self._assumptions.how == "balanced":
            remember(tensor, state or ASSUMED, value.item())
        else:
            remember(tensor, ASSUMED, self._assumed(plan, args, tensor, value).item())
        if not state:
            self._assumptions.told(plan.name, tensor.shape)
        return True

    def _of_one(self, plan: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator makes of single elements."""

        def one(tensor: Any) -> Any:
            value = value_of(tensor, mark_of(tensor)) if tensor.is_cuda else tensor
            return value.reshape(-1)[:1].reshape(()).clone()

        if plan.is_filled:
            first = [torch.empty((), dtype=args[0].dtype, device="cpu")] if plan.has_tensors else []
            sizes: list[Any] = [[]] if plan.name.startswith("new_") or not first else []
            return plan.func(*first, *sizes, *args[len(first) + len(sizes) :], **_on_host(kwargs)).item()
        args, kwargs = _mapped(one, (args, kwargs))
        return plan.func(*args, **_on_host(kwargs)).item()

    def _assumed(self, plan: Any, args: Any, tensor: Any, value: Any) -> Any:
        """Return a result's values as they are to be assumed: of a comparison of numbers as was asked for."""
        is_comparison = tensor.dtype == torch.bool and any(
            isinstance(one, torch.Tensor) and not is_discrete(one) for one in args
        )
        return self._assumptions.compared(plan.name, args, value) if plan.is_pointwise and is_comparison else value

    # ---- what it writes

    def _written(self, plan: Any, args: Any, kwargs: Any) -> None:
        """Write into what an operator writes; into lists where all are known, as an optimizer's counts of steps."""
        places = [args[place] if place < len(args) else kwargs.get(name) for place, name in plan.written]
        if plan.is_foreach:
            firsts = [value[0] if isinstance(value, list) and value else value for value in args]
            if not all(mark_of(first) for first in firsts if is_ours(first)):  # most often so
                forget(*places)
                if plan.name.startswith("_amp_foreach"):  # unknown gradients are finite
                    put(args[1], torch.zeros((), device="cpu"), ASSUMED)
                return
        written = [tensor for tensor in flat(places) if is_ours(tensor)]
        if not written:
            return
        outs = {id(tensor) for tensor in written} if plan.overwrites or plan.is_out else set()
        inputs = [tensor for tensor in flat((args, kwargs)) if id(tensor) not in outs]
        state = self._state(inputs) if not plan.is_foreach or all(map(is_small, inputs)) else 0
        may = state or not plan.is_foreach
        kept = {id(tensor) for tensor in written if may and is_small(tensor) and (state or is_discrete(tensor))}
        if any(id(tensor) in kept and is_discrete(tensor) for tensor in written):
            kept |= {id(tensor) for tensor in written if mark_of(tensor)}  # as a scale changed with a count
        if not kept or any(tensor.numel() > MOST for tensor in inputs):
            forget(*written)
            return
        try:
            values = {id(tensor): value_of(tensor, mark_of(tensor)).clone() for tensor in written}
            self._computed(plan, args, kwargs, values)
        except FAILURES:
            zeros = [tensor for tensor in written if id(tensor) in kept]
            values = {id(one): torch.zeros(one.shape, dtype=one.dtype, device="cpu") for one in zeros}
            state = 0
        for tensor in written:
            if id(tensor) in kept:
                put(tensor, values[id(tensor)], state or ASSUMED)
            else:
                forget(tensor)
        if not state:
            self._assumptions.told(plan.name, written[0].shape)

    def _copied(self, target: Any, source: Any) -> None:
        if is_ours(target):
            mark = mark_of(source) if is_ours(source) else None
            is_real = not source.is_cuda and type(source) in TENSORS
            state = REAL if is_real else mark.state if mark else 0
            if mark is not None and mark.uniform is not None and target.numel() > LIMIT:
                remember(target, state, mark.uniform) if is_discrete(target) else forget(target)
            elif is_small(target) and (state or is_discrete(target)):
                put(target, value_of(source, mark) if source.is_cuda else source.detach(), state or ASSUMED)
                if not state:
                    self._assumptions.told("copy_", target.shape)
            else:
                forget(target)
        elif is_ours(source) and type(target) in TENSORS and target.device.type == "cpu":
            mark = mark_of(source)
            if mark is not None:
                target.copy_(value_of(source, mark))
            elif target.nbytes <= MESSAGE_BYTES:
                target.fill_(self._read() if target.numel() == 1 and source.is_floating_point() else 0)

    def _carried(self, plan: Any, args: Any, kwargs: Any) -> None:
        """Remember what ranks got of each other: integers and booleans that are small enough to be carried."""
        tensors = [tensor for tensor in flat((args, kwargs)) if is_ours(tensor)]
        marks = [mark_of(tensor) for tensor in tensors]
        state = max([mark.state for mark in marks if mark], default=REAL)
        for tensor in tensors:
            if tensor.dtype == torch.uint8 and tensor.nbytes > CARRIED_BYTES:
                self.lost_bytes = max(self.lost_bytes, tensor.nbytes)
            if tensor.nbytes <= MESSAGE_BYTES and is_discrete(tensor):
                remember(tensor, state)
            elif is_discrete(tensor) or not any(marks):
                forget(tensor)
        if plan.name == "_allgather_base_" and len(tensors) == 2 and marks[1] and tensors[0].nbytes <= MESSAGE_BYTES:
            gathered, own = tensors
            remember(gathered, marks[1].state)
            if marks[1].real is not None and (mark := mark_of(gathered)):
                mark.real = marks[1].real[: own.numel()].repeat(gathered.numel() // own.numel())

    # ---- on the CPU

    def results(self, plan: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
        """Return what an operator makes, on the CPU, and whether that is real or assumed."""
        state = self._state(flat((args, kwargs)))
        return self._computed(plan, args, kwargs), state or ASSUMED

    def merged(self, sparse: Any) -> tuple[Any, int]:
        """Return the indices of a sparse tensor once each, on the CPU; those that are not known all differ."""
        indices = sparse._indices()
        state = self._state([indices])
        if not state:
            return torch.arange(indices.shape[1], device="cpu").expand(indices.shape), ASSUMED
        return torch.unique(value_of(indices, mark_of(indices)), dim=1), state

    def _computed(self, plan: Any, args: Any, kwargs: Any, written: dict[int, Any] | None = None) -> Any:
        def value(tensor: Any) -> Any:
            if written and id(tensor) in written:
                return written[id(tensor)]
            return value_of(tensor, mark_of(tensor)) if tensor.is_cuda else tensor.detach()

        args, kwargs = _mapped(value, (args, kwargs))
        kwargs = _on_host(kwargs)
        if plan.is_random and kwargs.get("generator") is None and plan.takes_generator:
            device: Any = torch.cuda.default_generators[torch.cuda.current_device()]
            kwargs["generator"] = generator = torch.Generator(device="cpu")  # which stands where the GPU's does
            generator.manual_seed((device.initial_seed() + 1_000_003 * device.get_offset()) % (1 << 62))
        return plan.func(*args, **kwargs)


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return keywords with the CPU for a device, and no generator of the GPU's."""
    kept = {name: one for name, one in kwargs.items() if name != "pin_memory" and not isinstance(one, torch.Generator)}
    return {**kept, "device": torch.device("cpu")} if "device" in kept else kept


# ---- which tensors hold true values, and their values on the CPU


class Mark:
    """What is known of a storage."""

    __slots__ = ("real", "state", "uniform", "weak")

    def __init__(self, weak: int, state: int, uniform: Any) -> None:
        self.weak, self.state, self.uniform = weak, state, uniform  # uniform: the value of all elements, or None
        self.real: Any = None  # which elements are, where not all of them are

    def state_of(self, tensor: Any) -> int:
        """Return the state of a tensor in this storage."""
        if self.real is None:
            return self.state
        part = self.real.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return REAL if bool(part.all()) else ASSUMED

    def __del__(self, free: Any = _storage._free_weak_ref) -> None:
        free(self.weak)


marks: dict[int, Mark] = {}  # by the address of the storage


def is_ours(value: Any) -> bool:
    """Whether a value is a plain tensor on a GPU."""
    return type(value) in TENSORS and value.is_cuda and value.layout is torch.strided


def mark_of(tensor: Any) -> Mark | None:
    """Return what is known of a GPU tensor's storage; a sparse tensor has none."""
    if tensor.layout is not torch.strided:
        return None
    mark = marks.get(_place(tensor))
    if mark is not None and _storage._expired(mark.weak):
        del marks[_place(tensor)]
        return None
    return mark


def _place(tensor: Any) -> int:
    return int(tensor.data_ptr() - tensor.storage_offset() * tensor.element_size())


def is_discrete(tensor: Any) -> bool:
    """Whether a tensor holds integers or booleans."""
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def is_small(tensor: Any) -> bool:
    """Whether the values of a tensor are kept."""
    return bool(tensor.numel() <= (LIMIT if is_discrete(tensor) else FLOATS))


def remember(tensor: Any, state: int, uniform: Any = None) -> None:
    """Remember that a tensor's storage holds what its values are."""
    if not tensor.numel() or (not is_discrete(tensor) and torch._C._current_autograd_node() is not None):
        return  # a gradient: see the top
    storage = tensor.untyped_storage()
    marks[storage.data_ptr()] = Mark(storage._weak_ref(), state, uniform)


def forget(*values: Any) -> None:
    """Forget what is known of the storages of tensors, and of lists of them."""
    for tensor in flat(values) if marks else ():
        if is_ours(tensor):
            marks.pop(_place(tensor), None)


def host(tensor: Any) -> Any:
    """Return a CPU tensor over the memory of a GPU tensor."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    num = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    buffer = (ctypes.c_byte * (num * tensor.element_size())).from_address(tensor.data_ptr())
    whole = torch.frombuffer(buffer, dtype=torch.uint8).view(tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride())


def value_of(tensor: Any, mark: Mark | None) -> Any:
    """Return the values of a tensor on the CPU; zeros where they are not known."""
    if mark is not None and mark.uniform is None and (is_discrete(tensor) or tensor.numel() <= LIMIT):
        return host(tensor)
    value = 0 if mark is None or mark.uniform is None else mark.uniform
    return torch.full((), value, dtype=tensor.dtype, device="cpu").expand(tensor.shape)


def put(tensor: Any, values: Any, state: int) -> None:
    """Write values into a GPU tensor, and remember that they are known.

    Where it is a part of a larger storage that is not known, the rest of integers and booleans is zero from then on,
    and floating-point numbers stay unknown.
    """
    before = mark_of(tensor)
    if before is None and is_discrete(tensor):
        storage = tensor.untyped_storage()
        if tensor.nbytes < storage.nbytes():
            if storage.nbytes() > LIMIT * tensor.element_size():
                return
            ctypes.memset(storage.data_ptr(), 0, storage.nbytes())
    elif before is None:  # without looking at its storage: see the top
        base = tensor._base if tensor._is_view() else tensor
        if tensor.nbytes < base.nbytes or (base is tensor and tensor.storage_offset()):
            return
    if before is not None and before.uniform is not None:
        before = None
    host(tensor).copy_(values)
    remember(tensor, state if before is None else max(state, before.state))


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return an operator's arguments with each tensor changed, faster than `tree_map_only` does."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(change, part) for name, part in value.items()}
    return type(value)([_mapped(change, part) for part in value]) if type(value) in (list, tuple) else value


def flat(value: Any) -> list[Any]:
    """Return the tensors of an operator's arguments or results."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in flat(part)]
    return [tensor for part in value for tensor in flat(part)] if isinstance(value, (list, tuple)) else []
