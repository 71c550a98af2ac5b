"""Levers that change the step: micro-batches, and the optimizer's kernels, its state and when it steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

import msgspec
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from profiler.core.case import Case
from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Note
from profiler.training.kept_state import kept
from profiler.training.workload import Workload, tensors

Optimizer = torch.optim.Optimizer
LIBRARIES = {"torchao": "torchao.optim", "bitsandbytes": "bitsandbytes.optim"}  # that have 8-bit Adam and AdamW
HOOKED = (
    "its optimizer has hooks around its step, as one that clips all gradients at once: another optimizer would not run "
    "them"
)
TWICE = (
    "in-backward: the gradient of a parameter arrives twice in a backward, as that of a weight in two reentrant "
    "checkpoints does, and it would step twice: use_reentrant=False"
)


def fused(workload: Workload, case: Case) -> tuple[Workload, Applied]:
    """One kernel for the optimizer's whole step (fused=True), without the copies that its foreach kernels make."""
    return _changed(workload, partial(_like, fused=True, foreach=None))


def no_foreach(workload: Workload, case: Case) -> tuple[Workload, Applied]:
    """The optimizer's step parameter by parameter (foreach=False), without copies of all of them at once."""
    return _changed(workload, partial(_like, foreach=False))


def eight_bit(workload: Workload, case: Case) -> tuple[Workload, Applied]:
    """Adam's state in 8 bits, by torchao or bitsandbytes, whichever is installed. Its updates differ.

    Raises Unsupported where neither is installed, and for other optimizers than Adam and AdamW.
    """

    def change(optimizer: Optimizer) -> Optimizer:
        kind = type(optimizer)
        if kind not in (torch.optim.Adam, torch.optim.AdamW):
            raise Unsupported(f"8bit: no library has {kind.__name__} with an 8-bit state: --optimizer adamw")
        for module in LIBRARIES.values():
            try:
                made = getattr(import_module(module), f"{kind.__name__}8bit")
            except ImportError:
                continue
            names = ("lr", "betas", "eps", "weight_decay")
            return made(optimizer.param_groups[0]["params"], **{name: optimizer.defaults[name] for name in names})  # type: ignore[no-any-return]
        raise Unsupported("8bit needs a library: pip install torchao, or bitsandbytes")

    return _changed(workload, change, text="the optimizer's state has 8 bits: its updates differ from those of `none`")


def bf16_state(workload: Workload, case: Case) -> tuple[Workload, Applied]:
    """The optimizer's state in bfloat16; it steps parameter by parameter, in their own type. Its updates differ."""

    def change(optimizer: Optimizer) -> Optimizer:
        made = _one_by_one(optimizer)
        with_bf16_state(made)
        return made

    return _changed(workload, change, text="the optimizer's state is bfloat16: its updates differ from those of `none`")


def in_backward(workload: Workload, case: Case) -> tuple[Workload, Applied]:
    """Steps with each parameter as soon as its gradient is there, which is freed at once.

    Raises Unsupported where a parameter's gradient is not there at once: with accumulation, with a gradient scaler and
    on several ranks.
    """
    given = {
        "--accumulate": case.accumulate > 1,
        "--keep-grads": case.keep_gradients,
        "the gradient scaler of amp-fp16": case.precision == "amp-fp16",
        "--ranks": bool(case.ranks or case.parallel),
    }
    if named := [name for name, is_given in given.items() if is_given]:
        raise Unsupported(f"in-backward steps before gradients are complete: leave {named[0]} out")

    def change(optimizer: Optimizer) -> Optimizer:
        made, stepped = _one_by_one(optimizer), set[nn.Parameter]()

        def once(weight: Any) -> None:
            if weight in stepped:
                raise Unsupported(TWICE)
            stepped.add(weight)

        for weight in made.parts:
            weight.register_post_accumulate_grad_hook(once)
        step_in_backward(made)
        made.register_step_post_hook(lambda *_: stepped.clear())
        return made

    return _changed(workload, change)


# Until `_changed` all is plain PyTorch, since code that is emitted contains it: planning/plan_code.py


class OneByOne(Optimizer):
    """An optimizer of the same kind for each parameter; their groups are its own, as schedulers of the rate need."""

    def __init__(self, optimizer: Any) -> None:
        pairs = [(group, weight) for group in optimizer.param_groups for weight in group["params"]]
        kind: Any = type(optimizer)
        make = partial(kind, lr=optimizer.defaults["lr"])
        self.parts: dict[Any, Any] = {
            weight: make([{**group, "params": [weight]}]) for group, weight in pairs if weight.requires_grad
        }
        super().__init__(list(self.parts), {})
        self.param_groups = [group for part in self.parts.values() for group in part.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all."""
        for part in self.parts.values():
            self.state.update(part.state)
        made = super().state_dict()
        self.state.clear()
        return made

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a state dict that is loaded
        super().__setstate__(state)
        for group, (weight, part) in zip(self.param_groups, self.parts.items(), strict=True):
            part.state.update({weight: self.state.pop(weight)} if weight in self.state else {})
            part.__setstate__({"state": part.state, "param_groups": [group]})

    def step(self, closure: Any = None) -> Any:
        """Step with the parameters that have a gradient: those that have not stepped in the backward."""
        with torch.enable_grad():
            loss = closure() if closure else None
        for weight, part in self.parts.items():
            if weight.grad is not None:
                part.step()
        return loss


def step_in_backward(optimizer: OneByOne) -> None:
    """Step with each parameter as soon as its gradient is there: no accumulation, no clipping, no gradient scaler."""
    for weight in optimizer.parts:
        weight.register_post_accumulate_grad_hook(partial(_arrived, optimizer.parts[weight]))


def _arrived(optimizer: Optimizer, weight: Any) -> None:
    optimizer.step()
    weight.grad = None


def with_bf16_state(optimizer: OneByOne) -> None:
    """Between steps the state is bfloat16; each step computes in the type of its parameter."""
    for weight, part in optimizer.parts.items():
        part.register_step_pre_hook(partial(_cast, weight.dtype))
        part.register_step_post_hook(partial(_cast, torch.bfloat16))


def _cast(dtype: torch.dtype, optimizer: Optimizer, *_: Any) -> None:
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            is_like = isinstance(value, torch.Tensor) and value.shape == weight.shape and value.is_floating_point()
            if is_like and name != "step":  # which has the shape of a weight that is a scalar
                state[name] = value.to(dtype)


def _changed(
    workload: Workload, change: Callable[[Optimizer], Optimizer], *, text: str | None = None
) -> tuple[Workload, Applied]:
    notes = (Note(code="GCP070", text=text),) if text else ()
    changes = (*workload.optimizer_changes, change)
    return msgspec.structs.replace(workload, optimizer_changes=changes), Applied(notes=notes, rounds=True)


def _one_by_one(optimizer: Optimizer) -> OneByOne:
    """Return an optimizer of the same kind for each parameter that trains. Raises Unsupported if it needs all."""
    if isinstance(optimizer, OneByOne):
        return optimizer
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Unsupported("LBFGS steps with all parameters at once")
    _like(optimizer)  # raises
    return OneByOne(optimizer)


def _like(optimizer: Optimizer, **options: bool | None) -> Optimizer:
    """Return a fresh optimizer of the same kind and options, but for those given. Raises Unsupported."""
    kind = type(optimizer)
    library = kind.__module__.partition(".")[0]
    if library not in ("torch", *LIBRARIES) or not options.keys() <= optimizer.defaults.keys():
        wanted = f"no option {next(iter(options))}" if options else "parameters that cannot be told apart"
        raise Unsupported(f"its optimizer, {kind.__name__}, has {wanted}")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise Unsupported(HOOKED)
    changed = [{**group, **options} for group in optimizer.param_groups]
    try:
        return kind(changed, **{"lr": optimizer.defaults["lr"], **options})
    except RuntimeError as error:  # "`fused=True` requires all the params to be floating point Tensors ..."
        raise Unsupported(str(error).splitlines()[0]) from error


def apply(workload: Workload, case: Case, *, n: Count) -> tuple[Workload, Applied]:
    """Splits the batch into n parts with a forward and a backward each, whose gradients are summed.

    Where the loss is a mean over targets that are not ignored, each part counts by how many it has. Raises Unsupported
    where BatchNorm would see other statistics, and where the batch has no n samples.
    """
    if case.parallel:
        raise Unsupported("micro-batches: ranks have --accumulate and a smaller --batch-size")
    norms = [part for part in workload.module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if any(norm.training for norm in norms):
        raise Unsupported("micro-batches: BatchNorm would see the statistics of parts of the batch")
    leaves, form = pytree.tree_flatten(workload.batch)
    size = next((leaf.shape[0] for leaf in tensors(workload.batch) if leaf.ndim), 0)
    if size < n:
        raise Unsupported(f"the batch has {size} samples, which are not {n} parts")
    split = [
        leaf.tensor_split(n) if isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (size,) else [leaf] * n
        for leaf in leaves
    ]
    batches = [pytree.tree_unflatten(list(part), form) for part in zip(*split, strict=True)]
    rows = [float(len(part)) for part in torch.arange(size, device="cpu").tensor_split(n)]
    has_values = not (case.is_rehearsed or case.is_predicted)
    counts = [_count(workload, batch) for batch in batches] if has_values else [None]
    if all(count == "sum" for count in counts):
        weights = [1.0] * n
    else:
        known = [float(count) for count in counts if isinstance(count, int)]
        weights = _shares(known if len(known) == n else rows)
    parts = tuple(pair for pair in zip(batches, weights, strict=True) if pair[1])  # a mean over no targets is nan
    return msgspec.structs.replace(workload, parts=parts), Applied(
        split=f"{n} micro-batches", rounds=True, draws_apart=True
    )


def _shares(counts: list[float]) -> list[float]:
    return [count / (sum(counts) or 1.0) for count in counts]


def _count(workload: Workload, batch: Any) -> int | str | None:
    """Return over how many targets the loss of a batch is a mean; "sum" if it is a sum, None if neither is seen."""
    with torch.no_grad(), kept(workload.module), _Reductions() as seen:
        workload.loss(workload.module, batch)
    return seen.found[0] if len(set(seen.found)) == 1 else None


class _Reductions(TorchFunctionMode):
    """Notes what the losses of torch.nn.functional reduce over."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[int | str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            getattr(func, "__name__", "") in ("cross_entropy", "nll_loss")
            and kwargs.get("reduction", "mean") == "mean"
            and len(args) > 1
        ):
            target = args[1]
            ignored = kwargs.get("ignore_index", args[4] if len(args) > 4 else -100)
            if not target.is_floating_point():
                self.found.append(int((target != ignored).sum()))
        elif kwargs.get("reduction") == "sum":
            self.found.append("sum")
        return func(*args, **kwargs)


DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
ATTENTION = "scaled_dot_product_attention"
PLACE = 4  # of `dropout_p` among its arguments


@contextmanager
def without_dropout(met: set[str]) -> Iterator[None]:
    """Switch the dropout of torch.nn.functional off, modules' and attention's included; add what was met to `met`."""

    def off(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(own)
        def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            met.update([name] if p and training else [])
            return own(input, p, False, inplace)

        @wraps(own)
        def attention(*arguments: Any, **keywords: Any) -> Any:
            given = arguments[PLACE] if len(arguments) > PLACE else keywords.get("dropout_p", 0.0)
            met.update([name] if given else [])
            if len(arguments) > PLACE:
                arguments = (*arguments[:PLACE], 0.0, *arguments[PLACE + 1 :])
            return own(*arguments, **({**keywords, "dropout_p": 0.0} if "dropout_p" in keywords else keywords))

        return attention if name == ATTENTION else dropout

    with ExitStack() as stack:  # in all threads, since a backward on a GPU recomputes in one of its own
        for name in (*DROPOUTS, ATTENTION):
            stack.enter_context(patch.object(F, name, off(name, getattr(F, name))))
        yield
