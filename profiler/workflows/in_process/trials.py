"""One step of a caller's model: measured in this process, rehearsed in another, or estimated; and its explanation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch

from profiler.core import plan_file
from profiler.core.case import PASSES, Case, Choice, Trial, split_choices
from profiler.core.errors import Unsupported, UserError
from profiler.core.plan_file import PlanFile
from profiler.core.record import Note, Record
from profiler.core.trace_data import Followed
from profiler.core.units import bytes_text
from profiler.engines import Engine
from profiler.measuring.trial import measure as measure_trial
from profiler.request import device_choice
from profiler.request.spec import Request
from profiler.training import levers
from profiler.training.memory_levers import grows, set_growing
from profiler.training.models.user import as_workload
from profiler.views.tables.columns import OWN_OPTIMIZER
from profiler.workflows.explain import assumed, explanation_of, followed, heading
from profiler.workflows.in_process.answering import answer, named
from profiler.workflows.in_process.arguments import Given, Model, Optimizer, refuse_other_strategies, undisturbed
from profiler.workflows.in_process.results import PeakMemory, ShownRecord, StepExplanation, Timeline

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
    given = Given(model, batch, loss, optimizer)
    checked = given.case(words, lambda word: device_choice.choose_device(word, devices))
    make = given.factory()
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
    given = Given(model, batch, loss, optimizer)

    def ask(engine: Engine, case: Case) -> Record:
        with under(case, strategy) as (chosen, shown):
            (record,) = engine.run([Trial(case=chosen)])
            if record.outcome not in ("ok", "out_of_memory"):  # the device did not decide
                raise Unsupported(record.detail or record.outcome)
            return msgspec.structs.replace(record, case=named(shown, given))

    record, why = answer(ask, given, device=device, precision=precision, blocks=blocks, seed=seed)
    if why:
        record = msgspec.structs.replace(record, notes=(*record.notes, Note(code="GCP068", text=why)))
    return ShownRecord.of(record)


def explain(
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
) -> StepExplanation:
    """Explain the predicted peak of a training step: where it is, what holds it, how low it could be, and why.

    `model` is a module with its `batch`, a function as for `predict`, or a word (`mlp`, `train.py:make`). The module is
    called with the batch as `apply` calls it; with a `loss`, a batch of two is inputs and targets. `optimizer` is the
    module's own, a function of parameters, or a name (`adamw`); without it SGD is assumed. All stay as they are, and
    the step takes no memory. Bytes are rehearsed or estimated as for `predict`, and so are the other keywords. A
    notebook shows the result as tables, `print` as text; `peak_bytes` and `explanation` hold the numbers.

    Raises UserError for what cannot be asked for, Unsupported where the step cannot be traced, and whatever the model
    raises.

    Example::

        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
        batch = torch.randn(4096, 256), torch.zeros(4096, 256)
        gcprof.explain(model, batch, loss=nn.functional.mse_loss, optimizer="adamw", device="h100")
    """
    strategies = ["none", *([strategy] if strategy != "none" else [])]
    given = Given(model, batch, loss, optimizer)
    steps, why = _steps(
        strategies, given, device=device, precision=precision, blocks=blocks, seed=seed, with_choices=True
    )
    (_, baseline), (step, chosen) = steps[0], steps[-1]
    explained = explanation_of(step, chosen, baseline)
    is_given = not isinstance(optimizer, str | None)  # then it is no news that the model has its own
    title = heading(step, chosen, with_strategy=True, is_assumed=optimizer is None)
    remarks = [remark for remark in chosen.remarks if not (is_given and OWN_OPTIMIZER in remark)]
    return StepExplanation(
        title=title.replace(OWN_OPTIMIZER, type(optimizer).__name__) if is_given else title,
        explanation=explained,
        notes=(*(assumed(chosen) if optimizer is None else ()), *remarks, *([why] if why else [])),
    )


def timeline(
    model: Model,
    batch: Any = None,
    strategies: str | Iterable[str | PlanFile | Path] = "none,all",
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
) -> Timeline:
    """Predict what is live over a training step, under each of the strategies.

    `strategies` is a list as on the command line (`none,segments:k=4`), or one of words and plans. All else is as for
    `explain`. A notebook shows the result as a table and a picture, a panel for each strategy; `save("fig.png")` writes
    the picture, `peak_bytes` holds the peaks and `traces` the steps. Raises as `explain` does.

    Example::

        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
        batch = torch.randn(4096, 256), torch.zeros(4096, 256)
        gcprof.timeline(model, batch, "none,segments:k=4", loss=nn.functional.mse_loss).peak_bytes
    """
    chosen = split_choices(strategies) if isinstance(strategies, str) else strategies
    given = Given(model, batch, loss, optimizer)
    steps, _ = _steps(list(chosen), given, device=device, precision=precision, blocks=blocks, seed=seed)
    traces = {str(case.label): step.trace for case, step in steps}
    return Timeline(title=heading(*steps[0]), traces=traces)


def _steps(
    strategies: Sequence[str | PlanFile | Path], given: Given, *, with_choices: bool = False, **words: Any
) -> tuple[list[tuple[Case, Followed]], str]:
    """Return the cases of these strategies, each with its step, and why they are estimated if they could be rehearsed.

    `words` are as of `answer`. With choices, the first step also has what other blocks come to.
    """
    refuse_other_strategies(*strategies)

    def ask(engine: Engine, case: Case) -> list[tuple[Case, Followed]]:
        steps = []
        for place, strategy in enumerate(strategies):
            with under(case, strategy) as (chosen, shown):
                step = followed(engine, Trial(case=chosen), with_choices=with_choices and not place)
                steps.append((named(shown, given), step))
        return steps

    return answer(ask, given, **words)


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
    if grows(chosen) and chosen.torch_device.startswith("cuda") and not chosen.is_rehearsed:
        set_growing(False)


BY: dict[str, Callable[..., Record]] = {"predicted": predict, "measured": measure}


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
