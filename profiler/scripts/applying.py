"""Applies a strategy, and levers, to the model of a script in its own process, by the arguments of one call of it."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils import _pytree as pytree

from profiler.core import catalogue, plan_file
from profiler.core.case import Choice
from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.predicting.fake_tensors import fake_tensors, unseen
from profiler.scripts import levers
from profiler.training import STRATEGIES, called_blocks
from profiler.training import blocks as finding
from profiler.training.block_segments import apply_strategy, norms, with_note
from profiler.training.blocks import unroute
from profiler.training.memory_levers import IS_LOOK
from profiler.training.own_checkpoints import compiled_modules, is_left_alone
from profiler.training.strategies import written
from profiler.training.workload import Workload

NOTHING = "GCP001"  # the note of a strategy that checkpoints nothing
WHOLE = ("offload", "hf")  # strategies that need no blocks
MENDING = "code of `gcprof fit --emit`"  # what holds the statistics of BatchNorm
OBSERVING = (*called_blocks.COUNTING, "_planted")  # strategies that may look at a forward


def apply(
    module: nn.Module,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    label: str,
    *,
    is_compiled: bool = False,
    optimizers: tuple[torch.optim.Optimizer, ...] = (),
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
        if choice != levers.NONE:
            refuse_module(module, is_compiled=is_compiled)
            names = _blocks(module, choice)
            refuse_blocks(module, names, needs_some=choice.name not in WHOLE)
            workload, made = _applied(module, names, batch, choice, partial(function, **options))
        whole = met(workload, batch, strategy=choice, is_compiled=is_compiled, optimizers=optimizers)
        split = [*levers.apply(whole)]
    except Unsupported as error:
        return {"why": str(error)}
    routed = [part for part in module.modules() if part is not module and "_route" in vars(part)]
    weakref.finalize(module, _unroute, routed).atexit = False  # each route refers to all blocks
    nothing = [note.text for note in made.notes if note.code == NOTHING and not made.recomputes]
    again = [note.text for note in with_note(workload, Applied(recomputes=made.recomputes), mended_by=MENDING).notes]
    text = "; ".join(filter(None, (made.split, *split, *again))) or None
    own = choice.name not in ("plan", *WHOLE)  # a plan's segments are in its file
    code = {
        "heads": levers.heads_of(module),
        "optimizer": type(optimizers[0]).__name__ if optimizers else None,
        "has_batchnorm": bool(norms(workload)),
        "plan": msgspec.to_builtins(written(workload, made, str(choice))) if own and made.recomputes else None,
    }
    return {"num_blocks": len(made.recomputes), "split": text, "why": nothing[0] if nothing else None, "code": code}


def met(workload: Workload, batch: Any, **given: Any) -> levers.Met:
    """Return the model as levers meet it, after its strategy."""
    return levers.Met(workload=workload, on_fakes=partial(looking, workload.module, batch), **given)


def apply_in_evaluation(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Apply the levers that hold in evaluations too, by a call without gradients; return whether any could be."""
    batch = arguments, keywords
    return levers.apply_in_evaluation(met(Workload(module=module, batch=batch, loss=_call), batch))


def _unroute(parts: list[nn.Module]) -> None:
    for part in parts:
        unroute(part)


def refuse_module(module: nn.Module, *, is_compiled: bool) -> None:
    """Raise Unsupported for a module within which nothing can be changed."""
    if is_compiled or "" in compiled_modules(module):
        raise Unsupported("it is compiled: what is kept for the backward is then the compiler's choice")
    fsdp: Any = getattr(torch.distributed, "fsdp", None)
    if isinstance(module, (nn.DataParallel, *((fsdp.FullyShardedDataParallel,) if fsdp else ()))):
        raise Unsupported(f"it is wrapped by {type(module).__name__}")


def refuse_blocks(module: nn.Module, names: tuple[str, ...], *, needs_some: bool = True) -> None:
    """Raise Unsupported where there are no blocks, or blocks that cannot be changed."""
    if needs_some and not (names or called_blocks.are_marked()):
        raise Unsupported("no modules are found in it that could be recomputed by themselves")
    compiled = compiled_modules(module)
    if any(is_left_alone(name, compiled) for name in names):
        raise Unsupported("its blocks are parts of compiled modules")


def _blocks(module: nn.Module, choice: Choice) -> tuple[str, ...]:
    """Return the names of the blocks: those that are found, or those of a plan."""
    if choice.name != "plan":
        return finding.find_blocks(module)
    file = plan_file.read(Path(choice.options.get("file", "plan.json")))
    return tuple(dict.fromkeys(name.partition(called_blocks.SIGN)[0] for name in file.fingerprint))


def _applied(
    module: nn.Module, names: tuple[str, ...], batch: Any, choice: Choice, function: Callable[[Workload], Applied]
) -> tuple[Workload, Applied]:
    workload = Workload(module=module, blocks=names, batch=batch, loss=_call)
    is_frozen = any(not any(one.requires_grad for one in workload.block(name).parameters()) for name in names)
    if not (choice.name in OBSERVING or is_frozen or called_blocks.are_marked()):
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
    with looking(module, batch) as fake:
        workload = Workload(module=module, blocks=names, batch=fake, loss=_call)
        workload, _ = called_blocks.running(workload)
        yield called_blocks.marked(workload) if called_blocks.are_marked() else workload


@contextmanager
def looking(module: nn.Module, batch: Any) -> Iterator[Any]:
    """Yield the batch as fake tensors, on which the module's forward may be run within, as if it had not run.

    Raises Unsupported where the forward cannot run so.
    """
    try:
        with _on_fakes(module, batch) as fake:
            yield fake
    except Unsupported:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise Unsupported(
            f"its forward cannot be looked at without values ({text}); `all` does not need that"
        ) from error


def _call(module: nn.Module, batch: Any) -> Any:
    arguments, keywords = batch
    return module(*arguments, **keywords)


def _refuse(module: nn.Module, batch: Any) -> Any:
    raise Unsupported("it is sharded, so how its blocks connect cannot be looked at; `all` does not need that")


@contextmanager
def _on_fakes(module: nn.Module, batch: Any) -> Iterator[Any]:
    """Give the module fake parameters and buffers inside, and yield the batch as fake tensors."""
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
        finally:
            for held, real in zip(places, before, strict=True):
                held.clear()
                held.update(real)
            random.setstate(state)
            IS_LOOK.reset(is_look)
