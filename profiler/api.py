"""gcprof from Python: apply a strategy to a module, or measure one. Knows nothing of command lines or screens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import nn

from profiler import blocks as finding
from profiler import catalogue, device_choice, optimizers, spec, strategies
from profiler.case import PASSES, Choice, Trial
from profiler.errors import Unsupported, UserError
from profiler.measuring import measure as measure_trial
from profiler.models.user import as_workload, call
from profiler.record import Applied, Record
from profiler.spec import Request
from profiler.workload import Workload


def apply(module: nn.Module, strategy: str, *, example: Any = None, blocks: str | None = None) -> Applied:
    """Change a module in place so that its backward recomputes what the strategy says: `segments:k=4`, `all`, ...

    `blocks` is a pattern of names, `model.layers.*`; without it they are found. `example` is a batch as the module
    takes it (a dict as keywords, a tuple as arguments): strategies that run several blocks together look at one forward
    of it, unless the module is made of Sequentials alone. Names of parameters stay as they are. Raises UserError for an
    unknown strategy and Unsupported where it cannot be applied.
    """
    choice = catalogue.resolve(Choice(strategy), strategies.TABLE, what="strategy")
    function, options = catalogue.load(choice, strategies.TABLE)
    workload = Workload(
        module=module,
        blocks=finding.find_blocks(module, blocks),
        batch=example,
        loss=_look,
    )
    applied: Applied = function(workload, **options)
    return applied


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
    (see profiler.models.user); it is called once for each pass. One process for all is less exact than `gcprof run`,
    which takes a fresh one for every trial. Bytes and seconds. Raises UserError for what cannot be asked for,
    Unsupported, and whatever `build` raises.
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
