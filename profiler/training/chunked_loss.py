"""Lever `chunk-loss`: the model's head is put off; cross entropy computes its logits and gradients part by part.

Until UNSEEN all is plain PyTorch, since code that is emitted contains it: planning/plan_code.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import msgspec
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry, register_flop_formula

from profiler.core.case import Case
from profiler.core.errors import Unsupported, users_line
from profiler.core.record import Applied, Note
from profiler.training.kept_state import kept
from profiler.training.workload import Workload

POINTWISE = (  # what a part may do with its own logits: casts, the scale and tanh of a softcap, and a bias
    "float", "to", "type", "bfloat16", "half", "double", "div", "mul", "__truediv__", "__mul__", "__rmul__", "tanh",
    "add", "__add__",
)  # fmt: skip
CASTS = ("float", "to", "type")
ASKED = ("__get__", "size", "dim", "numel", "is_floating_point", "stride", "get_device", "__len__", "is_contiguous")
SLICE = 1 << 24  # logits that are in float32 at once: enough for a GPU's kernels
ROWS = 1024  # of a part at least, by default
ELEMENTS = 1 << 23  # of a part's logits: with fewer a GPU mostly waits for its next kernel
TAKEN = ("weight", "bias", "heads", "weight_name", "pointwise", "classes_first", "cast")  # attributes of logits


class Logits(torch.Tensor):
    """The product of hidden states and a head's weight that is not computed yet.

    Views and slices of leading dimensions and pointwise operators are written down; cross entropy computes it in parts;
    whatever else is asked of it computes it whole, as if nothing had been put off.
    """

    @staticmethod
    def __new__(
        cls, hidden: Any, weight: Any, bias: Any, heads: Any, weight_name: Any, *, dtype: Any = None,
        pointwise: Any = (), classes_first: bool = False, cast: Any = None,
    ) -> Any:  # fmt: skip
        kind = hidden.device.type
        if dtype is None and torch.is_autocast_enabled(kind):  # also where the loss is outside of it
            cast = torch.get_autocast_dtype(kind)
        dtype = dtype or cast or hidden.dtype
        shape = (*hidden.shape[:-1], weight.shape[0])
        shape = (shape[0], shape[2], shape[1]) if classes_first else shape
        made: Any = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=hidden.device)
        made.hidden, made.weight, made.bias, made.heads, made.weight_name = hidden, weight, bias, heads, weight_name
        made.pointwise, made.classes_first, made.cast, made.computed = pointwise, classes_first, cast, None
        return made

    def like(self: Any, hidden: Any = None, **changed: Any) -> Any:
        """Return other logits of the same head."""
        own = {name: getattr(self, name) for name in TAKEN}
        return type(self)(self.hidden if hidden is None else hidden, **{**own, "dtype": self.dtype, **changed})

    def of(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        """Return the computed logits of these hidden states."""
        return self.after(self.product(hidden))  # type: ignore[no-any-return]

    def product(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        """Return the product of these hidden states and the weight."""
        with torch.autocast(hidden.device.type, self.cast, enabled=self.cast is not None):
            return F.linear(hidden, self.weight, self.bias)

    def after(self: Any, values: torch.Tensor) -> torch.Tensor:
        """Return what the pointwise operators make of such products."""
        for func, args, kwargs in self.pointwise:
            values = func(values, *args, **kwargs)
        return values

    def whole(self: Any) -> torch.Tensor:
        """Return the computed logits."""
        if self.computed is None:
            with torch._C.DisableTorchFunction():
                logits = self.of(self.hidden)
                self.computed = logits.transpose(1, 2) if self.classes_first else logits
        return self.computed  # type: ignore[no-any-return]

    def is_written(self: Any) -> bool:
        """Whether the computed logits were changed in place, have hooks or keep a gradient: no product any more."""
        made = self.computed
        if made is None or made.is_inference():
            return made is not None
        return bool(made._version or made.retains_grad or made._backward_hooks)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", str(func))
        if name in ASKED:
            asked = getattr(getattr(func, "__self__", None), "__name__", "")  # a property
            if asked == "requires_grad":
                return torch.is_grad_enabled()
            if asked == "grad" and args[0].computed is not None:
                return args[0].computed.grad
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        own: Any = args[0] if args and isinstance(args[0], Logits) else None
        if name == "untyped_storage" and own is not None and own.computed is None:
            return own.hidden.untyped_storage()  # for those who follow a step: what the logits hold
        if name in ("retain_grad", "register_hook") and own is not None and own.weight_name in own.heads.chunked:
            raise RuntimeError("logits whose loss was computed in parts have no gradient: leave chunk-loss out")
        made = None if own is None or own.is_written() else _put_off(own, func, name, args[1:], kwargs)
        return func(*whole(args), **whole(kwargs)) if made is None else made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*whole(args), **whole(kwargs or {}))


class Heads(TorchFunctionMode):
    """Puts off every F.linear with one of its weights; `loss` computes their cross entropy."""

    def __init__(self, loss: Any, kind: type[Logits] = Logits) -> None:
        super().__init__()
        self.loss, self.kind = loss, kind
        self.weights: dict[int, str] = {}  # names by id
        self.chunked: set[str] = set()  # weights whose logits met cross entropy

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "linear" and len(args) > 1 and id(args[1]) in self.weights:
            (hidden, weight), bias = args[:2], args[2] if len(args) > 2 else kwargs.get("bias")
            return self.kind(whole(hidden), weight, bias, self, self.weights[id(weight)])
        return func(*args, **kwargs)


def put_off(module: nn.Module, names: list[str], heads: Heads, *, has_loss: bool = False) -> None:
    """Within calls of the module, put its products with these weights off until cross entropy computes them in parts.

    A call that `has_loss` returns whole logits where it has met none, as in an evaluation.
    """

    def begin(module: nn.Module, given: Any) -> None:
        heads.weights = {id(module.get_parameter(name)): name for name in names}
        heads.chunked.clear()
        heads.__enter__()  # type: ignore[no-untyped-call]

    def end(module: nn.Module, given: Any, output: Any) -> Any:
        heads.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        leaves = pytree.tree_leaves(output) if has_loss and not heads.chunked else []
        return whole(output) if any(isinstance(leaf, Logits) for leaf in leaves) else None

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end, always_call=True)


def whole(tree: Any) -> Any:
    """Return any nesting of values with logits that were put off computed."""
    return pytree.tree_map_only(Logits, lambda logits: logits.whole(), tree)


def _put_off(own: Any, func: Any, name: str, rest: Any, kwargs: Any) -> Any:
    """Return what a function makes of logits that stay put off, or their cross entropy; None if it reads them."""
    if name == "cross_entropy":  # the function itself may be replaced, where steps are traced
        return _cross_entropy(own, *rest, **kwargs)
    if name in POINTWISE and all(_is_for_each_row(own, one) for one in (*rest, *kwargs.values())):
        none = torch.empty(0, own.shape[-1], dtype=own.dtype, device=own.device)
        with torch._C.DisableTorchFunctionSubclass():
            made = func(none, *rest, **kwargs)
        if not isinstance(made, torch.Tensor) or (made.shape, made.device) != (none.shape, none.device):
            return None
        return own.like(pointwise=(*own.pointwise, (func, rest, kwargs)), dtype=made.dtype)
    is_transpose = name == "transpose" and own.ndim == 3 and not kwargs
    if is_transpose and {place % 3 for place in rest} == {1, 2}:
        return own.like(classes_first=not own.classes_first)
    hidden = None if own.classes_first else _of_leading(own, func, name, rest, kwargs)
    return None if hidden is None else own.like(hidden)


def _is_for_each_row(own: Any, value: Any) -> bool:
    """Whether a value is the same for each row: no tensor, a scalar, or one for each class, as a bias is."""
    if not isinstance(value, torch.Tensor) or not value.ndim:
        return True
    return value.numel() == value.shape[-1] == own.shape[-1] and not own.classes_first


def _of_leading(own: Any, func: Any, name: str, rest: Any, kwargs: Any) -> Any:
    """Return the hidden states after a view or slice that leaves the last dimension alone; None if it does not."""
    if name == "contiguous":
        return own.hidden
    if name == "__getitem__":
        index = rest[0] if isinstance(rest[0], tuple) else (rest[0],)
        is_sliced = all(one is Ellipsis or isinstance(one, slice) for one in index)
        is_whole = is_sliced and (index[-1] == slice(None) or (Ellipsis not in index and len(index) < own.ndim))
        return own.hidden[index] if is_whole else None
    if name not in ("view", "reshape", "flatten"):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        seen = func(torch.empty(own.shape, dtype=own.dtype, device="meta"), *rest, **kwargs)
    is_whole = seen.shape[-1:] == own.shape[-1:] and seen.dtype == own.dtype
    return own.hidden.reshape(*seen.shape[:-1], own.hidden.shape[-1]) if is_whole else None


def _cross_entropy(  # noqa: PLR0917  as in torch
    own: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Return the cross entropy, computed in parts; None for kinds of it that need the whole logits."""
    is_plain = weight is None and size_average is None and reduce is None and target.dtype == torch.long
    is_plain = is_plain and own.ndim == target.ndim + 1 == (3 if own.classes_first else 2)
    if not is_plain or reduction == "none":
        return None
    own.heads.chunked.add(own.weight_name)
    how = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
    with torch._C.DisableTorchFunction():
        return own.heads.loss(own, own.hidden.flatten(0, -2), target.flatten(), **how)


def by_parts(
    logits: Any, hidden: torch.Tensor, target: torch.Tensor, *, rows: int = 0, reduction: str, **how: Any
) -> torch.Tensor:
    """Return the cross entropy by parts of so many rows; of 0 it chooses.

    Each part's gradients are computed at once, while its logits are there, and kept for the backward: in this thread,
    since another would free the last ones some time later.
    """
    logits, rows = logits.like(hidden, classes_first=False), rows or rows_of(logits.weight, hidden)
    leaves = pytree.tree_leaves((hidden, logits.weight, logits.bias, logits.pointwise))
    if torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in leaves):
        total = _with_gradients(logits, hidden, target, rows=rows, **how)
    else:
        wide = torch.promote_types(logits.dtype, torch.float32)
        pairs = zip(hidden.split(rows), target.split(rows), strict=True)
        parts = ((logits.of(values).to(wide), labels) for values, labels in pairs)
        total = torch.stack([F.cross_entropy(*part, reduction="sum", **how) for part in parts]).sum()
    if reduction != "sum":
        count = (target != how["ignore_index"]).sum()
        if_none = total.detach() / count  # nan, with gradients of 0, as of a whole loss
        total = torch.where(count > 0, total / count.clamp(min=1), if_none)
    return total if torch.is_autocast_enabled(hidden.device.type) else total.to(logits.dtype)


def rows_of(weight: torch.Tensor, hidden: torch.Tensor) -> int:
    """Return the rows of a part by default: more of a small vocabulary, but at most a quarter of many."""
    return max(ROWS, min(ELEMENTS // len(weight), -(-len(hidden) // 4)))


def _with_gradients(
    logits: Any, hidden: torch.Tensor, target: torch.Tensor, *, rows: int, ignore_index: int, label_smoothing: float
) -> torch.Tensor:
    """Return the sum over the parts, whose gradients are known."""
    weight, bias, pointwise = logits.weight, logits.bias, logits.pointwise
    if pointwise and pointwise[-1][0].__name__ in CASTS and logits.dtype == torch.float32:
        pointwise = pointwise[:-1]  # `_likelihoods` casts
    trained = [one for one in pytree.tree_leaves(pointwise) if isinstance(one, torch.Tensor)]
    leaves = {one: one.detach().requires_grad_() for one in trained if one.requires_grad}  # without hooks for wholes
    pointwise = pytree.tree_map_only(torch.Tensor, lambda one: leaves.get(one, one), pointwise)
    lower = weight.dtype if weight.dtype == torch.float64 else logits.cast or weight.dtype
    bare = {"weight": weight.detach().to(lower), "bias": None if bias is None else bias.detach()}
    low = logits.like(**bare, pointwise=pointwise)
    of_hidden = torch.empty_like(hidden)
    of_weight = torch.zeros_like(weight) if weight.requires_grad else None
    of_bias = _zeros(bias) if bias is not None and bias.requires_grad else None
    is_counted = (target != ignore_index).unsqueeze(1)
    index = target.unsqueeze(1) * is_counted
    summed, likelihoods, start = [*map(_zeros, leaves)], [], 0
    for values, labels, counted in zip(hidden.split(rows), index.split(rows), is_counted.split(rows), strict=True):
        part = values.detach().where(counted, 0).requires_grad_()  # for less than to mask the gradient of the logits
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):  # those of others are for the step's
            computed = [low.after(_Product.apply(part, low, of_weight, of_bias, counted))]
        edge = torch.autograd.graph.get_gradient_edge(computed[0])
        one_thread = torch.autograd.set_multithreading_enabled(False)
        with torch.autocast(hidden.device.type, enabled=False), one_thread:
            with torch.no_grad():
                values = computed.pop().detach()  # the gradient takes its place if no operator has kept it
                gradient = torch.empty_like(values) if pointwise else values
                likelihoods += _likelihoods(values, labels, gradient, label_smoothing)
                if leaves:
                    gradient.mul_(counted)
            of_hidden[start : start + len(labels)], *rest = torch.autograd.grad(
                [edge], [part, *leaves.values()], [gradient]
            )
        for one, more in zip(summed, rest, strict=True):
            one.add_(more)
        start += len(labels)
        del values, part, edge, gradient, rest  # before the next part's are made
    made = [(hidden, of_hidden), (weight, of_weight), (bias, of_bias), *zip(leaves, summed, strict=True)]
    inputs, gradients = zip(*(pair for pair in made if pair[1] is not None), strict=True)
    of_hidden.mul_(is_counted)
    total = -(torch.cat(likelihoods) * is_counted).sum()
    return _Known.apply(total, [*gradients], *inputs)  # type: ignore[no-any-return]


def _zeros(leaf: torch.Tensor) -> torch.Tensor:
    """Return zeros to which the gradients of a leaf of at most a row are added, in float32 or the leaf's wider type."""
    return torch.zeros_like(leaf, dtype=torch.promote_types(leaf.dtype, torch.float32))


def _likelihoods(
    values: torch.Tensor, index: torch.Tensor, gradient: torch.Tensor, smoothing: float
) -> list[torch.Tensor]:
    """Return the log-likelihoods of the rows' labels, and write the gradient of their negative, which may be in place.

    Wider than its own type is only a slice of the logits at a time.
    """
    likelihoods, slices = [], max(1, -(-values.numel() // SLICE))
    for some, labels, into in zip(values.chunk(slices), index.chunk(slices), gradient.chunk(slices), strict=True):
        log = some.to(torch.promote_types(some.dtype, torch.float32), copy=gradient is not values)
        torch.log_softmax(log, -1, out=log)  # it writes an element after it has read its row
        try:
            own = log.gather(1, labels)
        except RuntimeError:
            F.nll_loss(log, labels.flatten(), ignore_index=0)  # raises IndexError for a label that is no class
            raise
        change = own.expm1()
        if smoothing:
            evenly = smoothing / values.shape[1]
            own, change = own * (1 - smoothing) + evenly * log.sum(1, keepdim=True), change + (smoothing - evenly)
            torch.sub(log.exp_(), evenly, out=into)
        else:
            torch.exp(log, out=into)
        into.scatter_(1, labels, change.to(into.dtype))
        likelihoods.append(own)
    return likelihoods


class _Product(torch.autograd.Function):
    """A part's product with the weight, whose gradient, and that of the bias, are added to sums in the backward."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, logits: Any, of_weight: Any, of_bias: Any, counted: Any) -> torch.Tensor:
        cast = hidden if logits.cast is None else hidden.to(logits.weight.dtype)
        ctx.save_for_backward(cast, logits.weight, counted)
        ctx.sums, ctx.dtype = (of_weight, of_bias), hidden.dtype
        return logits.product(cast)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        cast, weight, counted = ctx.saved_tensors
        of_weight, of_bias = ctx.sums
        if of_weight is not None:
            _add_product(of_weight, gradient.t(), cast)
        if of_bias is not None:
            _add_product(of_bias.unsqueeze(0), counted.to(gradient.dtype).t(), gradient)
        return (gradient @ weight).to(ctx.dtype), None, None, None, None


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add left @ right to the total; by one kernel where a GPU has one for a total of float32 and lower factors."""
    is_ampere = total.is_cuda and (not torch.cuda.is_available() or torch.cuda.is_bf16_supported(False))
    if total.dtype == left.dtype:
        torch.addmm(total, left, right, out=total)
    elif is_ampere and total.dtype == torch.float32 and left.dtype != torch.float64:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.add_(left @ right)


class _Known(torch.autograd.Function):
    """A sum whose gradients are known; the backward scales them, and can run once."""

    @staticmethod
    def forward(ctx: Any, total: torch.Tensor, gradients: list[torch.Tensor], *leaves: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return total.clone()

    @staticmethod
    def backward(ctx: Any, factor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled() or ctx.gradients is None:  # create_graph=True: it would lack that of the loss
            raise RuntimeError("a loss in parts has one backward and no second derivative: leave chunk-loss out")
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, *(gradient.mul_(factor) for gradient in gradients)  # which autograd casts to their leaves'


def by_torch(logits: Any, hidden: torch.Tensor, target: torch.Tensor, *, rows: int = 0, **how: Any) -> torch.Tensor:
    """Return the cross entropy by torch's own operator, which does not follow autocast."""
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else logits.weight.dtype
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=rows or rows_of(logits.weight, hidden))
    weight, bias = logits.weight.to(dtype), None if logits.bias is None else logits.bias.to(dtype)
    loss = F.linear_cross_entropy(hidden.to(dtype), weight, target, linear_bias=bias, options=options, **how)
    return loss.to(logits.dtype)


UNSEEN = (
    "F.linear_cross_entropy is one operator: its products are counted, what it reads and writes is not, so that its "
    "time is estimated too low; chunk-loss:by=parts has an estimate of all"
)


def apply(
    workload: Workload, case: Case, *, rows: int = 0, by: Literal["auto", "parts", "torch"] = "auto"
) -> tuple[Workload, Applied]:
    """Computes the head and cross entropy in parts of so many rows (0: chosen), so that there are never all logits.

    Chosen are 1024, or more of a vocabulary below 8192. The head is found in one forward: a Linear, or an F.linear with
    a parameter, whose output meets cross entropy. `torch` uses F.linear_cross_entropy, and `parts` autograd; both keep
    the head's gradient from the forward on, and no logits. `auto` is `parts`: torch's own subtracts two sums, so that
    small gradients are rounded by more. Raises Unsupported where no head is found, and where the logits are read
    besides, with the reader's line.
    """
    if case.parallel:
        raise Unsupported("chunk-loss finds the head of a model that is whole, not one that ranks share")
    heads = FoundHeads(rows, by)
    found = heads.found(workload.module, partial(heads.around(workload.loss), workload.module, workload.batch))
    heads.choose(workload.module, found)
    text = f"the loss of {', '.join(name.removesuffix('.weight') for name in found)} in parts"
    notes = (Note(code="GCP071", text=UNSEEN),) if by == "torch" and case.has_estimated_times else ()
    turn, places = partial(setattr, heads, "is_on"), heads.places(workload.module)
    applied = Applied(split=text, rounds=True, notes=notes, switch=turn, heads=places)
    return msgspec.structs.replace(workload, loss=heads.around(workload.loss)), applied


class FoundHeads(Heads):
    """Finds heads, and has those put off. Raises Unsupported where torch has no function `by` which."""

    def __init__(self, rows: int, by: str) -> None:
        if by == "torch" and not hasattr(F, "linear_cross_entropy"):
            raise Unsupported("this torch has no F.linear_cross_entropy: chunk-loss:by=parts needs none")
        super().__init__(partial(_by_torch if by == "torch" else by_parts, rows=rows), WatchedLogits)
        self.is_on, self.asked = True, ""  # the latter is the function that was called last
        self.readers: dict[str, str] = {}  # by weight: what else read the logits, and where
        self.called: set[nn.Module] = set()  # Linears, in the forward that looks for heads

    def around(self, loss: Callable[[nn.Module, Any], torch.Tensor]) -> Callable[[nn.Module, Any], torch.Tensor]:
        def chunked(module: nn.Module, batch: Any) -> torch.Tensor:
            if not self.is_on:
                return loss(module, batch)
            self.chunked.clear()
            with self:
                made = loss(module, batch)
            self.asked = "the loss itself"
            return whole(made)  # type: ignore[no-any-return]

        return chunked

    def choose(self, module: nn.Module, names: Collection[str]) -> None:
        """Put off, from now on, every F.linear with a weight of one of these names."""
        self.weights = {id(weight): name for name, weight in module.named_parameters() if name in names}

    def found(self, module: nn.Module, forward: Callable[[], Any], *, within: str = "") -> list[str]:
        """Run one forward with every F.linear put off; return the weights whose output meets cross entropy alone.

        Raises Unsupported if none does `within` what was called.
        """
        self.choose(module, {name for name, weight in module.named_parameters() if weight.ndim == 2})
        linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
        with torch.no_grad(), kept(module), ExitStack() as hooks:
            for linear in linears:
                hooks.callback(linear.register_forward_pre_hook(lambda linear, _: self.called.add(linear)).remove)
            forward()
        if torch.cuda.is_initialized():  # what this forward left in the allocator would lower what a step reserves
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
        also_read = {name: self.readers[name] for name in self.chunked if name in self.readers}
        if also_read and len(also_read) == len(self.chunked):
            raise Unsupported("; ".join(f"the logits of {one} are also read: {why}" for one, why in also_read.items()))
        if not self.chunked:
            raise Unsupported(f"no head was found: no Linear whose output only meets cross entropy{within}")
        return sorted(self.chunked - also_read.keys())

    def places(self, module: nn.Module) -> dict[str, str]:
        """Return by weight within the calls of which module it is put off: of its Linear, or of all."""
        linears = {id(part.weight): name for name, part in module.named_modules() if part in self.called}
        return {
            f"{linears[key]}.weight".lstrip(".") if key in linears else name: linears.get(key, "")
            for key, name in self.weights.items()
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.asked = getattr(func, "__name__", str(func))
        return super().__torch_function__(func, types, args, kwargs)


class WatchedLogits(Logits):
    """Logits of which is kept what reads them."""

    def whole(self: Any) -> torch.Tensor:
        if self.computed is None:
            line = users_line(sys._getframe()) or "a place unknown"
            self.heads.readers.setdefault(self.weight_name, f"by {self.heads.asked} at {line}")
        return super().whole()


def _by_torch(logits: Any, hidden: torch.Tensor, target: torch.Tensor, **how: Any) -> torch.Tensor:
    """Return torch's own; raises Unsupported for what it does not take."""
    if how["label_smoothing"] or any(func.__name__ not in CASTS for func, _, _ in logits.pointwise):
        raise Unsupported("F.linear_cross_entropy has no softcap and no label smoothing: chunk-loss:by=parts")
    loss = by_torch(logits, hidden, target, **how)
    operator = torch.ops.torch_nn._linear_cross_entropy_batch_chunked  # is registered by the call
    if operator not in flop_registry:

        @register_flop_formula(operator)
        def flops(hidden: Any, weight: Any, *rest: Any, **more: Any) -> int:  # of logits and both gradients, at once
            return 3 * 2 * int(hidden[0] * hidden[1] * weight[0])

    return loss
