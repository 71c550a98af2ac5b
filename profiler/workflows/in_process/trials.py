"""One step of a caller's model: measured in this process, rehearsed in another, or estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import msgspec
import torch

from profiler.analysis.rows import rows
from profiler.core import plan_file
from profiler.core.case import PASSES, Case, Choice, Trial
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile
from profiler.core.record import Evidence, Note, Record, evidence
from profiler.core.units import bytes_text, parse_bytes
from profiler.measuring.trial import measure as measure_trial
from profiler.request import device_choice
from profiler.request.spec import Request
from profiler.training import levers
from profiler.training.levers import allocator
from profiler.training.models.user import as_workload
from profiler.views.export import markdown as languages
from profiler.views.tables.columns import main
from profiler.views.tables.evidence import device_word
from profiler.views.tables.grid import text
from profiler.workflows.in_process.answering import Source, answer, named
from profiler.workflows.in_process.arguments import (
    Model,
    Optimizer,
    case_of,
    factory,
    refuse_other_strategies,
    undisturbed,
)

REHEARSED = "by='predicted' rehearses a GPU where that is possible"


@undisturbed
def measure(
    model: Model,
    batch: Any = None,
    strategy: str | PlanFile | Path = "none",
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
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


        record = gcprof.measure(build, strategy="segments:k=4")
        record.readings.saved_bytes, record.equality.gradients_equal
    """
    refuse_other_strategies(strategy)
    words = Request(
        device=device, precision=precision, blocks=blocks, rounds=1, warmup=warmup, samples=samples, seed=seed
    )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = ["cpu", *(f"cuda:{index}" for index in range(count))]
    checked = case_of(model, words, optimizer, lambda word: device_choice.choose_device(word, devices))
    make = factory(model, batch, loss, optimizer)
    made = None if make is None else lambda: as_workload(make())

    with under(checked, strategy) as (case, shown):
        trial = Trial(case=case, passes=PASSES)
        if case != case.baseline:
            equality = measure_trial(Trial(case=case.baseline, passes=("equality",)), build=made).equality
            trial = msgspec.structs.replace(trial, digests=equality.digests if equality else None)
        return ShownRecord.of(msgspec.structs.replace(measure_trial(trial, build=made), case=shown))


def predict(
    model: Model,
    batch: Any = None,
    strategy: str | PlanFile | Path = "none",
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
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


        before = gcprof.predict(build, device="h100", precision="bf16").readings.peak_bytes
        after = gcprof.predict(build, strategy="segments:k=4", device="h100", precision="bf16").readings.peak_bytes
    """

    refuse_other_strategies(strategy)

    def ask(source: Source, case: Case) -> Record:
        with under(case, strategy) as (chosen, shown):
            return msgspec.structs.replace(source.record(chosen), case=named(shown, model))

    record, why = answer(
        ask, model, batch, loss, optimizer, device=device, precision=precision, blocks=blocks, seed=seed
    )
    if why:
        record = msgspec.structs.replace(record, notes=(*record.notes, Note(code="GCP068", text=why)))
    return ShownRecord.of(record)


class ShownRecord(Record, frozen=True, kw_only=True):
    """A record that `print` and a notebook show as the table of its command."""

    @classmethod
    def of(cls, record: Record) -> Self:
        return cls(**msgspec.structs.asdict(record))

    def __repr__(self) -> str:
        return text(main(rows((self,)))).plain

    def _repr_html_(self) -> str:
        return languages.html(main(rows((self,))))

    def _repr_markdown_(self) -> str:
        return languages.markdown(main(rows((self,))))


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
    if allocator.is_chosen(chosen) and chosen.torch_device.startswith("cuda") and not chosen.is_rehearsed:
        allocator.set_growing(False)


BY: dict[str, Callable[..., Record]] = {"predicted": predict, "measured": measure}


class PeakMemory(int):
    """The peak of allocated bytes in a training step, with its evidence and its record."""

    evidence: Evidence
    record: Record

    @classmethod
    def of(cls, record: Record) -> Self:
        """Return the peak of a record. Raises UserError if it has none."""
        nbytes = record.readings.peak_bytes if record.readings else None
        if nbytes is None:
            raise UserError(f"'{record.case.model}' has no peak: {record.outcome}", hint=record.detail)
        peak = cls(nbytes)
        peak.record, peak.evidence = record, evidence(record.case, record.environment)
        return peak

    def __repr__(self) -> str:
        case = self.record.case
        device = device_word(case.device)
        settings = f"{case.model} under {case.label}, {case.optimizer}, {case.precision}, {device}"
        return f"{bytes_text(int(self))} {self.evidence} ({settings})"


def peak_memory(
    model: Model,
    batch: Any = None,
    strategy: str | PlanFile | Path = "none",
    *,
    by: str = "predicted",
    **settings: Any,
) -> PeakMemory:
    """Returns the peak of one training step; predicted, or measured on a device that is here.

    The model and the settings are as for `gcprof.predict` and `gcprof.measure`. Raises UserError for what cannot be
    asked for, and as these do.
    """
    if by not in BY:
        raise UserError(f"by: '{by}' is not known", hint=REHEARSED if by == "rehearsed" else f"try {', '.join(BY)}")
    return PeakMemory.of(BY[by](model, batch, strategy, **settings))


def budget_bytes(budget: str | int) -> int:
    """Return a budget in bytes. Raises UserError if it cannot be read."""
    return parse_bytes(budget, flag="budget") if isinstance(budget, str) else budget


def failure(peak: PeakMemory, budget: int | None, *, named: str) -> str | None:
    """Return why a peak is over a budget, what holds it and what to try; None if it fits, or there is no budget."""
    if budget is None or peak <= budget:
        return None
    over = f"{bytes_text(peak - budget)} over {named} of {bytes_text(budget)}"
    readings = peak.record.readings
    lines = [f"peak memory {peak!r}", f"is {over}"]
    if readings and readings.timeline and readings.timeline.modules:
        largest = sorted(readings.timeline.modules.items(), key=lambda item: -item[1])[:3]
        held = [f"{name or 'the loss and top-level code'} {bytes_text(size)}" for name, size in largest]
        lines.append(f"in the {readings.peak_phase} the most is held by {', '.join(held)}")
    elif readings:
        lines.append(f"the peak is in the {readings.peak_phase}")
    lines.append("gcprof.explain says why, gcprof.plan where to checkpoint so that it fits")
    return "\n".join(lines)
