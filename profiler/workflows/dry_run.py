"""Estimates what a sweep costs, before anything is sent: what `gcprof run --dry-run` does.

Times are predicted on this machine, even if the trials run elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import UNSET

from profiler import engines
from profiler.analysis.progress import Speed, SweepCost, cost
from profiler.core import gpu_specs
from profiler.core.case import Case, Trial
from profiler.core.errors import UserError
from profiler.core.gpu_specs import to_predict
from profiler.core.record import Environment, Record
from profiler.engines import WORKER, Engine, EngineChoice
from profiler.request.spec import CheckedRequest
from profiler.workflows import SILENT, Screen
from profiler.workflows.run import RunRequest, opening, started

PATIENCE_SECONDS = 15.0  # for all predictions: those that are not done by then are reported as unknown
NO_MATCH, WITHIN = "no blocks match", "block '"  # beginnings of what is wrong with --blocks
START_SECONDS = 3.0  # assumed for a trial on a GPU that is not here: its process, CUDA's context, the model


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What the trials of a request cost, and what that is based on, in words."""

    cost: SweepCost
    basis: str | None = None  # what the seconds of steps are based on
    start: str = ""  # how long the start of a trial takes
    unknown: str = ""  # why some trials have no seconds


def dry_run(request: RunRequest, screen: Screen = SILENT, *, show: Callable[[CheckedRequest], None]) -> Estimate | None:
    """Estimate what a run costs; `show` gets its trials first. None if its shard is empty. Raises UserError."""
    with started(request, request.checked(), screen) as begun:
        if begun is None:
            return None
        engine, devices, checked = begun
        for line in opening(checked.trials, devices, checked.remarks):
            screen.say(line)
        _refuse_unmatched(checked, screen)
        show(checked)
        return estimate(checked, devices, engine, request.engine)


def _refuse_unmatched(checked: CheckedRequest, screen: Screen) -> None:
    """Report the models in which --blocks matches nothing, or where that is unknown; models are built without memory.

    Raises UserError (exit code 1, as the run does) if it matches nothing in any model.
    """
    named = [trial.case.baseline for trial in checked.trials if trial.case.blocks]
    cases = list({str(case.model): case for case in named}.values())
    refused = 0
    records = _predicted([case.foreseen for case in cases], checked.data_directory)
    for case, record in zip(cases, records, strict=True):
        detail = (record.detail or "") if record else ""
        if record is None or record.outcome not in ("ok", "skipped"):
            screen.say(f"{case.model}: its blocks are not looked at: no step was traced within {PATIENCE_SECONDS:g} s")
        elif detail.startswith((NO_MATCH, WITHIN)):
            refused += 1
            screen.say(f"{case.model}: skipped, {detail}")
    if cases and refused == len(cases):
        hint = f"`gcprof blocks {cases[0].model}` shows the blocks that are found"
        raise UserError("no model has such blocks, so there is nothing to run", hint=hint, exit_code=1)


def estimate(checked: CheckedRequest, devices: Mapping[str, Environment], engine: Engine, where: str) -> Estimate:
    """Estimate trials, steps, and seconds if trials are measured on a GPU; `where` is the engine's text."""
    trials = [trial for trial in checked.trials if not trial.if_own]  # those with `if_own` may never run
    measured = [trial for trial in trials if not trial.case.is_predicted and not trial.case.is_rehearsed]
    on_gpu = [trial for trial in measured if trial.case.twin.device != "cpu"]
    if not on_gpu:
        return Estimate(cost=cost(trials, {}, start_seconds=0.0))
    kind = _kind(on_gpu[0].case.device, devices, EngineChoice(where))
    speeds, basis = _speeds(on_gpu, kind, checked.data_directory) if kind else ({}, None)
    is_here = EngineChoice(where).name in engines.HERE
    seconds = START_SECONDS
    if is_here:  # a new process that opens the device, measured once
        began, device = time.monotonic(), on_gpu[0].case.device
        engine.ask(f"{WORKER}:free_bytes", device, failing=f"{device} does not answer")
        seconds = time.monotonic() - began
    total = cost(trials, speeds, start_seconds=seconds)
    why = f"not predicted within {PATIENCE_SECONDS:g} s" if kind else "no GPU is named whose rates are known"
    return Estimate(
        cost=total,
        basis=basis,
        start=f"{seconds:.2g} s {'as measured now' if is_here else 'assumed'} for the start of",
        unknown=why if total.num_unknown else "",
    )


def _kind(device: str, devices: Mapping[str, Environment], where: EngineChoice) -> str | None:
    """Return the known GPU that a device is: by its driver's name, its own name, or an option of the engine."""
    name = devices[device].device_name if device in devices else None
    if name is not None:
        return gpu_specs.word_of(name)
    words = [device, *where.options.values()]
    return next((gpu_specs.canonical(word) for word in words if gpu_specs.is_known(word)), None)


def _speeds(trials: Iterable[Trial], kind: str, data: str | None) -> tuple[dict[Case, Speed], str | None]:
    """Return the times of the baselines' steps, as far as they can be predicted in time, and their basis."""
    basis, speeds = None, {}
    cases = list(dict.fromkeys(trial.case.baseline for trial in trials))
    predicted = _predicted([msgspec.structs.replace(case, device=to_predict(kind)) for case in cases], data)
    for case, record in zip(cases, predicted, strict=True):
        if record is None:
            break
        step, forward = record.readings.step_seconds, record.readings.forward_seconds
        if step and forward:
            speeds[case.twin] = Speed(step_seconds=step[0], forward_seconds=forward[0])
            basis = basis or next((note.text for note in record.notes if note.code == "GCP016"), None)
    return speeds, basis


def _predicted(cases: Sequence[Case], data: str | None) -> Iterator[Record | None]:
    """Yield the prediction of each case; None once no time is left.

    Ranks are predicted as one process alone, without what they send each other.
    """
    if not cases:
        return
    with engines.connect(stage_seconds=PATIENCE_SECONDS, measures=False) as local:
        until = time.monotonic() + PATIENCE_SECONDS
        for case in cases:
            if time.monotonic() > until:
                yield None
                continue
            alone = msgspec.structs.replace(case, parallel=UNSET, ranks=UNSET, sampling=UNSET)
            (record,) = local.run([Trial(case=alone, passes=("memory",), data_directory=data)])
            yield record
