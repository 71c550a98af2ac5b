"""A callback for transformers.Trainer that records its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback

from profiler.core.case import Case, Choice
from profiler.core.record import Record
from profiler.integrations.trainers.steps import Steps, add


class RecordingCallback(TrainerCallback):
    """`Trainer(..., callbacks=[RecordingCallback("results/mine")])` writes the run's time and peak when training ends.

    Run once with and once without `activation_checkpointing=True` into the same folder; `gcprof show` compares them.
    The first step and `warmup` more are warm-up, the next `samples` are recorded. Without a folder, `record` holds the
    result.
    """

    def __init__(
        self, folder: str | Path | None = None, *, case: Case | None = None, warmup: int = 2, samples: int = 100
    ) -> None:
        self.record: Record | None = None
        self._folder = None if folder is None else Path(folder)
        self._case = case
        self._warmup, self._samples = warmup, samples
        self._steps: Steps | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        self._steps = Steps(self._case or case_of(args, model, warmup=self._warmup, samples=self._samples))

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._steps:
            self._steps.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._steps:
            self._steps.end()

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        if self._steps is None:
            return
        self.record = self._steps.record(model)
        if self._folder is not None and getattr(state, "is_world_process_zero", True):
            self.record = add(self.record, self._folder, command="transformers.Trainer")


def case_of(args: Any, model: nn.Module, *, warmup: int, samples: int) -> Case:
    """Return the case that TrainingArguments and the model describe."""
    precision = "amp-bf16" if args.bf16 else "amp-fp16" if args.fp16 else "fp32"
    device = str(args.device)
    return Case(
        model=Choice(type(model).__name__),
        strategy=Choice("hf" if is_checkpointed(args, model) else "none"),
        optimizer=Choice(str(getattr(args.optim, "value", args.optim))),
        batch_size=args.per_device_train_batch_size,
        device="cuda:0" if device == "cuda" else device,
        precision=precision,
        accumulate=args.gradient_accumulation_steps,
        data="files",
        verify="off",
        seed=args.seed,
        warmup=warmup,
        samples=samples,
    )


def is_checkpointed(args: Any, model: nn.Module) -> bool:
    """Whether the arguments or the model turn checkpointing on, by today's names or those before transformers 5.23."""
    requested = getattr(args, "activation_checkpointing", None) or getattr(args, "gradient_checkpointing", None)
    switched = getattr(model, "is_activation_checkpointing", None)
    return bool(requested or (getattr(model, "is_gradient_checkpointing", False) if switched is None else switched))
