"""A trial, in a child process, whose steps are those of a script that trains with transformers' Trainer."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from profiler.core.case import Case, Trial
from profiler.core.errors import Unsupported
from profiler.core.record import Built, Note, Readings, Record
from profiler.core.stats import largest_known
from profiler.engines.worker import run_each
from profiler.measuring.devices import environment, open_device
from profiler.scripts.report import IN_STEPS
from profiler.training.blocks import find_blocks
from profiler.training.workload import num_parameters
from profiler.workflows.in_process.in_training import watch
from profiler.workflows.published import hf_trainer

ADVICE = "from a real training run: gradients were not compared, and saved bytes were not measured"


def run_trials(request: str, channel: int) -> None:
    """Measure the trials in `request`, each when it is asked for."""
    run_each(request, channel, by=measure)


def measure(trial: Trial, *, on_pass: Callable[[str], None]) -> Record:
    """Run the script for as many steps as the case asks for: the first and the warm-up settle, the others are timed.

    A step is from the end of one optimizer step to that of the next, with all its micro-batches. The peak is that of
    the steps after the first, by PyTorch's allocator; on a CPU it is not measured. Raises Unsupported for a case that a
    Trainer cannot run.
    """
    case = trial.case
    _refuse(case)
    settings = argparse.Namespace(
        model=case.model, batch_size=case.batch_size or 1, accumulate=case.accumulate, precision=case.precision,
        steps=1 + case.warmup + case.samples, seed=case.seed, cpu=case.device == "cpu",
        checkpointing=case.strategy == "hf",
    )  # fmt: skip
    device, ends = open_device(case.device), list[float]()

    def stepped(optimizer: Any, arguments: Any, keywords: Any) -> None:
        device.synchronize()
        ends.append(time.perf_counter())

    on_pass("time")
    hook = register_optimizer_step_post_hook(stepped)
    try:
        with watch() as watched:
            module = hf_trainer.train(settings)
    finally:
        hook.remove()
    seconds = [later - earlier for earlier, later in pairwise(ends)][case.warmup :]
    phases = watched.process.phases if watched.process else ()
    later_steps = [phase for phase in phases if phase.name in IN_STEPS and not phase.is_first_step]
    return Record(
        case=case,
        round=trial.round,
        outcome="ok",
        built=Built(num_parameters=num_parameters(module), num_blocks=len(find_blocks(module)), data="the user's own"),
        readings=Readings(
            step_seconds=tuple(seconds),
            peak_bytes=largest_known(phase.peak_bytes for phase in later_steps),
            reserved_bytes=largest_known(phase.reserved_bytes for phase in later_steps),
        ),
        environment=environment(device),
        notes=(Note(code="GCP020", text=ADVICE),),
        num_steps=len(ends),
    )


def _refuse(case: Case) -> None:
    if case.strategy.name not in ("none", "hf"):
        raise Unsupported("a Trainer checkpoints nothing or, with activation_checkpointing=True, every layer (hf)")
    if case.ranks:
        raise Unsupported("a Trainer is measured in one process: leave --ranks out")
    if case.precision not in ("fp32", "amp-bf16", "amp-fp16"):
        raise Unsupported(f"a Trainer has no precision {case.precision}")
    if case.optimizer != "adamw":
        raise Unsupported("the Trainer's optimizer is adamw")
