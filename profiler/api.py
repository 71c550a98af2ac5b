"""gcprof from Python: apply a strategy to a module, or measure one. Knows nothing of command lines or screens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from profiler.core import catalogue, plan_file
from profiler.core.case import PASSES, Choice, Trial
from profiler.core.errors import Unsupported, UserError
from profiler.core.plan_file import Recipe
from profiler.core.record import Applied, Record
from profiler.measuring import measure as measure_trial
from profiler.request import device_choice, spec
from profiler.request.spec import Request
from profiler.training import blocks as finding
from profiler.training import optimizers, strategies
from profiler.training.models.user import as_workload, call
from profiler.training.strategies.plan import carry_out
from profiler.training.workload import Workload


def apply(
    module: nn.Module, strategy: str | Recipe | Path, *, example: Any = None, blocks: str | None = None
) -> Applied:
    """Change a module in place so that its backward recomputes what the strategy says: `segments:k=4`, `all`, ...

    A plan stands for a strategy too, as a Recipe or as the path of its file. `blocks` is a pattern of names,
    `model.layers.*`; without it they are found; a plan has its own. `example` is a batch as the module takes it (a dict
    as keywords, a tuple as arguments): strategies that run several blocks together look at one forward of it, unless
    the module is made of Sequentials alone. Names of parameters stay as they are. Raises UserError for an unknown
    strategy or a file that is no plan, and Unsupported where it cannot be applied.
    """
    if not isinstance(strategy, str):
        return _carry_out(module, strategy, example, blocks)
    choice = catalogue.resolve(Choice(strategy), strategies.TABLE, what="strategy")
    function, options = catalogue.load(choice, strategies.TABLE)
    applied: Applied = function(_workload(module, finding.find_blocks(module, blocks), example), **options)
    return applied


def _carry_out(module: nn.Module, plan: Recipe | Path, example: Any, blocks: str | None) -> Applied:
    if blocks is not None:
        raise UserError(f"blocks='{blocks}' has no effect: a plan names its own blocks", hint="leave it out")
    found = plan if isinstance(plan, Recipe) else plan_file.read(plan)
    return carry_out(_workload(module, tuple(found.fingerprint), example), found)


def _workload(module: nn.Module, blocks: tuple[str, ...], example: Any) -> Workload:
    return Workload(module=module, blocks=blocks, batch=example, loss=_look)


def _look(module: nn.Module, example: Any) -> Any:
    if example is None:
        raise Unsupported("this is no plain Sequential: give a batch as example= to see how its blocks work together")
    return call(module, example)


def measure(
    build: Callable[[], Any],
    strategy: str = "none",
    *,
    optimizer: str = "sgd",
    device: str = "cpu",
    precision: str = "fp32",
    blocks: str | None = None,
    warmup: int = 1,
    samples: int = 5,
    seed: int = 0,
) -> Record:
    """Measure one strategy in this process: memory, time, FLOPs, and equality to the step without checkpointing.

    `build` returns a fresh module and batch, optionally a loss and an optimizer, as a user's file does for `gcprof run`
    (see profiler.training.models.user); it is called once for each pass. One process for all is less exact than
    `gcprof run`, which takes a fresh one for every trial. Bytes and seconds. Raises UserError for what cannot be asked
    for, Unsupported, and whatever `build` raises.
    """
    request = Request(
        model="mlp",  # for the check alone
        strategies="none",
        precision=precision,
        blocks=blocks,
        device=device,
        rounds=1,
        samples=samples,
        warmup=warmup,
        seed=seed,
    )
    checked, *others = spec.plan(request, lambda word: device_choice.choose_device(word, _devices())).trials
    if others:
        raise UserError(f"precision: '{precision}' is more than one", hint="measure each by itself")
    case = msgspec.structs.replace(
        checked.case,
        model=Choice(getattr(build, "__qualname__", "model")),
        strategy=catalogue.resolve(Choice(strategy), strategies.TABLE, what="strategy"),
        optimizer=catalogue.resolve(Choice(optimizer), optimizers.TABLE, what="optimizer"),
        batch_size=None,
    )

    def workload() -> Workload:
        return as_workload(build())

    trial = Trial(case=case, passes=PASSES)
    if case != case.baseline:
        found = measure_trial(Trial(case=case.baseline, passes=("equality",)), build=workload).equality
        trial = msgspec.structs.replace(trial, digests=found.digests if found else None)
    return measure_trial(trial, build=workload)


def _devices() -> list[str]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["cpu", *(f"cuda:{index}" for index in range(count))]
