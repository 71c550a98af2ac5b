"""Optimizers of torch.optim, what a user's optimizer wraps, and the levers that change its kernels, state and steps."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any

import msgspec
import torch
from torch import nn

from profiler.core.case import Case
from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported, similar
from profiler.core.record import Applied, Note
from profiler.training.kept_state import contents
from profiler.training.workload import Workload, tensors

IN_BACKWARD = "_in_backward_optimizers"  # attribute of a parameter, set by torch.distributed.optim


def sgd(parameters: Iterable[nn.Parameter], *, lr: float = 0.01) -> torch.optim.Optimizer:
    """Stochastic gradient descent: no state."""
    return torch.optim.SGD(parameters, lr=lr)


def momentum(parameters: Iterable[nn.Parameter], *, lr: float = 0.01, momentum: float = 0.9) -> torch.optim.Optimizer:
    """SGD with momentum: one tensor of state for each parameter."""
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum)


def adam(parameters: Iterable[nn.Parameter], *, lr: float = 0.001) -> torch.optim.Optimizer:
    """Adam: two tensors of state for each parameter."""
    return torch.optim.Adam(parameters, lr=lr)


def adamw(parameters: Iterable[nn.Parameter], *, lr: float = 0.001) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay: two tensors of state for each parameter."""
    return torch.optim.AdamW(parameters, lr=lr)


def build(parameters: Iterable[nn.Parameter], name: str, **options: Any) -> torch.optim.Optimizer:
    """Any optimizer of torch.optim by its class's name, with its own options: `torch:RAdam:lr=0.01`.

    Raises Unsupported for a name that torch.optim does not have, naming the nearest, or options that it does not take.
    """
    classes = {attribute: kind for attribute, kind in vars(torch.optim).items() if isinstance(kind, type)}
    kind = classes.get(name)
    if kind is None or not issubclass(kind, torch.optim.Optimizer):
        near = similar(name, classes)
        raise Unsupported(f"torch.optim has no '{name}'" + (f"; did you mean {near[0]}?" if near else ""))
    try:
        made: torch.optim.Optimizer = kind(parameters, **options)
    except (TypeError, ValueError) as error:
        raise Unsupported(f"torch.optim.{name}: {error}") from error
    return made


def wrapped(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return the optimizer and those that it references in attributes, lists, tuples and dicts at any depth, once each.

    Optimizers that hooks of its parameters reference are included. Examples: Muon for matrices with AdamW for the rest,
    Lookahead, and one optimizer per parameter that steps as soon as the gradient arrives.
    """
    found: dict[int, Any] = {}
    pending = deque([optimizer, *held_by_hooks(optimizer)])
    while pending:
        part = pending.popleft()
        if not isinstance(part, (torch.optim.Optimizer, list, tuple, dict)) or id(part) in found:
            continue
        found[id(part)] = part
        inner = _own_attributes(part) if isinstance(part, torch.optim.Optimizer) else part
        pending += inner.values() if isinstance(inner, dict) else inner
    return [part for part in found.values() if isinstance(part, torch.optim.Optimizer)]


def _own_attributes(part: torch.optim.Optimizer) -> list[Any]:
    """Return the values of an optimizer's attributes, except those that every optimizer has."""
    of_all = {"state", "param_groups", "defaults"}
    return [value for name, value in vars(part).items() if name not in of_all]


def states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, Mapping[str, Any]]]:
    """Yield each parameter that has state with that state, once for each optimizer that keeps some."""
    for state in {id(part.state): part.state for part in wrapped(optimizer)}.values():  # Buckets share one
        yield from state.items()


def between_steps(workload: Workload, optimizer: torch.optim.Optimizer) -> Iterator[tuple[Any, str, str]]:
    """Yield what lives between two steps: tensors in any nesting, their category, and the module that owns them.

    What is yielded twice is of its first category.
    """
    owned: dict[torch.Tensor, str] = {
        parameter: name.rpartition(".")[0] for name, parameter in workload.module.named_parameters()
    }
    for parameter, owner in owned.items():
        yield parameter.detach(), "parameters", owner
    for name, buffer in workload.module.named_buffers():
        yield buffer, "buffers", name.rpartition(".")[0]
    yield workload.batch, "inputs", ""  # before the gradients: sparse gradients share its indices
    for parameter, owner in owned.items():
        yield parameter.grad, "gradients", owner
    for one, state in states(optimizer):
        yield dict(state), "optimizer", owned.get(one, "")
    for part in wrapped(optimizer):
        yield tensors(_own_attributes(part)), "optimizer", ""  # outside of any state: Lookahead's slow weights


def hooks_of(parameter: torch.Tensor) -> dict[int, Callable[..., Any]]:
    """Return PyTorch's own dict of the parameter's post-accumulate-gradient hooks; an empty one if it has none."""
    hooks: dict[int, Callable[..., Any]] | None = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return {} if hooks is None else hooks


def held_by_hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return what the hooks of the optimizer's parameters reference; a hook that several parameters share counts once.

    These are closures, bound objects, arguments and globals, and optimizers that torch.distributed.optim attached.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    hooks = {id(hook): hook for parameter in parameters for hook in hooks_of(parameter).values()}
    held = [value for hook in hooks.values() for value in held_by(hook)]
    return held + [value for parameter in parameters for value in getattr(parameter, IN_BACKWARD, ())]


def held_by(hook: Any) -> list[Any]:
    """Return the objects that a callable references, among which may be the optimizer that it steps."""
    if isinstance(hook, partial):
        return [*held_by(hook.func), *hook.args, *hook.keywords.values()]
    if isinstance(hook, MethodType):
        return [*held_by(hook.__func__), *_attributes(hook.__self__)]
    if not isinstance(hook, FunctionType):
        return _attributes(hook)
    cells = [held for cell in hook.__closure__ or () for held in contents(cell)]
    named = [hook.__globals__[name] for name in hook.__code__.co_names if name in hook.__globals__]
    return [*cells, *named, *(hook.__defaults__ or ())]


def _attributes(of: Any) -> list[Any]:
    return [of, *vars(of).values()] if hasattr(of, "__dict__") and not isinstance(of, nn.Module) else [of]


@contextmanager
def put_back(parameters: Mapping[str, torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Restore, on exit, the gradients that hooks dropped inside the context; yields the list of their parameters.

    The list is filled on exit. The gradients of several micro-batches are summed.
    """
    arrived: dict[str, torch.Tensor] = {}
    dropped: list[torch.Tensor] = []

    def keep(name: str, gradient: torch.Tensor) -> None:
        arrived[name] = arrived[name] + gradient if name in arrived else gradient.detach().clone()

    hooked = {name: one for name, one in parameters.items() if hooks_of(one) or hasattr(one, IN_BACKWARD)}
    with ExitStack() as watching:
        for name, parameter in hooked.items():
            watching.enter_context(parameter.register_hook(partial(keep, name)))
        yield dropped
    for name, gradient in arrived.items():
        if hooked[name].grad is None:
            hooked[name].grad = gradient
            dropped.append(hooked[name])


def let_go(parameters: Iterable[weakref.ref[nn.Parameter]]) -> None:
    """Remove the hooks of parameters that have outlived their model.

    A hook that references its parameter forms a cycle through PyTorch's internals, which the garbage collector cannot
    see.
    """
    for reference in parameters:
        if (parameter := reference()) is not None:
            hooks_of(parameter).clear()


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
                library = import_module(module)
            except ImportError:
                continue
            return in_8_bits(optimizer, library)  # type: ignore[no-any-return]
        raise Unsupported("8bit needs a library: pip install torchao, or bitsandbytes")

    return _changed(workload, change, text="the optimizer's state has 8 bits: its updates differ from those of `none`")


def bf16_state(workload: Workload, case: Case) -> tuple[Workload, Applied]:
    """The optimizer's state in bfloat16; it steps by 25 MiB of parameters, in their own type. Its updates differ."""

    def change(optimizer: Optimizer) -> Optimizer:
        made = _in_buckets(optimizer)
        with_bf16_state(made)
        return made

    return _changed(workload, change, text="the optimizer's state is bfloat16: its updates differ from those of `none`")


def in_backward(workload: Workload, case: Case, *, mib: Count = 25) -> tuple[Workload, Applied]:
    """Steps with so many MiB of parameters, or a larger one, as soon as their gradients are there, and frees these.

    Fewer at once take less memory, and more of the host's time. Raises Unsupported where a parameter's gradient is not
    there at once: with accumulation, with a gradient scaler and on several ranks.
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
        made, stepped = _in_buckets(optimizer, mib << 20), set[nn.Parameter]()

        def once(weight: Any) -> None:
            if weight in stepped:
                raise Unsupported(TWICE)
            stepped.add(weight)

        for weight in [one for group in made.param_groups for one in group["params"]]:
            weight.register_post_accumulate_grad_hook(once)
        step_in_backward(made)
        made.register_step_post_hook(lambda *_: stepped.clear())
        return made

    return _changed(workload, change)


# Until `_changed` all is plain PyTorch, since code that is emitted contains it: planning/plan_code.py


def like(optimizer: Any, **options: Any) -> Any:
    """Return a fresh optimizer, as if it had been made with these options too."""
    groups = [{**group, **options} for group in optimizer.param_groups]
    return type(optimizer)(groups, **_defaults(optimizer) | options)


def _defaults(optimizer: Any) -> dict[str, Any]:
    """Return what such an optimizer is made with besides its groups; of Adagrad that is of no group."""
    return {name: value for name, value in optimizer.defaults.items() if name in ("lr", "initial_accumulator_value")}


def in_8_bits(optimizer: Any, library: Any) -> Any:
    """Return the same optimizer with a state of 8 bits, by the module of a library."""
    taken = ("params", "lr", "betas", "eps", "weight_decay")
    groups = [{name: group[name] for name in taken} for group in optimizer.param_groups]
    return getattr(library, f"{type(optimizer).__name__}8bit")(groups)


class Buckets(Optimizer):
    """An optimizer of the same kind for each bucket of parameters; their groups and state are its own."""

    def __init__(self, optimizer: Any, most: int = 25 << 20) -> None:
        """A bucket has at most so many bytes, or one parameter."""
        kind: Any = type(optimizer)
        make, self.most = partial(kind, **_defaults(optimizer)), most
        groups = [{name: group[name] for name in group if name != "param_names"} for group in optimizer.param_groups]
        trained = [(group, [one for one in group["params"] if one.requires_grad]) for group in groups]
        self.parts: list[Any] = [
            make([{**group, "params": bucket}]) for group, weights in trained for bucket in in_buckets(weights, most)
        ]
        self.arrived: list[set[Any]] = [set() for _ in self.parts]  # parameters whose gradients wait for a step
        self.freed: dict[Any, bool] = {}  # by parameter whose gradient is freed: whether it would be zeros now
        super().__init__([weight for _, weights in trained for weight in weights], optimizer.defaults)
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        for part in self.parts:
            self.state.update(part.state)
            part.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a state dict that is loaded
        super().__setstate__(state)
        for group, part in zip(self.param_groups, self.parts, strict=True):
            part.__setstate__({"state": self.state, "param_groups": [group]})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """With gradients of zeros the next step steps, whether there are any or not."""
        super().zero_grad(set_to_none)
        self.freed.update(dict.fromkeys(self.freed, not set_to_none))

    def step(self, closure: Any = None) -> Any:
        """Step with the parameters that have a gradient: those that have not stepped in the backward."""
        with torch.enable_grad():
            loss = closure() if closure else None
        for part, arrived in zip(self.parts, self.arrived, strict=True):
            arrived.clear()
            for weight in part.param_groups[0]["params"]:
                if weight.grad is None and self.freed.get(weight):
                    weight.grad = torch.zeros_like(weight)
            if any(weight.grad is not None for weight in part.param_groups[0]["params"]):
                part.step()
        return loss


def in_buckets(weights: Any, most: int) -> list[list[Any]]:
    """Return the weights in lists of at most so many bytes, as DistributedDataParallel has; a larger one is alone."""
    made: list[list[Any]] = []
    room = 0
    for weight in weights:
        room -= weight.nbytes
        if room < 0 or not made:
            made.append([])
            room = most - weight.nbytes
        made[-1].append(weight)
    return made


def step_in_backward(optimizer: Buckets) -> None:
    """Step with each bucket as soon as its gradients are there: no accumulation, no clipping, no gradient scaler."""
    for part, arrived in zip(optimizer.parts, optimizer.arrived, strict=True):
        for weight in part.param_groups[0]["params"]:
            weight.register_post_accumulate_grad_hook(partial(_arrived, part, arrived, optimizer.freed))


def follow_zeros(owner: Any, freed: Any) -> None:
    """Have `zero_grad` of modules, or of optimizers, note which of the freed gradients would be zeros now."""
    plain = owner.zero_grad

    @wraps(plain)
    def zero_grad(one: Any, set_to_none: bool = True) -> None:
        plain(one, set_to_none)
        groups = one.param_groups if isinstance(one, Optimizer) else [{"params": one.parameters()}]
        for weight in (each for group in groups for each in group["params"] if each in freed):
            freed[weight] = not set_to_none

    owner.zero_grad = zero_grad


def _arrived(optimizer: Optimizer, arrived: set[Any], freed: dict[Any, bool], weight: Any) -> None:
    arrived.add(weight)
    if len(arrived) == len(optimizer.param_groups[0]["params"]):
        optimizer.step()
        for one in arrived:
            one.grad, freed[one] = None, False
        arrived.clear()


def with_bf16_state(optimizer: Buckets) -> None:
    """Between steps the state is bfloat16; each step computes in the type of its parameter."""
    for part in optimizer.parts:
        part.register_step_pre_hook(partial(_cast, None))
        part.register_step_post_hook(partial(_cast, torch.bfloat16))


def _cast(dtype: torch.dtype | None, optimizer: Optimizer, *_: Any) -> None:
    for weight in optimizer.param_groups[0]["params"]:
        state = optimizer.state.get(weight, {})
        for name, value in state.items():
            is_like = isinstance(value, torch.Tensor) and value.shape == weight.shape and value.is_floating_point()
            if is_like and value.ndim:  # a scalar is a count
                state[name] = value.to(dtype or weight.dtype)


def _changed(
    workload: Workload, change: Callable[[Optimizer], Optimizer], *, text: str | None = None
) -> tuple[Workload, Applied]:
    notes = (Note(code="GCP070", text=text),) if text else ()
    changes = (*workload.optimizer_changes, change)
    return msgspec.structs.replace(workload, optimizer_changes=changes), Applied(notes=notes, rounds=True)


def _in_buckets(optimizer: Optimizer, most: int = 25 << 20) -> Buckets:
    """Return an optimizer of the same kind for each bucket of parameters. Raises Unsupported if it needs all."""
    if isinstance(optimizer, Buckets):
        if optimizer.most != most:
            raise Unsupported("bf16-state has buckets of 25 MiB: leave in-backward's mib out")
        return optimizer
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Unsupported("LBFGS steps with all parameters at once")
    _like(optimizer)  # raises
    return Buckets(optimizer, most)


def _like(optimizer: Optimizer, **options: bool | None) -> Optimizer:
    """Return a fresh optimizer of the same kind and options, but for those given. Raises Unsupported."""
    kind = type(optimizer)
    library = kind.__module__.partition(".")[0]
    if library not in ("torch", *LIBRARIES) or not options.keys() <= optimizer.defaults.keys():
        wanted = f"no option {next(iter(options))}" if options else "parameters that cannot be told apart"
        raise Unsupported(f"its optimizer, {kind.__name__}, has {wanted}")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise Unsupported(HOOKED)
    try:
        return like(optimizer, **options)  # type: ignore[no-any-return]
    except RuntimeError as error:  # "`fused=True` requires all the params to be floating point Tensors ..."
        raise Unsupported(str(error).splitlines()[0]) from error
