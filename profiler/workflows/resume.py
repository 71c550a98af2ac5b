"""Resumes a run, or measures its plan anew: what `gcprof run --resume` does."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from profiler import engines
from profiler.analysis import progress, rows
from profiler.core import catalogue
from profiler.core.case import Case, split_choices
from profiler.core.errors import UserError
from profiler.core.record import HARDWARE, Environment
from profiler.core.units import count_text
from profiler.request import consent, device_choice, spec
from profiler.request.spec import TABLES, CheckedRequest, Request
from profiler.request.stored_request import changed, fields_of, given
from profiler.runs import RESULTS, run_diff, store, writer
from profiler.runs.find import run_folder
from profiler.runs.store import Run
from profiler.workflows import SILENT, STARTING, Screen
from profiler.workflows.command_text import command_line, needs_naming, refuse_unnamed, resume_words
from profiler.workflows.run import Ran, RunRequest, begin, checked_on, go_on, ran, refuse_idle

THREADS = "OMP_NUM_THREADS"  # the variable that sets how many threads PyTorch uses


def resume(request: RunRequest, screen: Screen = SILENT) -> Ran:
    """Resume the run `request.resume`, or measure its plan anew.

    Raises UserError that lists every difference if the words, files, versions or device are not those that the run
    began with.
    """
    assert request.resume
    before = store.load(run_folder(request.resume))
    if before.is_script:
        raise UserError(f"'{request.resume}' is of a script, which cannot be resumed", hint="run its command again")
    words = _words(before, request)
    data = (words or request.words).data
    _refuse_other_data(before, data)
    is_complete = words is None and not request.anew and not _owed(before)
    if not is_complete:
        refuse_unnamed(before, _named_words(before, request, words), request.typed)
    meaning = words and _changed(before, words, request)
    meant = spec.check(meaning, device_choice.any_device).trials if request.anew and meaning else before.manifest.plan
    refuse_idle(meant, exclusive=request.exclusive)
    if request.anew:
        store.refuse_existing(request.output or RESULTS / "new")
    else:
        _refuse_jobs(before, request.placement.engine)
    if is_complete:
        return _nothing_left(before, screen)
    with ExitStack() as stack:
        with screen.doing(STARTING):
            engine = engines.connect(request.placement.engine, plan=meant)
            stack.enter_context(engine)
            is_moved = request.anew and words and (words.device or words.gpus)
            devices = request.placement.survey(engine, () if is_moved else before.manifest.plan)
        asked = checked_on(devices, meaning, before.manifest.shard or None) if meaning else None
        if request.anew:
            checked = asked or _same(before, data, devices)
            checked = msgspec.structs.replace(checked, remarks=(*before.warnings, *checked.remarks))
            command = command_line(request.typed) if asked else before.manifest.command
            return begin(engine, checked, devices, request, screen, command=command)
        _refuse_absent(before, request.placement.engine, devices)
        _refuse_changes(before, asked, devices, request.typed, names=given(words) if words else ())
        if not _owed(before):
            return _nothing_left(before, screen)
        device_choice.refuse_crowded([trial.case for trial in before.manifest.plan], devices)
        remarks = (*before.warnings, *_again(before))
        checked = CheckedRequest(trials=before.manifest.plan, data_directory=data, remarks=remarks)
        return go_on(engine, before, checked, devices, request, screen)


def _changed(before: Run, words: Request, request: RunRequest) -> Request:
    """Return the run's own words, overridden by those that were typed. Raises UserError.

    For a shard of a sweep, whose other shards are unknown here, returns the typed words alone.
    """
    shard = before.manifest.shard
    if shard and request.anew:
        message = (
            f"this run is shard {shard} of a sweep, and none of its options can be changed without the other shards"
        )
        hint = f"leave --resume out, and give all options of the sweep and --shard {shard}"
        raise UserError(message, hint=hint)
    if shard:
        return words
    as_it_was = shlex.join([*resume_words(before, request.typed, words.data), "--new-run"])
    return changed(before.manifest.plan, words, as_it_was=as_it_was)


def _refuse_absent(before: Run, engine: str, devices: Mapping[str, Environment]) -> None:
    """Raise UserError if the run's devices are not here: every trial would fail, and the run count as complete."""
    if engines.EngineChoice(engine).name == "local":
        for device in dict.fromkeys(trial.case.device for trial in before.manifest.plan):
            device_choice.choose_device(device, list(devices))


def _refuse_jobs(before: Run, engine: str) -> None:
    """Raise UserError if Slurm jobs have shards of the run: some may still be running."""
    if engines.EngineChoice(engine).name != "slurm" and any((before.folder / "shards").glob("*/manifest.json")):
        hint = f"--engine slurm:... continues it; gcprof merge {before.folder}/shards/* merges what it has"
        raise UserError("jobs of a cluster have shards of this run", hint=hint)


def _words(before: Run, request: RunRequest) -> Request | None:
    """Return what was asked for besides the run's own cases; None if just these are meant.

    They are if there are no words, or if the words name only what is the run's own: all of its models, or all that
    leads to code or files.
    """
    words = request.words
    naming = {key: getattr(words, key) for key in consent.FLAGS}
    if request.config is None and words == Request(**naming, data=words.data):
        own = {"model": {trial.case.model for trial in before.manifest.plan}}
        must = {field: set(named) for field, named in needs_naming(before).items()}
        typed = _typed(before, words)
        if all(named in (own.get(field), must.get(field)) for field, named in typed.items()):
            return None
    return request.checked()


def _named_words(before: Run, request: RunRequest, words: Request | None) -> dict[str, set[str]]:
    """Return the words that were typed, by the field of a case, and the run's words that a new run replaces."""
    named = _typed(before, request.words)
    replaced = fields_of(given(words)) if request.anew and words else set()
    cases = [trial.case for trial in before.manifest.plan]
    return named | {field: {getattr(case, field) for case in cases} for field in replaced & set(Case.__struct_fields__)}


def _typed(before: Run, words: Request) -> dict[str, set[str]]:
    """Return the words that were typed, by the field of a case: as the run has them, or else in canonical form."""
    texts = {field: getattr(words, key) for key, field in consent.FLAGS.items()}
    return {field: _named(before, field, text) for field, text in texts.items() if text is not None}


def _named(before: Run, field: str, text: str) -> set[str]:
    if field not in TABLES:
        return {text}
    cases = [trial.case for trial in before.manifest.plan]
    of_run = {getattr(case, field) for case in cases}
    choices = split_choices(text)
    return {choice if choice in of_run else catalogue.resolve(choice, TABLES[field], what=field) for choice in choices}


def _refuse_other_data(before: Run, data: str | None) -> None:
    from_files = any(trial.case.data == "files" for trial in before.manifest.plan)
    if from_files != (data is not None):
        message = "this run reads its batch from files" if from_files else "--data has no effect on this run"
        raise UserError(message, hint="name their folder with --data" if from_files else "its batch is not from files")


def _same(before: Run, data: str | None, devices: Mapping[str, Environment]) -> CheckedRequest:
    """Return the trials of a run. Raises UserError if its devices or files are not here."""
    trials = before.manifest.plan
    for device in dict.fromkeys(trial.case.device for trial in trials):
        device_choice.choose_device(device, list(devices))
    gone = run_diff.missing_code(trial.case for trial in trials)
    if gone:
        message = f"this run is of files that are not here: {', '.join(gone)}"
        raise UserError(message, hint="put them back, or go to the folder where the run was begun")
    return CheckedRequest(trials=trials, data_directory=data, shard=before.manifest.shard or None)


def _refuse_changes(
    before: Run,
    asked: CheckedRequest | None,
    devices: Mapping[str, Environment],
    typed: Sequence[str] = (),
    *,
    names: Iterable[str] = (),
) -> None:
    """Raise UserError if plan, files, versions or device are not the run's. `names` are those of the typed words."""
    trials = before.manifest.plan
    then = _environment(before)
    now = device_choice.environment(trials[0].case.device, devices)
    if now.device_name is None:  # the device of a cluster's job is unknown before it runs: the job checks it
        now = msgspec.structs.replace(now, **{name: getattr(now, name) or getattr(then, name) for name in HARDWARE})
    changes = run_diff.changes(
        msgspec.structs.replace(before.manifest, environment=then),
        environment=now,
        sources=run_diff.code_digests(trial.case for trial in trials),
        plan=asked.trials if asked else None,
        names=fields_of(names),
    )
    if changes:
        message = f"this run began with other settings, which would be mixed: {'; '.join(changes)}"
        ways = [f"{shlex.join(['gcprof', *typed, '--new-run'])} measures it anew, in a folder of its own"]
        if len(changes) == 1 and then.num_threads and then.num_threads != now.num_threads:
            again = shlex.join([f"{THREADS}={then.num_threads}", "gcprof", *typed])
            ways = [f"{again} goes on with it", *ways]
        raise UserError(message, hint="; ".join(ways))


def _environment(before: Run) -> Environment:
    """Return what the run began on: as in its manifest, or as in its first record if it was unknown then."""
    device, stored = before.manifest.plan[0].case.device, before.manifest.environment
    if stored.device_name is not None:
        return stored
    records = (record for record in before.records if record.case.device == device)
    known = (record.environment for record in records if record.environment and record.environment.device_name)
    return next(known, stored)


def _owed(before: Run) -> bool:
    return bool(progress.owed(before.manifest.plan, progress.settled(before.records)))


def _again(before: Run) -> tuple[str, ...]:
    """Return a remark on the trials that are measured again."""
    number = len(rows.latest(before.records)) - len(progress.settled(before.records))
    remark = f"{count_text(number, 'trial')} measured again: crashed, timed out, or had a baseline that did"
    return (remark,) if number else ()


def _nothing_left(before: Run, screen: Screen) -> Ran:
    writer.tidy(before.folder)
    screen.say("there is nothing left to do: the run is complete")
    return ran(before)
