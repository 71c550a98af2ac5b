"""Trains a model with transformers' Trainer on random rows: `python -m profiler.workflows.published.hf_trainer`.

A program like any other: `gcprof rehearse -- python -m profiler.workflows.published.hf_trainer` runs it too.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from transformers import Trainer, TrainingArguments, default_data_collator

from profiler.core.case import Case, Choice
from profiler.training.assemble import assemble

BERT = "hf:bert:head=classification,hidden_size=128,intermediate_size=512,num_attention_heads=4,num_hidden_layers=4"


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
        trainer = Trainer(
            model=workload.module,
            args=_arguments(settings, folder),
            train_dataset=rows * (settings.steps * settings.accumulate),
            data_collator=default_data_collator,
        )
        trainer.train()
    return workload.module


def _arguments(settings: argparse.Namespace, folder: str) -> TrainingArguments:
    name = "activation_checkpointing"  # gradient_checkpointing before transformers 5.23
    name = name if name in TrainingArguments.__dataclass_fields__ else "gradient_checkpointing"
    checkpointing: dict[str, Any] = {name: settings.checkpointing, f"{name}_kwargs": {"use_reentrant": False}}
    return TrainingArguments(
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
    )


if __name__ == "__main__":
    train(parsed())
