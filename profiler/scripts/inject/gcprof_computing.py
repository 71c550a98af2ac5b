"""Which operators are followed on a GPU that computes nothing, and what they make of known values on the CPU."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import torch

known: Any = import_module("gcprof_known")  # beside this file
REAL, ASSUMED = known.REAL, known.ASSUMED
MOST = 1 << 24  # elements of an input, of which a larger one is not looked at
FAILURES = (RuntimeError, IndexError, ValueError, NotImplementedError)  # the CPU cannot, or not with zeros
MESSAGE_BYTES = 1 << 20  # that ranks get of each other
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
    "segment_reduce", "histc", "unique_dim_consecutive_",
}  # fmt: skip
INDEXED = {"index.Tensor", "index.Tensor_out", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index.Tensor"}
COUNTED = {  # of which PyTorch's own code reads the size of what it makes
    "nonzero", "_unique2", "_unique", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
}  # fmt: skip
COMPARES = {"equal", "allclose"}
COPIES = {"_to_copy", "copy_"}
LIFTED = "lift_fresh"  # of what `torch.tensor` makes, whose copying is hidden from all of this
CHOOSERS = {  # which make indices along a dimension, and where those are among the results
    "argmax": 0, "argmin": 0, "argsort": 0, "argsort.stable": 0, "topk": 1, "sort": 1, "sort.stable": 1, "max.dim": 1,
    "min.dim": 1, "median.dim": 1, "nanmedian.dim": 1, "mode": 1, "kthvalue": 1, "multinomial": 0,
}  # fmt: skip
MESSAGES = "c10d"
GATHERED = "_allgather_base_"


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
        self._dims = [(place, one.default_value) for place, one in enumerate(schema.arguments) if one.name == "dim"]
        self.is_random = torch.Tag.nondeterministic_seeded in self.func.tags
        self.is_pointwise = torch.Tag.pointwise in self.func.tags and not self.written
        self.takes_generator = any(argument.name == "generator" for argument in schema.arguments)
        self.joins = base in ("cat", "stack")
        self.is_filled = base in FILLED
        self.is_out = overload.endswith("out")
        self.is_made = bool(MADE.fullmatch(base))
        self.overwrites = bool(OVERWRITES.fullmatch(base)) or base == "normal_"
        self.chosen = CHOOSERS.get(self.name)
        self.is_sized = (
            self.name in SEEN_WITHIN or self.name in INDEXED or self.name in COUNTED or self.name in COMPARES
        )
        self.tensors = [place for place, one in enumerate(schema.arguments) if str(one.type) == "Tensor"]
        self.has_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)

    def dim(self, args: Any, kwargs: Any) -> int | None:
        """Return the dimension along which it is called; None for all of them, the last where it knows none."""
        place, default = self._dims[0] if self._dims else (len(args), -1)
        dim: int | None = kwargs.get("dim", args[place] if place < len(args) else default)
        return dim

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
        if (
            self.chosen is not None
            or self.name == LIFTED
            or not self.has_tensors
            or self.is_made
            or known.is_discrete(made)
        ):
            return True
        for value in args:
            if type(value) is list and value:
                value = value[-1] if self.joins else value[0]
            if type(value) in known.TENSORS and value.is_cuda:
                return bool(value.numel() <= known.LIMIT and known.mark_of(value) is not None)
        return False


class Computing:
    """Writes the values of operators' results into them, and remembers which are known."""

    def __init__(self, assumptions: Any) -> None:
        self._assumptions = assumptions

    def follow(self, plan: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Write what an operator has made, as far as it is known or has to be assumed."""
        if plan.namespace == MESSAGES:
            self._carried(plan, args, kwargs)
        elif plan.name in COPIES:
            self._copied(args[0] if plan.written else out, args[1] if plan.written else args[0])
        elif plan.name == LIFTED:
            if known.is_small(args[0]):
                known.mark(args[0], REAL)
        elif plan.written:
            self._written(plan, args, kwargs)
        else:
            self._made(plan, args, kwargs, [made for made in known.flat(out) if known.is_ours(made)])

    # ---- what an operator makes

    def _made(self, plan: Any, args: Any, kwargs: Any, made: list[Any]) -> None:
        inputs = [] if plan.is_made else known.flat((args, kwargs))
        state = self._state(inputs)
        if not made or self._is_uniform(plan, args, kwargs, inputs, made, state):
            return
        if plan.chosen is not None and not state:
            self._chosen(plan, args, kwargs, made)
        elif all(map(known.is_small, made)) and not any(tensor.numel() > MOST for tensor in inputs):
            if plan.joins and not state and not known.is_discrete(made[0]):
                self._joined(plan, args, kwargs, inputs, made[0])
            elif state or known.is_discrete(made[0]):  # else a mask or the like beside the result, which nothing reads
                self._compute(plan, args, kwargs, made, state)

    def _compute(self, plan: Any, args: Any, kwargs: Any, made: list[Any], state: int) -> None:
        discrete = [tensor for tensor in made if known.is_discrete(tensor)]
        try:
            values = known.flat(self._computed(plan, args, kwargs))
        except FAILURES:
            values = [torch.zeros((), dtype=tensor.dtype, device="cpu").expand(tensor.shape) for tensor in discrete]
            made, state = discrete, 0
        for tensor, value in zip(made, values, strict=False):
            if tensor.shape == value.shape and (state or known.is_discrete(tensor)):
                known.put(tensor, value if state else self._assumed(plan, args, tensor, value), state or ASSUMED)
        if made and not state:
            self._assumptions.told(plan.name, made[0].shape)

    def _joined(self, plan: Any, args: Any, kwargs: Any, inputs: list[Any], made: Any) -> None:
        """Write what joins known numbers and others, and which of its elements are real: a count beside means."""
        marks = [known.mark_of(tensor) if known.is_ours(tensor) else None for tensor in inputs]
        if not any(marks):
            return
        pairs = zip(inputs, marks, strict=True)
        real = iter([torch.full(one.shape, bool(mark and mark.state == REAL), device="cpu") for one, mark in pairs])
        known.put(made, self._computed(plan, args, kwargs), ASSUMED)
        if (mark := known.mark_of(made)) and made.is_contiguous():
            mark.real = plan.func(*_mapped(args, lambda tensor: next(real)), **kwargs).reshape(-1)

    def _state(self, inputs: list[Any]) -> int:
        """Return REAL or ASSUMED where all inputs are known, and 0 where one is not."""
        state: int = REAL
        for tensor in inputs:
            if not tensor.is_cuda:
                if tensor.requires_grad or not known.is_small(tensor):
                    return 0
                continue
            mark = known.mark_of(tensor) if known.is_ours(tensor) and tensor.numel() <= MOST else None
            if tensor.numel() and (mark is None or tensor.requires_grad):
                return 0
            state = max(state, mark.state_of(tensor) if mark else REAL)
        return state

    def _is_uniform(self, plan: Any, args: Any, kwargs: Any, inputs: Any, made: list[Any], state: int) -> bool:
        """Write a result that is one value, whatever its size; whether it is."""
        if not (plan.is_pointwise or plan.is_made or not plan.has_tensors) or len(made) != 1 or plan.is_random:
            return False
        (tensor,) = made
        is_large = tensor.numel() > known.LIMIT
        if not known.is_discrete(tensor) or (state and not is_large):
            return False
        marks = [(one, known.mark_of(one) if one.is_cuda else None) for one in inputs]
        if any(mark is not None and mark.uniform is None and one.numel() > 1 for one, mark in marks):
            return False
        if any(not one.is_cuda and one.numel() > 1 for one in inputs):
            return False
        if not plan.is_pointwise and not plan.is_filled:
            return False
        value = torch.full((), self._of_one(plan, args, kwargs), dtype=tensor.dtype, device="cpu")
        if not is_large:
            known.put(tensor, self._assumed(plan, args, tensor, value.expand(tensor.shape)), ASSUMED)
        elif state or self._assumptions.how == "balanced":
            known.mark(tensor, state or ASSUMED, value.item())
        else:
            known.mark(tensor, ASSUMED, self._assumed(plan, args, tensor, value).item())
        if not state:
            self._assumptions.told(plan.name, tensor.shape)
        return True

    def _of_one(self, plan: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator makes of single elements."""

        def one(tensor: Any) -> Any:
            value = known.value_of(tensor, known.mark_of(tensor)) if tensor.is_cuda else tensor
            return value.reshape(-1)[:1].reshape(()).clone()

        if plan.is_filled:
            first = [torch.empty((), dtype=args[0].dtype, device="cpu")] if plan.has_tensors else []
            sizes: list[Any] = [[]] if plan.name.startswith("new_") or not first else []
            return plan.func(*first, *sizes, *args[len(first) + len(sizes) :], **_on_host(kwargs)).item()
        return plan.func(*_mapped(args, one), **_on_host(_mapped(kwargs, one))).item()

    def _assumed(self, plan: Any, args: Any, tensor: Any, value: Any) -> Any:
        """Return a result's values as they are to be assumed: of a comparison of numbers as was asked for."""
        is_comparison = tensor.dtype == torch.bool and any(
            isinstance(one, torch.Tensor) and not known.is_discrete(one) for one in args
        )
        return self._assumptions.compared(plan.name, args, value) if plan.is_pointwise and is_comparison else value

    def _chosen(self, plan: Any, args: Any, kwargs: Any, made: list[Any]) -> None:
        """Write indices that are chosen along a dimension of unknown values."""
        if len(made) > plan.chosen and made[plan.chosen].numel() <= known.LIMIT:
            tensor = made[plan.chosen]
            known.put(tensor, self._assumptions.chosen(args[0], plan.dim(args, kwargs), tensor.shape), ASSUMED)
            self._assumptions.told(plan.name, tensor.shape)

    # ---- what it writes

    def _written(self, plan: Any, args: Any, kwargs: Any) -> None:
        """Write into what an operator writes; into lists where all are known, as an optimizer's counts of steps."""
        places = [args[place] if place < len(args) else kwargs.get(name) for place, name in plan.written]
        if plan.is_foreach and not _begins_known(args):
            known.forget(*places)
            return
        written = [tensor for tensor in known.flat(places) if known.is_ours(tensor)]
        if not written:
            return
        outs = {id(tensor) for tensor in written} if plan.overwrites or plan.is_out else set()
        inputs = [tensor for tensor in known.flat((args, kwargs)) if id(tensor) not in outs]
        state = self._state(inputs) if not plan.is_foreach or all(map(known.is_small, inputs)) else 0
        may = state or not plan.is_foreach
        kept = {
            id(tensor) for tensor in written if may and known.is_small(tensor) and (state or known.is_discrete(tensor))
        }
        if any(id(tensor) in kept and known.is_discrete(tensor) for tensor in written):
            kept |= {id(tensor) for tensor in written if known.mark_of(tensor)}  # as a scale changed with a count
        if not kept or any(tensor.numel() > MOST for tensor in inputs):
            known.forget(*written)
            return
        try:
            values = {id(tensor): known.value_of(tensor, known.mark_of(tensor)).clone() for tensor in written}
            self._computed(plan, args, kwargs, values)
        except FAILURES:
            zeros = [tensor for tensor in written if id(tensor) in kept]
            values = {id(one): torch.zeros(one.shape, dtype=one.dtype, device="cpu") for one in zeros}
            state = 0
        for tensor in written:
            if id(tensor) in kept:
                known.put(tensor, values[id(tensor)], state or ASSUMED)
            else:
                known.forget(tensor)
        if not state:
            self._assumptions.told(plan.name, written[0].shape)

    def _copied(self, target: Any, source: Any) -> None:
        if known.is_ours(target):
            mark = known.mark_of(source) if known.is_ours(source) else None
            is_real = not source.is_cuda and type(source) in known.TENSORS
            state = REAL if is_real else mark.state if mark else 0
            if mark is not None and mark.uniform is not None and target.numel() > known.LIMIT:
                known.mark(target, state, mark.uniform) if known.is_discrete(target) else known.forget(target)
            elif known.is_small(target) and (state or known.is_discrete(target)):
                known.put(target, known.value_of(source, mark) if source.is_cuda else source.detach(), state or ASSUMED)
                if not state:
                    self._assumptions.told("copy_", target.shape)
            else:
                known.forget(target)
        elif known.is_ours(source) and type(target) in known.TENSORS and target.device.type == "cpu":
            mark = known.mark_of(source)
            if mark is not None:
                target.copy_(known.value_of(source, mark))
            elif target.nbytes <= MESSAGE_BYTES:
                target.zero_()

    def _carried(self, plan: Any, args: Any, kwargs: Any) -> None:
        """Remember what ranks got of each other: integers and booleans that are small enough to be carried."""
        tensors = [tensor for tensor in known.flat((args, kwargs)) if known.is_ours(tensor)]
        marks = [known.mark_of(tensor) for tensor in tensors]
        state = max([mark.state for mark in marks if mark], default=REAL)
        for tensor in tensors:
            if tensor.nbytes <= MESSAGE_BYTES and known.is_discrete(tensor):
                known.mark(tensor, state)
            elif known.is_discrete(tensor) or not any(marks):
                known.forget(tensor)
        if plan.name == GATHERED and len(tensors) == 2 and marks[1] and tensors[0].nbytes <= MESSAGE_BYTES:
            gathered, own = tensors
            known.mark(gathered, marks[1].state)
            if marks[1].real is not None and (mark := known.mark_of(gathered)):
                mark.real = marks[1].real[: own.numel()].repeat(gathered.numel() // own.numel())

    # ---- on the CPU

    def results(self, plan: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
        """Return what an operator makes, on the CPU, and whether that is real or assumed."""
        state = self._state(known.flat((args, kwargs)))
        return self._computed(plan, args, kwargs), state or ASSUMED

    def _computed(self, plan: Any, args: Any, kwargs: Any, written: dict[int, Any] | None = None) -> Any:
        def value(tensor: Any) -> Any:
            if written and id(tensor) in written:
                return written[id(tensor)]
            return known.value_of(tensor, known.mark_of(tensor)) if tensor.is_cuda else tensor.detach()

        args, kwargs = _mapped(args, value), _on_host(_mapped(kwargs, value))
        if plan.is_random and kwargs.get("generator") is None and plan.takes_generator:
            kwargs["generator"] = _drawing()
        return plan.func(*args, **kwargs)


def _begins_known(args: Any) -> bool:
    """Whether the first tensor of each list is known, which most often says it of none."""
    firsts = [value[0] if isinstance(value, list) and value else value for value in args]
    return all(known.mark_of(first) for first in firsts if known.is_ours(first))


def _drawing() -> torch.Generator:
    """Return a CPU generator that stands where the GPU's does."""
    device: Any = torch.cuda.default_generators[torch.cuda.current_device()]
    generator = torch.Generator(device="cpu")
    generator.manual_seed((device.initial_seed() + 1_000_003 * device.get_offset()) % (1 << 62))
    return generator


def _mapped(value: Any, function: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: _mapped(part, function) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(part, function) for part in value)
    return value


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return keywords with the CPU for a device, and no generator of the GPU's."""
    found = {name: value for name, value in kwargs.items() if not isinstance(value, torch.Generator)}
    if "device" in found:
        found["device"] = torch.device("cpu")
    found.pop("pin_memory", None)
    return found
