"""A model or a run -> traced steps: what `explain` and `timeline` share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from profiler.cli.output import COMMAND
from profiler.core.errors import UserError
from profiler.runs import RESULTS

if TYPE_CHECKING:
    from profiler.core.case import Case, Choice, Trial
    from profiler.core.record import Record
    from profiler.core.trace_data import Followed
    from profiler.engines import Engine
    from profiler.request.spec import Request


class Step(NamedTuple):
    """One traced step, and what was measured of the same case, where a run was named."""

    case: Case
    followed: Followed
    measured: Record | None


def steps(target: str, words: Request) -> list[Step]:
    """The steps of a model, or of the cases of a run, under the strategies of `words`; `none` first.

    Raises UserError where there is no such model, run or strategy, or where a step cannot be followed.
    """
    from profiler import engines

    records = _records(target, words)
    trials = _trials(target, words) if records is None else _trials_of(target, records, words)
    settings = {trial.case.baseline for trial in trials}
    if len(settings) > 1:
        raise UserError("only one model, batch size and precision can be followed at once", hint="name one of each")
    with engines.connect() as engine:
        return [
            Step(case=trial.case, followed=_followed(engine, trial), measured=_measured(records, trial.case))
            for trial in trials
        ]


def request(*, strategies: str, device: str | None, **others: Any) -> Request:
    """The words of a command as a request for a prediction. Raises UserError."""
    from profiler.core.case import FAKE
    from profiler.request.spec import Request

    word = "cuda" if device is None else device
    return Request(strategies=strategies, device=word if word.startswith(FAKE) else FAKE + word, **others)


def heading(case: Case, *, with_strategy: bool = False) -> str:
    """What was traced, in one line."""
    from profiler.views.tables.columns import batch

    strategy = [str(case.strategy)] if with_strategy else []
    setting = ", ".join([*strategy, batch(case), str(case.optimizer), case.precision, case.device])
    return f"{case.model}, {setting}: predicted"


def measured(step: Step, peak_bytes: int) -> list[str]:
    """What a run measured of the same step, and how far the prediction is from it."""
    from profiler.core.units import bytes_text, error_text

    found = step.measured.readings.peak_bytes if step.measured else None
    if found is None:
        return []
    return [f"measured: {bytes_text(found)}; the prediction is {error_text(peak_bytes / found - 1)} off"]


def _records(target: str, words: Request) -> list[Record] | None:
    """Those of the run that is called so; None where none is."""
    from profiler.request.spec import Request
    from profiler.runs import store
    from profiler.runs.find import run_folder

    places = (Path(target), RESULTS / target)
    if target != "last" and not any(os.path.isfile(place / "manifest.json") for place in places):
        return None
    if words != Request(device="fake:cuda", strategies=words.strategies, segments=words.segments):
        raise UserError("a run has its own model and settings", hint="choose among its rows with --strategies")
    return list(store.load(run_folder(target)).records)


def _trials(target: str, words: Request) -> list[Trial]:
    import msgspec

    from profiler.request import device_choice, spec

    request = msgspec.structs.replace(words, model=target)
    return list(spec.plan(request, device_choice.any_device).trials)


def _trials_of(target: str, records: Sequence[Record], words: Request) -> list[Trial]:
    """The first case's rows under these strategies, predicted with what was read of their operators."""
    import msgspec

    from profiler.analysis.calibration import calibrations
    from profiler.core.case import FAKE, Trial
    from profiler.workflows.typed import refuse_code

    first = records[0].case.baseline
    refuse_code(first, target, COMMAND.get())
    cases = list(dict.fromkeys(record.case for record in records if record.case.twin.baseline == first.twin))
    chosen = [case for case in cases if case == case.baseline or case.strategy in _wanted(words, cases)]
    twins = [msgspec.structs.replace(case, device=FAKE + case.twin.device) for case in chosen]
    known = calibrations(records)
    return [Trial(case=case, calibration=known.get(case.baseline.twin)) for case in dict.fromkeys(twins)]


def _wanted(words: Request, cases: Sequence[Case]) -> list[Choice]:
    """The strategies that were named; each must be of the run."""
    from profiler.request import spec

    named = spec.strategies_of(words, [])
    known = [case.strategy for case in cases]
    for choice in named:
        if choice not in known:
            raise UserError(f"'{choice}' is no row of this run", hint=f"it has {', '.join(dict.fromkeys(known))}")
    return named


def _followed(engine: Engine, trial: Trial) -> Followed:
    from profiler.core.case import encode
    from profiler.core.trace_data import Followed
    from profiler.engines import replies

    failing = f"'{trial.case.model}' under '{trial.case.strategy}' ended without an answer"
    answer = engine.ask("profiler.engines.worker:follow", encode(trial).decode(), failing=failing)
    found: Followed = replies.read(answer, "followed", Followed, of=str(trial.case.strategy))
    return found


def _measured(records: Sequence[Record] | None, case: Case) -> Record | None:
    """The first record of the same case on a device that was there."""
    found = (one for one in records or () if not one.case.is_predicted and one.case.twin == case.twin)
    return next(found, None)
