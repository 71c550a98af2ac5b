"""Trains a model with transformers' Trainer on random rows; in a child process, the steps of a trial are measured so.

`python -m profiler.workflows.published.hf_trainer` is a program like any other: `gcprof rehearse -- python -m
profiler.workflows.published.hf_trainer` runs it too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import Trainer, TrainingArguments, default_data_collator

from profiler.core.case import Case, Choice, Trial
from profiler.core.errors import Unsupported
from profiler.core.record import Built, Note, Readings, Record
from profiler.core.stats import largest_known
from profiler.engines.worker import run_each
from profiler.measuring.devices import environment, open_device
from profiler.scripts.report import IN_STEPS
from profiler.training.assemble import assemble
from profiler.training.blocks import find_blocks
from profiler.training.workload import num_parameters
from profiler.workflows.in_process.in_training import watch

BERT = "hf:bert:head=classification,hidden_size=128,intermediate_size=512,num_attention_heads=4,num_hidden_layers=4"
ADVICE = "from a real training run: gradients were not compared, and saved bytes were not measured"


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a model with transformers' Trainer on random rows.")
    parser.add_argument("--model", default=BERT, help="one of gcprof's, hf:bert with options")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=4, help="batches of a step")
    parser.add_argument("--precision", choices=("fp32", "amp-bf16", "amp-fp16"), default="fp32")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--checkpointing", action="store_true", help="recompute every layer in the backward")
    return parser.parse_args(words)


def train(settings: argparse.Namespace) -> torch.nn.Module:
    """Train for as many steps as the settings say, and return the model."""
    case = Case(
        model=Choice(settings.model), strategy=Choice("none"), optimizer=Choice("adamw"), device="cpu",
        batch_size=settings.batch_size, precision=settings.precision, accumulate=settings.accumulate,
        seed=settings.seed,
    )  # fmt: skip
    workload = assemble(case.baseline).workload
    batch = {name: tensor.cpu() for name, tensor in workload.batch.items()}
    rows = [{name: tensor[index] for name, tensor in batch.items()} for index in range(settings.batch_size)]
    with tempfile.TemporaryDirectory() as folder:
        name = "activation_checkpointing"  # gradient_checkpointing before transformers 5.23
        name = name if name in TrainingArguments.__dataclass_fields__ else "gradient_checkpointing"
        checkpointing: dict[str, Any] = {name: settings.checkpointing, f"{name}_kwargs": {"use_reentrant": False}}
        trainer = Trainer(
            model=workload.module,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=settings.steps,
                per_device_train_batch_size=settings.batch_size,
                gradient_accumulation_steps=settings.accumulate,
                **checkpointing,
                bf16=settings.precision == "amp-bf16",
                fp16=settings.precision == "amp-fp16",
                optim="adamw_torch",
                use_cpu=settings.cpu,
                seed=settings.seed,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=rows * (settings.steps * settings.accumulate),
            data_collator=default_data_collator,
        )
        trainer.train()
    return workload.module


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
            module = train(settings)
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


if __name__ == "__main__":
    train(parsed())
