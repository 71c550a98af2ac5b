"""One step of a caller's model, measured or predicted in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch

from profiler.api.asked import case_of, fresh_workload, in_words_of_python, own_random_state, predicted_case
from profiler.core import catalogue
from profiler.core.case import PASSES, Case, Choice, Trial
from profiler.core.plan_file import Recipe
from profiler.core.record import Record
from profiler.measuring import measure as measure_trial
from profiler.predicting.prediction import predict as predict_trial
from profiler.request import device_choice
from profiler.request.spec import Request
from profiler.training import strategies
from profiler.training.models.user import as_workload
from profiler.training.workload import Workload


@in_words_of_python()
def measure(  # noqa: PLR0913  its keywords are a user's settings
    build: Callable[[], Any],
    strategy: str | Recipe | Path = "none",
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
    (see profiler.training.models.user); it is called once for each pass. `strategy` is as for `apply`. Bytes and
    seconds: `readings.peak_bytes`, `readings.step_seconds` with `samples` raw samples after `warmup` steps. One process
    for all is less exact than `gcprof run`, which takes a fresh one for every trial.

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
    checked = case_of(words, build, optimizer, lambda word: device_choice.choose_device(word, _devices()))

    def made() -> Workload:
        return as_workload(build())

    def measured(case: Case) -> Record:
        trial = Trial(case=case, passes=PASSES)
        if case != case.baseline:
            equality = measure_trial(Trial(case=case.baseline, passes=("equality",)), build=made).equality
            trial = msgspec.structs.replace(trial, digests=equality.digests if equality else None)
        return measure_trial(trial, build=made)

    return _under(checked, strategy, measured)


@in_words_of_python()
def predict(
    build: Callable[[], Any],
    strategy: str | Recipe | Path = "none",
    *,
    optimizer: str = "sgd",
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
) -> Record:
    """Predict what `measure` would find on a device that need not be there: one step is traced, nothing is computed.

    `build` is as for `measure`; the tensors that it makes take no memory, so that a model may be larger than this
    machine. It makes its module itself: one that was made before would be changed, and is refused. `strategy` is as
    for `apply`, `device` a GPU of `gcprof predict` (`h100`, `a100-80`, `rtx-4090`), `cuda` for one of no particular
    kind, or `cpu`. In the record, `readings.peak_bytes`, `saved_bytes`, `static_bytes` and `phases` are bytes;
    `reserved_bytes` is what PyTorch's caching allocator would take from a GPU; `step_seconds` holds one estimate in
    seconds for a GPU that is known by name, and is None for others. The notes say how sure it is. The random state of
    this process stays as it was.

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
    case = predicted_case(build, device, optimizer, precision, blocks, seed)
    with own_random_state():
        return _under(case, strategy, lambda chosen: predict_trial(Trial(case=chosen), build=fresh_workload(build)))


def _under(case: Case, strategy: str | Recipe | Path, record: Callable[[Case], Record]) -> Record:
    """The record of the case under a strategy; a plan from memory is read from a file meanwhile, and called `plan`."""
    if isinstance(strategy, Recipe):
        with TemporaryDirectory() as folder:
            strategy.save(Path(folder) / "plan.json")
            from_file = _under(case, Path(folder) / "plan.json", record)
        named = msgspec.structs.replace(from_file.case, strategy=Choice("plan"))
        return msgspec.structs.replace(from_file, case=named)
    word = Choice.of("plan", {"file": strategy}) if isinstance(strategy, Path) else Choice(strategy)
    choice = catalogue.resolve(word, strategies.TABLE, what="strategy")
    return record(msgspec.structs.replace(case, strategy=choice))


def _devices() -> list[str]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["cpu", *(f"cuda:{index}" for index in range(count))]
