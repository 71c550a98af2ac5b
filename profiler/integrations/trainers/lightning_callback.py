"""A callback for Lightning's Trainer that records its steps."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from profiler.core.case import Case, Choice
from profiler.core.record import Record
from profiler.integrations.trainers.steps import Steps, add


def _base() -> Any:
    """Return Lightning's Callback class, from either name of the package; `object` if it is not installed."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    return object


PRECISIONS = {"bf16-mixed": "amp-bf16", "16-mixed": "amp-fp16", "bf16-true": "bf16", "16-true": "fp16"}


class RecordingCallback(_base()):  # type: ignore[misc]  # Lightning may not be installed
    """`Trainer(..., callbacks=[RecordingCallback("results/mine", strategy="all")])` writes time and peak at the end.

    Lightning does not know what is checkpointed, so `strategy` says it. The first step and `warmup` more are warm-up,
    the next `samples` are recorded. A step has all its micro-batches (`accumulate_grad_batches`).
    """

    def __init__(
        self, folder: str | Path, *, strategy: str = "none", batch_size: int | None = None, warmup: int = 2,
        samples: int = 100,
    ) -> None:  # fmt: skip
        super().__init__()
        self.record: Record | None = None
        self._folder = Path(folder)
        self._settings = {"strategy": Choice(strategy), "batch_size": batch_size, "warmup": warmup, "samples": samples}
        self._steps: Steps | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the record, with a case read from the trainer and the module."""
        optimizers = getattr(trainer, "optimizers", None) or [None]
        device = str(getattr(pl_module, "device", "cpu"))
        case: dict[str, Any] = {
            "model": Choice(type(pl_module).__name__),
            "optimizer": Choice(type(optimizers[0]).__name__.lower()),
            "device": "cuda:0" if device == "cuda" else device,
            "precision": PRECISIONS.get(str(getattr(trainer, "precision", "")), "fp32"),
            "accumulate": _accumulate(trainer),
            "data": "files",
            "verify": "off",
            **self._settings,
        }
        self._steps = Steps(Case(**case))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._steps and batch_idx % _accumulate(trainer) == 0:
            self._steps.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._steps and (batch_idx + 1) % _accumulate(trainer) == 0:
            self._steps.end()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._steps is None:
            return
        self.record = self._steps.record(pl_module)
        if getattr(trainer, "is_global_zero", True):
            self.record = add(self.record, self._folder, command="lightning.Trainer")


def _accumulate(trainer: Any) -> int:
    return int(getattr(trainer, "accumulate_grad_batches", 1))
