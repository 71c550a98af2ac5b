"""One step of a caller's model: measured in this process, rehearsed in another, or estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch

from profiler.core import plan_file
from profiler.core.case import PASSES, Case, Choice, Trial
from profiler.core.plan_file import PlanFile
from profiler.core.record import Note, Record
from profiler.measuring.trial import measure as measure_trial
from profiler.request import device_choice
from profiler.request.spec import Request
from profiler.training import levers
from profiler.training.models.user import as_workload
from profiler.workflows.in_process.answering import Source, answer, named
from profiler.workflows.in_process.arguments import Model, case_of, factory, undisturbed


@undisturbed
def measure(
    build: Model,
    strategy: str | PlanFile | Path = "none",
    *,
    batch: Any = None,
    loss: Callable[..., Any] | None = None,
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
    (see profiler.training.models.user); it is called once for each pass. It may also be a word (`mlp`, `train.py:make`)
    or a module, with a `batch` and perhaps a `loss`: it is copied for each pass. `strategy` is as for `apply`. Bytes
    and seconds: `readings.peak_bytes`, `readings.step_seconds` with `samples` raw samples after `warmup` steps. One
    process for all is less exact than `gcprof run`, which takes a fresh one for every trial.

    Raises UserError for what cannot be asked for, Unsupported where the strategy cannot be applied, TypeError for a
    `build` that returns something else, and whatever it raises.

    Example::

        def build():
            module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
            return module, (torch.randn(32, 64), torch.zeros(32, 64)), nn.functional.mse_loss


        record = profiler.measure(build, "segments:k=4")
        record.readings.saved_bytes, record.equality.gradients_equal
    """
    words = Request(
        device=device, precision=precision, blocks=blocks, rounds=1, warmup=warmup, samples=samples, seed=seed
    )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = ["cpu", *(f"cuda:{index}" for index in range(count))]
    checked = case_of(build, words, optimizer, lambda word: device_choice.choose_device(word, devices))
    make = factory(build, batch, loss)
    made = None if make is None else lambda: as_workload(make())

    with under(checked, strategy) as (case, shown):
        trial = Trial(case=case, passes=PASSES)
        if case != case.baseline:
            equality = measure_trial(Trial(case=case.baseline, passes=("equality",)), build=made).equality
            trial = msgspec.structs.replace(trial, digests=equality.digests if equality else None)
        return msgspec.structs.replace(measure_trial(trial, build=made), case=shown)


def predict(
    build: Model,
    strategy: str | PlanFile | Path = "none",
    *,
    batch: Any = None,
    loss: Callable[..., Any] | None = None,
    optimizer: str = "sgd",
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
) -> Record:
    """Predict what `measure` would find on a device that need not be there.

    A GPU's bytes are rehearsed where torch can do that, on Linux with its CUDA build: another process runs the step by
    PyTorch's own CUDA code on a device that computes nothing. `build` is as for `measure`; it is sent there, a module
    as its shapes, types and shared storages, what your script defines by value. Where that cannot be, and for `cpu` and
    `fake:h100`, a step is traced here under fake tensors instead; a note says why. Nothing is computed either way, the
    module stays as it is, and a model may be larger than this machine. `strategy` is as for `apply`, `device` a GPU of
    `gcprof predict` (`h100`, `a100-80`, `rtx-4090`), `cuda` for an H100, or `cpu`. In the record,
    `readings.peak_bytes`, `saved_bytes`, `static_bytes` and `phases` are bytes; `step_seconds` holds one estimate in
    seconds for a GPU that is known by name. A step that does not fit a GPU has the outcome `out_of_memory`. The notes
    say how sure it is. The random state of this process stays as it was.

    Raises UserError for what cannot be asked for, Unsupported where the strategy cannot be applied or the step cannot
    be traced (it depends on values of its data), TypeError for a `build` that returns something else, and whatever it
    raises.

    Example::

        def build():
            module = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8)))
            return module, (torch.randn(32, 4096), torch.zeros(32, 4096)), nn.functional.mse_loss


        before = profiler.predict(build, device="h100", precision="bf16").readings.peak_bytes
        after = profiler.predict(build, "segments:k=4", device="h100", precision="bf16").readings.peak_bytes
    """

    def ask(source: Source, case: Case) -> Record:
        with under(case, strategy) as (chosen, shown):
            return msgspec.structs.replace(source.record(chosen), case=named(shown, build))

    record, why = answer(
        ask, build, batch, loss, optimizer, device=device, precision=precision, blocks=blocks, seed=seed
    )
    return msgspec.structs.replace(record, notes=(*record.notes, Note(code="GCP068", text=why))) if why else record


@contextmanager
def under(case: Case, strategy: str | PlanFile | Path) -> Iterator[tuple[Case, Case]]:
    """Yield the case under a strategy, and the case to record; a plan in memory is in a file meanwhile."""
    if isinstance(strategy, PlanFile):
        with TemporaryDirectory() as folder:
            path = Path(folder) / plan_file.USUAL
            strategy.save(path)
            with under(case, path) as (from_file, _):
                yield from_file, msgspec.structs.replace(case, strategy=Choice("plan"))
        return
    word = Choice.of("plan", {"file": strategy}) if isinstance(strategy, Path) else Choice(strategy)
    chosen = case.under(levers.resolved(word))
    levers.refuse_conflicts(chosen)
    yield chosen, chosen
