"""Traced steps of a model or a run, and what holds their peak: what `gcprof explain` and `gcprof timeline` do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from profiler import engines
from profiler.analysis.explanation import Explanation
from profiler.analysis.explanation import explain as explain_trace
from profiler.analysis.progress import calibrations
from profiler.core.case import Case, Choice, Trial, encode
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.core.trace_data import Followed
from profiler.engines import Engine, read_answer
from profiler.request import device_choice, spec
from profiler.request.spec import Request
from profiler.runs import RESULTS, store
from profiler.runs.find import run_folder
from profiler.workflows.typed_words import refuse_code


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which steps to trace: of the model `target`, or of the cases of the run that is called so."""

    target: str
    words: Request  # a prediction, as `prediction` makes one
    typed: tuple[str, ...] = ()  # the words of the command line


class TracedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One traced step, and what was measured of the same case, where a run was named."""

    case: Case
    followed: Followed
    measured: Record | None


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """The last traced step, and what holds its peak."""

    step: TracedStep
    explanation: Explanation


def prediction(*, strategies: str, device: str | None, **others: Any) -> Request:
    """The words of a command as a request for a prediction. Raises UserError."""
    word = "cuda" if device is None else device
    return Request(strategies=strategies, device=device_choice.to_predict(word), **others)


def explain(request: TraceRequest) -> Explained:
    """Where the peak of the last traced step is and why it is no lower, against the first. Raises UserError."""
    steps = traced_steps(request)
    chosen = steps[-1]
    if chosen.case.ranks:
        hint = f"gcprof timeline {request.target} draws what one of them holds"
        raise UserError("what ranks gather for each other has no floor yet: it cannot be explained", hint=hint)
    followed = chosen.followed
    explanation = explain_trace(
        followed.trace, blocks=followed.blocks, baseline=steps[0].followed.trace, split=followed.split
    )
    return Explained(step=chosen, explanation=explanation)


def traced_steps(request: TraceRequest) -> list[TracedStep]:
    """The steps of a model, or of the cases of a run, under the strategies of the request; `none` first.

    Raises UserError where there is no such model, run or strategy, or where a step cannot be followed.
    """
    records = _records(request)
    trials = _trials_of_model(request) if records is None else _trials_of_run(records, request)
    settings = {trial.case.baseline for trial in trials}
    if len(settings) > 1:
        raise UserError("only one model, batch size and precision can be followed at once", hint="name one of each")
    with engines.connect() as engine:
        return [
            TracedStep(case=trial.case, followed=_followed(engine, trial), measured=_measured(records, trial.case))
            for trial in trials
        ]


def _records(request: TraceRequest) -> list[Record] | None:
    """Those of the run that is called so; None where none is."""
    target, words = request.target, request.words
    places = (Path(target), RESULTS / target)
    if target != "last" and not any(os.path.isfile(place / "manifest.json") for place in places):
        return None
    if words != Request(device="fake:cuda", strategies=words.strategies, segments=words.segments):
        raise UserError("a run has its own model and settings", hint="choose among its rows with --strategies")
    return list(store.load(run_folder(target)).records)


def _trials_of_model(request: TraceRequest) -> list[Trial]:
    words = msgspec.structs.replace(request.words, model=request.target)
    return list(spec.plan(words, device_choice.any_device).trials)


def _trials_of_run(records: Sequence[Record], request: TraceRequest) -> list[Trial]:
    """The first case's rows under these strategies, predicted with what was read of their operators."""
    first = records[0].case.baseline
    refuse_code(first, request.target, request.typed)
    cases = list(dict.fromkeys(record.case for record in records if record.case.twin.baseline == first.twin))
    chosen = [case for case in cases if case == case.baseline or case.strategy in _wanted(request.words, cases)]
    twins = [case.foreseen for case in chosen]
    calibrated = calibrations(records)
    return [Trial(case=case, calibration=calibrated.get(case.baseline.twin)) for case in dict.fromkeys(twins)]


def _wanted(words: Request, cases: Sequence[Case]) -> list[Choice]:
    """The strategies that were named; each must be of the run."""
    named = spec.strategies_of(words, [])
    measured = [case.strategy for case in cases]
    for choice in named:
        if choice not in measured:
            raise UserError(f"'{choice}' is no row of this run", hint=f"it has {', '.join(dict.fromkeys(measured))}")
    return named


def _followed(engine: Engine, trial: Trial) -> Followed:
    failing = f"'{trial.case.model}' under '{trial.case.strategy}' ended without an answer"
    answer = engine.ask("profiler.engines.worker:follow", encode(trial).decode(), failing=failing)
    followed: Followed = read_answer(answer, "followed", Followed, of=str(trial.case.strategy))
    return followed


def _measured(records: Sequence[Record] | None, case: Case) -> Record | None:
    """The first record of the same case on a device that was there."""
    of_case = (record for record in records or () if record.case.twin == case.twin and not record.case.is_predicted)
    return next(of_case, None)
