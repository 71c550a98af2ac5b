"""A trial, in a child process, that a real transformers.Trainer runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from transformers import Trainer, TrainingArguments, default_data_collator

from profiler.core.case import Case, Trial, decode
from profiler.core.errors import Unsupported
from profiler.core.record import Record
from profiler.engines.replies import attempt, tell
from profiler.integrations.trainers.transformers_callback import RecordingCallback
from profiler.training.assemble import assemble


def run_trial(request: str, channel: int) -> None:
    """Measure the trial in `request` with a Trainer; send each stage, then the record, each as one line of JSON."""
    trial: Trial = decode(request, Trial)
    record = attempt(trial, on_pass=lambda stage: tell(channel, {"stage": stage}), by=measure)
    tell(channel, {"record": record})


def measure(trial: Trial, *, on_pass: Callable[[str], None]) -> Record:
    """Train for as many steps as the case asks for. Raises Unsupported for a case that a Trainer cannot run."""
    case = trial.case
    _refuse(case)
    on_pass("build")
    workload = assemble(case.baseline).workload
    callback = RecordingCallback(case=case)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=workload.module,
            args=_arguments(case, folder),
            train_dataset=_dataset(case, workload.batch),
            data_collator=default_data_collator,
            callbacks=[callback],
        )
        on_pass("time")
        trainer.train()
    assert callback.record is not None, "the Trainer ended without a result"
    return msgspec.structs.replace(callback.record, round=trial.round)


def _refuse(case: Case) -> None:
    if case.strategy.name not in ("none", "hf"):
        raise Unsupported("a Trainer checkpoints nothing or, with activation_checkpointing=True, every layer (hf)")
    if case.ranks:
        raise Unsupported("a Trainer is measured in one process: leave --ranks out")
    if case.precision not in ("fp32", "amp-bf16", "amp-fp16"):
        raise Unsupported(f"a Trainer has no precision {case.precision}")
    if case.optimizer != "adamw":
        raise Unsupported("the Trainer's optimizer is adamw")


def _arguments(case: Case, folder: str) -> Any:
    name = "activation_checkpointing"  # gradient_checkpointing before transformers 5.23
    name = name if name in TrainingArguments.__dataclass_fields__ else "gradient_checkpointing"
    checkpointing: dict[str, Any] = {name: case.strategy == "hf", f"{name}_kwargs": {"use_reentrant": False}}
    return TrainingArguments(
        output_dir=folder,
        max_steps=1 + case.warmup + case.samples,
        per_device_train_batch_size=case.batch_size or 1,
        gradient_accumulation_steps=case.accumulate,
        **checkpointing,
        bf16=case.precision == "amp-bf16",
        fp16=case.precision == "amp-fp16",
        optim="adamw_torch",
        use_cpu=case.device == "cpu",
        seed=case.seed,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def _dataset(case: Case, batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Return the rows of the synthetic batch, repeated for all micro-batches."""
    rows = [{key: tensor[index].cpu() for key, tensor in batch.items()} for index in range(case.batch_size or 1)]
    return rows * ((1 + case.warmup + case.samples) * case.accumulate)
