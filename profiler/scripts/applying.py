"""Applies a strategy, and levers, to the model of a script in its own process, by the arguments of one call of it.

Imported by `inject/gcprof_strategies.py`. Levers act on optimizers as they are made, and on the model at its first call
in training. What a script does only later can refuse a lever too: Unsupported is raised in the script, and ends it.
"""

from __future__ import annotations

import inspect
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from profiler.core import catalogue, plan_file
from profiler.core.case import Case, Choice
from profiler.core.errors import Unsupported, users_line
from profiler.core.record import Applied
from profiler.predicting.fake_tensors import fake_tensors, unseen
from profiler.training import LEVERS, STRATEGIES, called_blocks
from profiler.training import blocks as finding
from profiler.training.block_segments import apply_strategy, checkpointed, norms, with_note
from profiler.training.blocks import unroute
from profiler.training.chunked_loss import FoundHeads, put_off
from profiler.training.memory_levers import IS_LOOK, set_growing
from profiler.training.optimizers import follow_zeros, in_buckets
from profiler.training.own_checkpoints import compiled_modules, is_left_alone
from profiler.training.strategies import written
from profiler.training.workload import Workload

WHOLE = ("offload", "hf")  # strategies that need no blocks
MENDING = "code of `--emit`"  # what holds the statistics of BatchNorm
OBSERVING = (*called_blocks.COUNTING, "_planted")  # strategies that may look at a forward
NO_STRATEGY = Choice("none")
Optimizer = torch.optim.Optimizer
Options = dict[str, bool | None]
KERNELS: dict[str, Options] = {
    "fused": {"fused": True, "foreach": None},
    "no-foreach": {"foreach": False},
}
ACCUMULATES = "gradients arrive a second time before the optimizer's step, so the script accumulates them"


def apply(
    module: nn.Module,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    label: str,
    *,
    is_compiled: bool = False,
    optimizers: tuple[Optimizer, ...] = (),
) -> dict[str, Any]:
    """Change the module in place; return what was done: num_blocks, split, what code needs, or `why` it was not.

    Levers of the label have begun, and `optimizers` have parameters of the module. Where a strategy or lever looks at a
    forward, that one runs on fake tensors: it takes no memory of any device and draws no random numbers, and
    parameters, buffers and plain attributes stay as they were.
    """
    choice = catalogue.resolve(Choice(label).parts[0], STRATEGIES, what="strategy")
    function, options = catalogue.load(choice, STRATEGIES)
    batch = arguments, keywords
    workload, made = Workload(module=module, batch=batch, loss=_call), Applied()
    try:
        if choice != NO_STRATEGY:
            refuse_module(module, is_compiled=is_compiled)
            if choice.name == "plan":
                file = plan_file.read(Path(choice.options.get("file", "plan.json")))
                names = tuple(dict.fromkeys(name.partition(called_blocks.SIGN)[0] for name in file.fingerprint))
                if unknown := [name for name in names if name not in dict(module.named_modules())]:
                    raise Unsupported(f"the plan is of another model, which has a '{unknown[0]}'")
            else:
                names = finding.find_blocks(module)
            refuse_blocks(module, names, needs_some=choice.name not in WHOLE)
            workload, made = _applied(module, names, batch, choice, partial(function, **options))
        whole = met(workload, batch, strategy=choice, is_compiled=is_compiled, optimizers=optimizers)
        split = [*apply_levers(whole)]
    except Unsupported as error:
        return {"why": str(error)}
    routed = [part for part in module.modules() if part is not module and "_route" in vars(part)]
    weakref.finalize(module, lambda: [*map(unroute, routed)]).atexit = False  # each route refers to all blocks
    nothing = [note.text for note in made.notes if note.code == "GCP001" and not made.recomputes]
    again = [note.text for note in with_note(workload, Applied(recomputes=made.recomputes), mended_by=MENDING).notes]
    text = "; ".join(filter(None, (made.split, *split, *again))) or None
    own = choice.name not in ("plan", *WHOLE)  # a plan's segments are in its file
    code = {
        "heads": _levers["chunk-loss"].found.get(module, []) if "chunk-loss" in _levers else [],
        "optimizer": type(optimizers[0]).__name__ if optimizers else None,
        "has_batchnorm": bool(norms(workload)),
        "plan": msgspec.to_builtins(written(workload, str(choice))) if own and made.recomputes else None,
    }
    return {"num_blocks": len(made.recomputes), "split": text, "why": nothing[0] if nothing else None, "code": code}


def met(workload: Workload, batch: Any, **given: Any) -> Met:
    """Return the model as levers meet it, after its strategy."""
    return Met(workload=workload, on_fakes=partial(looking, workload.module, batch), **given)


def apply_in_evaluation(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Apply the loss in parts, if it has begun, by a call without gradients; return whether it could be."""
    batch = arguments, keywords
    try:
        whole = met(Workload(module=module, batch=batch, loss=_call), batch)
        return "chunk-loss" in _levers and bool(_levers["chunk-loss"].apply(whole))
    except Unsupported:
        return False  # it may be called otherwise in training


def refuse_module(module: nn.Module, *, is_compiled: bool) -> None:
    """Raise Unsupported for a module within which nothing can be changed."""
    if is_compiled or "" in compiled_modules(module):
        raise Unsupported("it is compiled: what is kept for the backward is then the compiler's choice")
    fsdp: Any = getattr(torch.distributed, "fsdp", None)
    if isinstance(module, (nn.DataParallel, *((fsdp.FullyShardedDataParallel,) if fsdp else ()))):
        raise Unsupported(
            f"no strategy is applied within {type(module).__name__}; the script's own checkpoints are kept"
        )


def refuse_blocks(module: nn.Module, names: tuple[str, ...], *, needs_some: bool = True) -> None:
    """Raise Unsupported where there are no blocks, or blocks that cannot be changed."""
    if needs_some and not (names or called_blocks.are_marked()):
        raise Unsupported("no modules are found in it that could be recomputed by themselves")
    if any(isinstance(module.get_submodule(name), torch.jit.ScriptModule) for name in names):
        raise Unsupported("its blocks are made by torch.jit.script, which itself chooses what is kept for the backward")
    compiled = compiled_modules(module)
    if any(is_left_alone(name, compiled) for name in names):
        raise Unsupported("its blocks are parts of compiled modules")


def _applied(
    module: nn.Module, names: tuple[str, ...], batch: Any, choice: Choice, function: Callable[[Workload], Applied]
) -> tuple[Workload, Applied]:
    workload = Workload(module=module, blocks=names, batch=batch, loss=_call)
    rest = any(called_blocks.rests(workload.block(name)) for name in names)
    if not (choice.name in OBSERVING or rest or called_blocks.are_marked()):
        return workload, function(workload)
    if any(hasattr(parameter, "_local_tensor") for parameter in module.parameters()):
        sharded = Workload(module=module, blocks=names, batch=None, loss=_refuse)
        return apply_strategy(sharded, choice.name, function)
    with observing(module, names, batch) as workload:
        workload, made = apply_strategy(workload, choice.name, function)
    called_blocks.follow_forwards(workload)
    return workload, made


@contextmanager
def observing(module: nn.Module, names: tuple[str, ...], batch: Any) -> Iterator[Workload]:
    """Yield the workload on fake tensors, whose forward may be run within: with the blocks that run, or marked calls.

    Raises Unsupported where the forward cannot run so.
    """
    with looking(module, batch, instead="; `all` does not need that") as fake:
        workload = Workload(module=module, blocks=names, batch=fake, loss=_call)
        workload, _ = called_blocks.running(workload)
        yield called_blocks.marked(workload) if called_blocks.are_marked() else workload


@contextmanager
def looking(module: nn.Module, batch: Any, *, instead: str = "") -> Iterator[Any]:
    """Yield the batch as fake tensors, on which the module's forward may be run within, as if it had not run.

    Its parameters and buffers are fake within. Raises Unsupported where the forward cannot run so.
    """
    places: list[dict[str, Any]] = [held for part in module.modules() for held in (part._parameters, part._buffers)]
    before = [dict(held) for held in places]
    state = random.getstate()
    is_look = IS_LOOK.set(True)
    with fake_tensors() as mode, unseen():
        try:
            made: dict[int, Any] = {}

            def fake(tensor: torch.Tensor) -> Any:
                if id(tensor) not in made:
                    is_parameter = isinstance(tensor, nn.Parameter)
                    one = mode.from_tensor(tensor if is_parameter else tensor.detach())
                    made[id(tensor)] = one if is_parameter else one.requires_grad_(tensor.requires_grad)
                return made[id(tensor)]

            for held in places:
                for name, tensor in held.items():
                    held[name] = None if tensor is None else fake(tensor)
            yield pytree.tree_map_only(torch.Tensor, fake, batch)
        except Unsupported:
            raise
        except Exception as error:  # the script's model may raise anything
            text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise Unsupported(f"its forward cannot be looked at without values ({text}){instead}") from error
        finally:
            for held, real in zip(places, before, strict=True):
                held.clear()
                held.update(real)
            random.setstate(state)
            IS_LOOK.reset(is_look)


def _call(module: nn.Module, batch: Any) -> Any:
    arguments, keywords = batch
    return module(*arguments, **keywords)


def _refuse(module: nn.Module, batch: Any) -> Any:
    raise Unsupported("it is sharded, so how its blocks connect cannot be looked at; `all` does not need that")


# ---- levers


class Met(msgspec.Struct, frozen=True, kw_only=True):
    """A model at its first call in training, after its strategy."""

    workload: Workload
    optimizers: tuple[Optimizer, ...] = ()  # that have parameters of it
    on_fakes: Callable[[], Any]  # a context in which its parameters are fake tensors; yields the arguments of the call
    strategy: Choice = NO_STRATEGY
    is_compiled: bool = False


class _Kernels:
    """Has optimizers of torch.optim made with other kernels."""

    def __init__(self, name: str) -> None:
        self._name, self._options = name, KERNELS[name]
        self._fates: weakref.WeakKeyDictionary[Optimizer, str | None] = weakref.WeakKeyDictionary()  # why not
        kinds: set[Any] = {one for one in vars(torch.optim).values() if isinstance(one, type)}
        for kind in kinds:
            if self._options.keys() <= inspect.signature(kind.__init__).parameters.keys():
                self._change(kind)

    def apply(self, met: Met) -> str:
        fates = {one: self._fates.get(one, f"has no option {self._name}") for one in met.optimizers}
        changed = [type(one).__name__ for one, why in fates.items() if why is None]
        if not changed:
            raise Unsupported("; ".join(dict.fromkeys(f"its {type(one).__name__} {why}" for one, why in fates.items())))
        return f"{', '.join(dict.fromkeys(changed))} {self._name}"

    def _change(self, kind: Any) -> None:
        plain, signature, fates, options = kind.__init__, inspect.signature(kind.__init__), self._fates, self._options

        def kept(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
            return {**state, "param_groups": [{**group, **options} for group in state["param_groups"]]}

        @wraps(plain)
        def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
            bound = signature.bind(self, *arguments, **keywords)
            if self in fates:  # AdamW calls Adam
                plain(*bound.args, **bound.kwargs)
                return
            if isinstance(bound.arguments["params"], Iterator):
                bound.arguments["params"] = [*bound.arguments["params"]]
            given = dict(bound.arguments)
            own = [name for name, value in options.items() if value is not None and given.get(name) is value]
            own += ["fused"] if given.get("fused") else []
            fates[self] = f"has {own[0]}={given[own[0]]} already" if own else None
            bound.arguments.update({} if own else options)
            try:
                plain(*bound.args, **bound.kwargs)
            except RuntimeError as error:  # "`fused=True` requires all the params to be floating point Tensors ..."
                fates[self] = f"refuses it: {str(error).splitlines()[0]}"
                bound.arguments.clear()
                bound.arguments.update(given)
                plain(*bound.args, **bound.kwargs)
            if fates[self] is None:
                self.register_load_state_dict_pre_hook(kept)

        kind.__init__ = __init__


class _InBackward:
    """Steps with each bucket as soon as its gradients are there, by the script's own optimizer, and frees them.

    Raises Unsupported in the script where that is another training: it clips, scales or accumulates gradients, or
    changes the optimizer's options between a backward and its step.
    """

    def __init__(self, mib: int = 25) -> None:
        self._most = mib << 20
        # by parameter: its optimizer, the number of its group, its bucket, and those of that whose gradients are there
        self._places: Any = WeakIdKeyDictionary()
        self._stepped: Any = WeakIdKeyDictionary()  # by parameter that has stepped in this backward: with which options
        self._freed: Any = WeakIdKeyDictionary()  # by parameter whose gradient is freed: whether it would be zeros now
        for owner in (Optimizer, nn.Module):
            follow_zeros(owner, self._freed)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self._refuse(torch.nn.utils, name, "clips gradients")
            self._refuse(torch.nn.utils.clip_grad, name, "clips gradients")
        self._refuse(torch.amp.GradScaler, "scale", "scales gradients")
        optimizers.register_optimizer_step_pre_hook(self._before_step)

    def apply(self, met: Met) -> str:
        own = {id(parameter) for parameter in met.workload.module.parameters()}
        if any(hasattr(parameter, "_local_tensor") for parameter in met.workload.module.parameters()) or (
            torch.distributed.is_available() and torch.distributed.is_initialized()
        ):
            raise Unsupported("the gradients of several ranks are averaged before the step")
        for optimizer in met.optimizers:
            if not type(optimizer).__module__.startswith("torch.optim") or isinstance(optimizer, torch.optim.LBFGS):
                raise Unsupported(f"its {type(optimizer).__name__} may not step with each parameter by itself")
            for number, group in enumerate(optimizer.param_groups):
                trained = [one for one in group["params"] if id(one) in own and one.requires_grad]
                for bucket in in_buckets(trained, self._most):
                    place = weakref.ref(optimizer), number, [weakref.ref(one) for one in bucket], set[int]()
                    for parameter in bucket:
                        self._places[parameter] = place
                        parameter.register_post_accumulate_grad_hook(self._arrived)
        return "steps in the backward"

    def _refuse(self, owner: Any, name: str, what: str) -> None:
        plain = getattr(owner, name)

        @wraps(plain)
        def refuse(first: Any, *arguments: Any, **keywords: Any) -> Any:
            is_off = isinstance(first, torch.amp.GradScaler) and not first.is_enabled()
            if self._places and not is_off:
                at = users_line(sys._getframe())
                raise Unsupported(f"in-backward: the script {what}{f', at {at}' if at else ''}")
            return plain(first, *arguments, **keywords)

        setattr(owner, name, refuse)

    def _arrived(self, parameter: Any) -> None:
        made, number, bucket, arrived = self._places[parameter]
        optimizer, weights = made(), [one() for one in bucket]
        if optimizer is None:
            return
        if parameter in self._stepped:
            raise Unsupported(f"in-backward: {ACCUMULATES}")
        arrived.add(id(parameter))
        if len(arrived) < len(bucket):
            return
        arrived.clear()
        groups: Any = optimizer.param_groups
        for one in weights:
            self._stepped[one] = _numbers(groups[number])
        optimizer.param_groups = [{**groups[number], "params": weights}]
        try:
            step: Any = type(optimizer).step
            (step.__wrapped__ if getattr(step, "hooked", False) else step)(optimizer)  # without the script's own hooks
        finally:
            optimizer.param_groups = groups
        for one in weights:
            one.grad, self._freed[one] = None, False

    def _before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        """Look at the script's own step: what it would have stepped with has stepped by the same options."""
        if any(callable(one) for one in (*arguments[1:], *keywords.values())):
            raise Unsupported("in-backward: the optimizer's step calls the model by a closure")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in self._places:
                    self._places[parameter][-1].clear()
                if parameter.grad is None and self._freed.get(parameter):
                    parameter.grad = torch.zeros_like(parameter)
                used = self._stepped.pop(parameter, None)
                if used is not None and used != _numbers(group):
                    raise Unsupported("in-backward: the script changes the optimizer's options before its step")


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    return {name: float(value) for name, value in group.items() if isinstance(value, (int, float, torch.Tensor))}


class _ChunkedLoss:
    """Puts the model's head off within each of its calls, where its loss is computed in parts."""

    def __init__(self, rows: int = 0, by: str = "auto") -> None:
        self._rows, self._by = rows, by
        self._done: Any = WeakIdKeyDictionary()  # by module: what was done
        self.found: Any = WeakIdKeyDictionary()  # by module: the weights of its heads

    def apply(self, met: Met) -> str:
        module, heads = met.workload.module, FoundHeads(self._rows, self._by)
        if module in self._done:
            return str(self._done[module])
        if met.is_compiled or compiled_modules(module):
            raise Unsupported("it is compiled: the head is found in the calls of plain PyTorch")
        if any(hasattr(parameter, "_local_tensor") for parameter in module.parameters()):
            raise Unsupported("it is sharded, and the head is found in a model that is whole")
        with met.on_fakes() as (arguments, keywords):

            def forward() -> None:
                with heads:
                    module(*arguments, **keywords)

            found = heads.found(module, forward, within=" within the model's own forward")
        put_off(module, found, heads, has_loss=True)
        self.found[module] = found
        self._done[module] = f"the loss of {', '.join(name.removesuffix('.weight') for name in found)} in parts"
        return str(self._done[module])


class _Growing:
    """Lets segments of CUDA's allocator grow from the script's first byte on."""

    def __init__(self) -> None:
        set_growing(True)

    def apply(self, met: Met) -> str:
        if not any(parameter.is_cuda for parameter in met.workload.module.parameters()):
            raise Unsupported("a CPU reserves no segments")
        return "segments grow"


class _Inputs:
    """Inputs of checkpoints to host memory, by the lever of models."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def apply(self, met: Met) -> str:
        kind = type(met.workload.module).__name__
        case = Case(model=Choice(kind), strategy=met.strategy, optimizer=Choice("own"), batch_size=None, device="cuda")
        function, _ = catalogue.load(Choice("offload-inputs"), LEVERS)
        function(met.workload, case, **self._options)
        return f"inputs of {len(set(map(id, checkpointed(met.workload).values())))} checkpoints in host memory"


KINDS: dict[str, Callable[..., Any]] = {
    **{name: partial(_Kernels, name) for name in KERNELS},
    "in-backward": _InBackward, "expandable-segments": _Growing, "chunk-loss": _ChunkedLoss, "offload-inputs": _Inputs,
}  # fmt: skip
_levers: dict[str, Any] = {}  # of this process, by name


def begin_levers(label: str) -> None:
    """Begin to apply the levers of a label to what the script makes."""
    for lever in Choice(label).parts[1:]:
        _levers[lever.name] = KINDS[lever.name](**catalogue.load(lever, LEVERS)[1])


def apply_levers(met: Met) -> Iterator[str]:
    """Apply each lever to the model, and yield what it did. Raises Unsupported, which names the lever."""
    for name, lever in _levers.items():
        try:
            yield lever.apply(met)
        except Unsupported as error:
            raise Unsupported(f"{name}: {str(error).removeprefix(f'{name}: ')}") from error
