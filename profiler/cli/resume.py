"""Going on with a run that is there, or measuring it anew: knows nothing of how trials are run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.cli.carry import LOCAL, begin, finish, go_on, planned, refuse_idle
from profiler.cli.consent import refuse_unnamed
from profiler.cli.output import COMMAND, aside, command_line
from profiler.cli.placement import Where
from profiler.core.errors import UserError
from profiler.runs import RESULTS

if TYPE_CHECKING:
    from profiler.core.case import Choice, Trial
    from profiler.core.record import Environment
    from profiler.request.spec import Plan, Request
    from profiler.runs.store import Run


def resume(
    name: str,
    words: Request,
    *,
    config: Path | None = None,
    output: Path | None = None,
    limit: float = 600.0,
    json: bool = False,
    anew: bool = False,
    exclusive: bool = False,
    where: Where = LOCAL,
) -> int:
    """Go on with a run, or measure its plan `anew` in a folder of its own; the exit code.

    Words and a sweep file must say what the run began with. Raises UserError that lists every difference where they do
    not, or where files, versions or the device are others than they were.
    """
    from profiler import engines
    from profiler.request import device_choice
    from profiler.runs import store
    from profiler.runs.find import run_folder

    before = store.load(run_folder(name))
    request = _request(before, words, config)
    data = (request or words).data
    _refuse_other_data(before, data)
    meant = _first_look(before, request if anew else None)
    refuse_idle(meant, exclusive=exclusive)
    if not anew:
        _refuse_jobs(before, where)
    if anew:
        store.refuse_existing(output or RESULTS / "new")
    elif request is None and not _owed(before):
        return _nothing_left(before, json)
    if not (anew and request):
        refuse_unnamed([trial.case for trial in before.manifest.plan], _named(before, (request or words).model))
    with engines.connect(where.engine, stage_seconds=limit, plan=meant) as engine:
        devices = where.survey(engine, () if anew and request else before.manifest.plan)
        asked = planned(request, devices, part=before.manifest.shard or None) if request else None
        if anew:
            plan = asked or _same(before, data, devices)
            return begin(
                engine, plan.trials, output=output, command=command_line() if asked else before.manifest.command,
                data=data, devices=devices, json=json, remarks=(*before.warnings, *plan.remarks), exclusive=exclusive,
                shard=plan.shard,
            )  # fmt: skip
        _refuse_absent(before, where, devices)
        _refuse_changes(before, asked, devices)
        if not _owed(before):
            return _nothing_left(before, json)
        device_choice.refuse_crowded([trial.case for trial in before.manifest.plan], devices)
        remarks = (*before.warnings, *_again(before))
        return go_on(engine, before.folder, data, devices, json, remarks, exclusive=exclusive)


def _refuse_absent(before: Run, where: Where, devices: dict[str, Environment]) -> None:
    """Refuse to go on here without the run's devices: every trial would fail, and the run be complete."""
    from profiler import engines
    from profiler.request import device_choice

    if engines.EngineChoice(where.engine).name == "local":
        for device in dict.fromkeys(trial.case.device for trial in before.manifest.plan):
            device_choice.choose_device(device, list(devices))


def _refuse_jobs(before: Run, where: Where) -> None:
    """What jobs of Slurm have measured is below the run, and some may still be at work."""
    from profiler import engines

    if engines.EngineChoice(where.engine).name != "slurm" and any((before.folder / "shards").glob("*/manifest.json")):
        hint = f"--engine slurm:... takes it over and goes on, gcprof merge {before.folder}/shards/* makes a run of it"
        raise UserError("jobs of a cluster have parts of this run", hint=hint)


def _request(before: Run, words: Request, config: Path | None) -> Request | None:
    """What was asked for besides, or None where the run's own cases are meant: by no words, or by its models alone."""
    from profiler.request import spec, sweep
    from profiler.request.spec import Request

    if config is None and words == Request(model=words.model, data=words.data):
        is_own = words.model is None or set(_named(before, words.model)) == _models(before)
        return None if is_own else words
    return spec.override(sweep.read(config), words) if config else words


def _named(before: Run, text: str | None) -> list[Choice]:
    """The models that were named, as the run has them or else in their one canonical text."""
    from profiler.core import catalogue
    from profiler.core.case import split_choices
    from profiler.training import models

    asked = split_choices(text) if text is not None else []
    same = _models(before)
    return [one if one in same else catalogue.resolve(one, models.TABLE, what="model") for one in asked]


def _models(before: Run) -> set[Choice]:
    return {trial.case.model for trial in before.manifest.plan}


def _first_look(before: Run, request: Request | None) -> tuple[Trial, ...]:
    """The trials that are meant, before torch is imported to see which devices there are."""
    from profiler.request import device_choice, spec

    return spec.plan(request, device_choice.any_device).trials if request else before.manifest.plan


def _refuse_other_data(before: Run, data: str | None) -> None:
    from_files = any(trial.case.data == "files" for trial in before.manifest.plan)
    if from_files != (data is not None):
        message = "this run reads its batch from files" if from_files else "--data has no effect on this run"
        raise UserError(message, hint="name their folder with --data" if from_files else "its batch is not from files")


def _same(before: Run, data: str | None, devices: dict[str, Environment]) -> Plan:
    """The plan of a run, where its devices and files are here."""
    from profiler.request import device_choice
    from profiler.request.spec import Plan
    from profiler.runs import run_diff

    trials = before.manifest.plan
    for device in dict.fromkeys(trial.case.device for trial in trials):
        device_choice.choose_device(device, list(devices))
    gone = run_diff.missing_code(trial.case for trial in trials)
    if gone:
        message = f"this run is of files that are not here: {', '.join(gone)}"
        raise UserError(message, hint="put them back, or go to the folder where the run was begun")
    return Plan(trials=trials, data_directory=data, shard=before.manifest.shard or None)


def _refuse_changes(before: Run, asked: Plan | None, devices: dict[str, Environment]) -> None:
    """A run is of one plan, one set of files and versions, and one device."""
    import msgspec

    from profiler.core.record import HARDWARE
    from profiler.request import device_choice
    from profiler.runs import run_diff

    plan = before.manifest.plan
    then = _where(before)
    now = device_choice.environment(plan[0].case.device, devices)
    if now.device_name is None:  # of a job of a cluster nothing is known before it runs: it looks itself
        now = msgspec.structs.replace(now, **{name: getattr(now, name) or getattr(then, name) for name in HARDWARE})
    found = run_diff.changes(
        msgspec.structs.replace(before.manifest, environment=then),
        environment=now,
        sources=run_diff.code_digests(trial.case for trial in plan),
        plan=asked.trials if asked else None,
    )
    if found:
        message = f"this run began otherwise, and would be mixed: {'; '.join(found)}"
        anew = shlex.join(["gcprof", *COMMAND.get(), "--new-run"])
        raise UserError(message, hint=f"{anew} measures it anew, in a folder of its own")


def _where(before: Run) -> Environment:
    """What the run began on: as its manifest says, or as the first record where nobody could know it then."""
    device, known = before.manifest.plan[0].case.device, before.manifest.environment
    if known.device_name is not None:
        return known
    records = (record for record in before.records if record.case.device == device)
    found = (record.environment for record in records if record.environment and record.environment.device_name)
    return next(found, known)


def _owed(before: Run) -> bool:
    from profiler.analysis import progress

    return bool(progress.owed(before.manifest.plan, progress.settled(before.records)))


def _again(before: Run) -> tuple[str, ...]:
    """What is measured a second time, in words."""
    from profiler.analysis import progress, rows
    from profiler.core.units import count_text

    number = len(rows.latest(before.records)) - len(progress.settled(before.records))
    told = f"{count_text(number, 'trial')} measured again: crashed, timed out, or compared with one that did"
    return (told,) if number else ()


def _nothing_left(before: Run, json: bool) -> int:
    aside("there is nothing left to do: the run is complete")
    return finish(before, code=0, json=json)
