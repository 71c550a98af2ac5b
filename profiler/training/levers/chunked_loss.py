"""Lever `chunk-loss`: the model's head is put off; cross entropy computes its logits and gradients part by part."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal

import msgspec
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.grad_mode import set_multithreading_enabled
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry, register_flop_formula

from profiler.core.case import Case
from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Note
from profiler.core.user_code import users_line
from profiler.training.kept_state import kept
from profiler.training.workload import Workload

CASTS = ("float", "to", "type")
POINTWISE = (  # what a part may do with its own logits: casts, the scale and tanh of a softcap, and a bias
    *CASTS, "bfloat16", "half", "double", "div", "mul", "__truediv__", "__mul__", "__rmul__", "tanh", "add", "__add__",
)  # fmt: skip
ASKED = ("__get__", "size", "dim", "numel", "is_floating_point", "stride", "get_device", "__len__", "is_contiguous")
UNSEEN = (
    "F.linear_cross_entropy is one operator: its products are counted, what it reads and writes is not, so that its "
    "time is estimated too low; chunk-loss:by=parts has an estimate of all"
)
BY_TORCH = hasattr(F, "linear_cross_entropy")


def apply(
    workload: Workload, case: Case, *, rows: int = 1024, by: Literal["auto", "parts", "torch"] = "auto"
) -> tuple[Workload, Applied]:
    """Computes the head and cross entropy in parts of so many rows, so that the logits are never there at once.

    The head is found in one forward: a Linear, or an F.linear with a parameter, whose output meets cross entropy.
    `torch` uses F.linear_cross_entropy, and `parts` autograd; both keep the head's gradient from the forward on, and no
    logits. `auto` takes torch's where it is as exact, in plain fp32. Raises Unsupported where no head is found, and
    where the logits are read besides, with the reader's line.
    """
    if case.parallel:
        raise Unsupported("chunk-loss finds the head of a model that is whole, not one that ranks share")
    heads = Heads(rows, by)
    found = heads.found(workload.module, partial(heads.around(workload.loss), workload.module, workload.batch))
    heads.put_off(workload.module, found)
    text = f"the loss of {', '.join(name.removesuffix('.weight') for name in found)} in parts"
    notes = (Note(code="GCP071", text=UNSEEN),) if heads.is_by_torch and case.has_estimated_times else ()
    by_name = dict.fromkeys(heads.linears(workload.module), "torch" if heads.is_by_torch else "parts")
    applied = Applied(split=text, rounds=True, notes=notes, switch=heads.switch, heads=by_name)
    return msgspec.structs.replace(workload, loss=heads.around(workload.loss)), applied


class Heads(TorchFunctionMode):
    """Puts off every F.linear with one of these weights. Raises Unsupported where torch has no function `by` which."""

    def __init__(self, rows: int, by: str) -> None:
        super().__init__()
        if by == "torch" and not BY_TORCH:
            raise Unsupported("this torch has no F.linear_cross_entropy: chunk-loss:by=parts needs none")
        self.rows, self.by, self.is_on, self.is_by_torch = rows, by, True, False
        self.weights: dict[int, str] = {}
        self.chunked: set[str] = set()  # weights whose logits met cross entropy
        self.readers: dict[str, str] = {}  # by weight: what else read the logits, and where
        self.called: set[nn.Module] = set()  # Linears, in the forward that looks for heads

    def switch(self, on: bool) -> None:
        self.is_on = on

    def around(self, loss: Callable[[nn.Module, Any], torch.Tensor]) -> Callable[[nn.Module, Any], torch.Tensor]:
        def chunked(module: nn.Module, batch: Any) -> torch.Tensor:
            if not self.is_on:
                return loss(module, batch)
            with self:
                made = loss(module, batch)
            return whole(made, "the loss itself")  # type: ignore[no-any-return]

        return chunked

    def put_off(self, module: nn.Module, names: Collection[str]) -> None:
        """Put off, from now on, every F.linear with a weight of one of these names."""
        self.weights = {id(weight): name for name, weight in module.named_parameters() if name in names}

    def begin(self) -> None:
        """Begin a forward, in which `chunked` is about this one alone."""
        self.chunked.clear()
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """End the forward that has begun."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def found(self, module: nn.Module, forward: Callable[[], Any]) -> list[str]:
        """Run one forward with every F.linear put off; return the weights whose output meets cross entropy alone."""
        self.put_off(module, {name for name, weight in module.named_parameters() if weight.ndim == 2})
        linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
        handles = [linear.register_forward_pre_hook(lambda linear, _: self.called.add(linear)) for linear in linears]
        with torch.no_grad(), kept(module):
            forward()
        for handle in handles:
            handle.remove()
        if torch.cuda.is_initialized():  # what this forward left in the allocator would lower what a step reserves
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
        also_read = {name: self.readers[name] for name in self.chunked if name in self.readers}
        if also_read and len(also_read) == len(self.chunked):
            told = (f"the logits of {name} are also read: {why}" for name, why in also_read.items())
            raise Unsupported("; ".join(told))
        if not self.chunked:
            raise Unsupported("no head was found: no Linear whose output only meets cross entropy")
        return sorted(self.chunked - also_read.keys())

    def linears(self, module: nn.Module) -> list[str]:
        """Return the names of the Linears that are the heads; none if a head is an F.linear of the model's own code."""
        names: dict[int, str] = {id(part.weight): name for name, part in module.named_modules() if part in self.called}
        return [names[key] for key in self.weights] if self.weights.keys() <= names.keys() else []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "linear" and len(args) > 1 and id(args[1]) in self.weights:
            hidden, weight, *rest = args
            bias = rest[0] if rest else kwargs.get("bias")
            return Logits(whole(hidden, "a next layer"), weight, bias, heads=self, name=self.weights[id(weight)])
        return func(*args, **kwargs)


class Logits(torch.Tensor):
    """The output of a head that is not computed yet: the hidden states and the head's weight and bias.

    Slices and views of leading dimensions and pointwise operators are written down; cross entropy computes it in
    parts; whatever else is asked of it computes it whole, as if nothing had been put off.
    """

    hidden: torch.Tensor
    pointwise: tuple[tuple[Any, Any, Any], ...]
    classes_first: bool
    computed: torch.Tensor | None
    head: dict[str, Any]

    @staticmethod
    def __new__(
        cls, hidden: Any, weight: Any, bias: Any, *, heads: Any, name: Any, dtype: Any = None, pointwise: Any = (),
        classes_first: bool = False,
    ) -> Logits:  # fmt: skip
        kind = hidden.device.type
        dtype = dtype or (torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype)
        shape = (*hidden.shape[:-1], weight.shape[0])
        shape = (shape[0], shape[2], shape[1]) if classes_first else shape
        made: Logits = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=hidden.device)
        made.hidden, made.pointwise, made.classes_first, made.computed = hidden, pointwise, classes_first, None
        made.head = {"weight": weight, "bias": bias, "heads": heads, "name": name}
        return made

    def like(self, hidden: torch.Tensor | None = None, **changed: Any) -> Logits:
        """Return other logits of the same head."""
        own = {"pointwise": self.pointwise, "dtype": self.dtype, "classes_first": self.classes_first}
        return Logits(self.hidden if hidden is None else hidden, **{**self.head, **own, **changed})

    def of(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the computed logits of these hidden states."""
        values = F.linear(hidden, self.head["weight"], self.head["bias"])
        for func, args, kwargs in self.pointwise:
            values = func(values, *args, **kwargs)
        return values

    def whole(self, reader: str) -> torch.Tensor:
        """Return the computed logits; what reads them is kept."""
        if self.computed is None:
            heads, name = self.head["heads"], self.head["name"]
            heads.readers.setdefault(name, f"by {reader} at {users_line(sys._getframe()) or 'a place unknown'}")
            with torch._C.DisableTorchFunction():
                logits = self.of(self.hidden)
                self.computed = logits.transpose(1, 2) if self.classes_first else logits
        return self.computed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", str(func))
        if name in ASKED:
            with torch._C.DisableTorchFunctionSubclass():
                if getattr(getattr(func, "__self__", None), "__name__", "") == "requires_grad":
                    return torch.is_grad_enabled()
                return func(*args, **kwargs)
        own = args[0] if args and isinstance(args[0], Logits) else None
        if name == "untyped_storage" and own is not None and own.computed is None:
            return own.hidden.untyped_storage()  # for those who follow a step: what the logits hold
        put_off = None if own is None else _put_off(own, func, name, args[1:], kwargs)
        return func(*whole(args, name), **whole(kwargs, name)) if put_off is None else put_off

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*whole(args, str(func)), **whole(kwargs or {}, str(func)))


def whole(tree: Any, reader: str) -> Any:
    """Return any nesting of values with logits that were put off computed; `reader` is told where that is asked."""
    return pytree.tree_map_only(Logits, lambda logits: logits.whole(reader), tree)


def _put_off(own: Logits, func: Any, name: str, rest: Any, kwargs: Any) -> Any:
    """Return what a function makes of logits that stay put off, or their cross entropy; None if it reads them."""
    if name == "cross_entropy":  # the function itself may be replaced, where steps are traced
        return _cross_entropy(own, *rest, **kwargs)
    if name in POINTWISE and all(_is_for_each_row(own, one) for one in (*rest, *kwargs.values())):
        alike = pytree.tree_map_only(torch.Tensor, partial(torch.empty_like, device="meta"), (rest, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            dtype = func(torch.empty(1, dtype=own.dtype, device="meta"), *alike[0], **alike[1]).dtype
        return own.like(pointwise=(*own.pointwise, (func, rest, kwargs)), dtype=dtype)
    is_transpose = name == "transpose" and own.ndim == 3 and not kwargs
    if is_transpose and {place % 3 for place in rest} == {1, 2}:
        return own.like(classes_first=not own.classes_first)
    hidden = None if own.classes_first else _of_leading(own, func, name, rest, kwargs)
    return None if hidden is None else own.like(hidden)


def _is_for_each_row(own: Logits, value: Any) -> bool:
    """Whether a value is the same for each row: no tensor, a scalar, or one for each class, as a bias is."""
    if not isinstance(value, torch.Tensor) or not value.ndim:
        return True
    return value.numel() == value.shape[-1] == own.shape[-1] and not own.classes_first


def _of_leading(own: Logits, func: Any, name: str, rest: Any, kwargs: Any) -> torch.Tensor | None:
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
    own: Logits, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> torch.Tensor | None:  # fmt: skip
    """Return the cross entropy, computed in parts; None for kinds of it that need the whole logits."""
    is_plain = weight is None and size_average is None and reduce is None and not target.is_floating_point()
    if not is_plain or reduction == "none" or own.ndim != target.ndim + 1 or (own.ndim > 2 and not own.classes_first):
        return None
    heads, name = own.head["heads"], own.head["name"]
    heads.chunked.add(name)
    hidden, target = own.hidden.flatten(0, -2), target.flatten()
    how = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    is_exact = hidden.dtype == torch.float32 and not torch.is_autocast_enabled(hidden.device.type)
    is_torchs = BY_TORCH and is_exact and not own.pointwise and not label_smoothing
    with torch._C.DisableTorchFunction():
        if heads.by == "torch" or (heads.by == "auto" and is_torchs):
            return _by_torch(own, hidden, target, reduction=reduction, **how)
        head = own.head["weight"], own.head["bias"], own.pointwise
        leaves = {one: one.detach().requires_grad_() for one in _training(head)}  # whose hooks are for whole gradients
        weight, bias, pointwise = pytree.tree_map_only(torch.Tensor, lambda one: leaves.get(one, one), head)
        plain = own.like(hidden, classes_first=False, weight=weight, bias=bias, pointwise=pointwise)
        total = _summed(partial(_part, plain, how), hidden, target, heads.rows, leaves)
        return total / (target != ignore_index).sum() if reduction == "mean" else total


def _training(tree: Any) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(tree) if isinstance(one, torch.Tensor) and one.requires_grad]


def _summed(
    run: Callable[..., torch.Tensor], hidden: torch.Tensor, target: torch.Tensor, rows: int,
    leaves: dict[torch.Tensor, torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """Return the sum of what `run` makes of the parts of hidden states and targets, by the stand-ins of `leaves`.

    Each part's gradients are computed at once, while its logits are there, and kept for the backward: in this thread,
    since another would free the last ones some time later.
    """
    pairs = zip(hidden.split(rows), target.split(rows), strict=True)
    if not torch.is_grad_enabled():
        return torch.stack([run(*pair) for pair in pairs]).sum()
    inputs = [hidden] if hidden.requires_grad else []
    of_hidden, summed = [torch.empty_like(one) for one in inputs], list[torch.Tensor]()
    totals, start = [], 0
    for values, labels in pairs:
        part = values.detach().requires_grad_(hidden.requires_grad)
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):  # those of others are for the step's
            total = run(part, labels)
        with torch.autocast(hidden.device.type, enabled=False), set_multithreading_enabled(False):
            gradients = torch.autograd.grad(total, [*([part] if inputs else []), *leaves.values()])
        for whole_gradient in of_hidden:
            whole_gradient[start : start + len(labels)] = gradients[0]
        own = gradients[len(inputs) :]
        summed = [one.add_(more) for one, more in zip(summed, own, strict=True)] if summed else list(own)
        totals.append(total.detach())
        start += len(labels)
        del part, total, gradients, own  # before the next part's are made
    made: torch.Tensor = _Known.apply(torch.stack(totals).sum(), [*of_hidden, *summed], *inputs, *leaves)
    return made


class _Known(torch.autograd.Function):
    """A sum whose gradients are known; the backward scales them, and can run once."""

    @staticmethod
    def forward(ctx: Any, total: torch.Tensor, gradients: list[torch.Tensor], *leaves: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return total.clone()

    @staticmethod
    def backward(ctx: Any, factor: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, *(gradient.mul_(factor) for gradient in gradients)


def _part(logits: Logits, how: dict[str, Any], hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.of(hidden), target, reduction="sum", **how)


def _by_torch(own: Logits, hidden: torch.Tensor, target: torch.Tensor, **how: Any) -> torch.Tensor:
    """Return torch's own, which does not follow autocast; raises Unsupported for what it does not take."""
    if how["label_smoothing"] or any(func.__name__ not in CASTS for func, _, _ in own.pointwise):
        raise Unsupported("F.linear_cross_entropy has no softcap and no label smoothing: chunk-loss:by=parts")
    own.head["heads"].is_by_torch = True
    weight, bias, kind = own.head["weight"], own.head["bias"], hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=own.head["heads"].rows)
    bias = None if bias is None else bias.to(dtype)
    loss = F.linear_cross_entropy(hidden.to(dtype), weight.to(dtype), target, linear_bias=bias, options=options, **how)
    operator = torch.ops.torch_nn._linear_cross_entropy_batch_chunked  # is registered by the call
    if operator not in flop_registry:
        register_flop_formula(operator)(_flops)
    return loss.to(own.dtype)


def _flops(hidden: Any, weight: Any, *rest: Any, **more: Any) -> int:
    """Return the FLOPs of the logits and of both gradients, all in the forward, for which PyTorch has no formula."""
    return 3 * 2 * int(hidden[0] * hidden[1] * weight[0])
