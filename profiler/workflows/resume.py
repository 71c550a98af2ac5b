"""Resumes a run, or measures its plan anew: refused where words, files, versions or device are not the run's.

A run folder may come from anyone: a word of it that leads to code or files counts only if the user typed it too. To
decide this, nothing is imported or opened, nothing outside of the folder is looked at, and no name in it is resolved.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec import UNSET

from profiler import engines
from profiler.analysis import progress, rows
from profiler.core import catalogue, device_choice
from profiler.core.case import Case, Choice, split_choices
from profiler.core.errors import UserError
from profiler.core.record import HARDWARE, Environment
from profiler.core.units import count_text
from profiler.runs import RESULTS, run_folder, store
from profiler.runs.store import Run
from profiler.workflows import COMMAND, SILENT, STARTING, Screen, spec
from profiler.workflows import run as workflow
from profiler.workflows.run import Ran, RunRequest, Started
from profiler.workflows.spec import FLAGS, TABLES, CheckedRequest, Request, given, is_plain

OF_MODEL = ("model", "optimizer", "batch_size", "precision", "accumulate", "blocks")  # of a run, for another command
Words = dict[str, list[str]]  # by the field of a case
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
    plan, shard = before.manifest.plan, before.manifest.shard or None
    words = None if _names_only(before, request) else request.checked()
    data = (words or request.words).data
    from_files = any(trial.case.data == "files" for trial in plan)
    if from_files != (data is not None):
        message = "this run reads its batch from files" if from_files else "--data has no effect on this run"
        raise UserError(message, hint="name their folder with --data" if from_files else "its batch is not from files")
    if request.anew and words:
        request = msgspec.structs.replace(request, words=words, config=None, shard=str(shard) if shard else None)
        return workflow.run(request, screen, words=_changed(before, request), remarks=before.warnings)
    is_complete = words is None and not request.anew and not _owed(before)
    if not is_complete:
        unnamed = needs_naming(before, _named_words(before, request.words))  # digests in its folder are no consent
        again = shlex.join(["gcprof", *COMMAND.get(), *_again(before, unnamed)])
        _refuse(unnamed, hint=f"if this is your own code: {again}")
    workflow.refuse_exclusive(plan, exclusive=request.exclusive)
    if request.anew:
        store.refuse_existing(request.output or RESULTS / "new")
    elif engines.EngineChoice(request.engine).name != "slurm" and any(
        (before.folder / "shards").glob("*/manifest.json")
    ):  # some jobs may still be running
        hint = f"--engine slurm:... continues it; gcprof merge {before.folder}/shards/* merges what it has"
        raise UserError("jobs of a cluster have shards of this run", hint=hint)
    if is_complete:
        return _nothing_left(before, screen)
    with ExitStack() as stack:
        with screen.doing(STARTING):
            engine = stack.enter_context(engines.connect(request.engine, plan=plan))
            devices = workflow.survey(engine, request, plan)
        if request.anew or engines.EngineChoice(request.engine).name == "local":
            for device in dict.fromkeys(trial.case.device for trial in plan):
                device_choice.choose_device(device, list(devices))  # every trial would fail, and the run be complete
        remarks = before.warnings
        number = len(rows.latest(before.records)) - len(progress.settled(before.records))
        if number and not request.anew:
            lost = "crashed, timed out, or had a baseline that did"
            remarks = (*remarks, f"{count_text(number, 'trial')} measured again: {lost}")
        checked = CheckedRequest(trials=plan, data_directory=data, shard=shard, remarks=remarks)
        begun, manifest = Started(engine, devices, checked), before.manifest
        if request.anew:
            if gone := store.missing_code(trial.case for trial in plan):
                message = f"this run is of files that are not here: {', '.join(gone)}"
                raise UserError(message, hint="put them back, or go to the folder where the run was begun")
            return workflow.in_folder(begun, request, screen, command=manifest.command, words=manifest.words)
        asked = workflow.checked_on(devices, _changed(before, request), shard) if words else None
        _refuse_changes(before, request, asked, devices)
        if not _owed(before):
            return _nothing_left(before, screen)
        device_choice.refuse_crowded([trial.case for trial in plan], devices)
        return workflow.go_on(begun, before, request, screen)


def _names_only(before: Run, request: RunRequest) -> bool:
    """Whether nothing is asked for besides the run's own cases.

    So it is if there are no words, or if the words name only what is the run's own: all of its models, or all that
    leads to code or files.
    """
    words = request.words
    naming = {key: getattr(words, key) for key in FLAGS}
    if request.config is not None or words != Request(**naming, data=words.data):
        return False
    models, must = {case.model for case in _cases(before)}, needs_naming(before)
    return all(
        named == {*must.get(field, ())} or (field == "model" and named == models)
        for field, named in _named_words(before, words).items()
    )


def _named_words(before: Run, words: Request) -> dict[str, set[Choice]]:
    """Return the words that were typed, by the field of a case, as the run has them, or else in canonical form."""
    named = {}
    for key, field in FLAGS.items():
        if (text := getattr(words, key)) is not None:
            own = {getattr(case, field) for case in _cases(before)}
            choices = [choice.parts[0] for choice in split_choices(text)]  # a lever leads nowhere
            named[field] = {
                choice if choice in own else catalogue.resolve(choice, TABLES[field], what=field) for choice in choices
            }
    return named


def _changed(before: Run, request: RunRequest) -> Request:
    """Return the run's own words, overridden by those that were typed. Raises UserError if it has none."""
    words = request.checked()
    if before.manifest.words is not UNSET:
        path = before.folder / "manifest.json"
        try:
            own = msgspec.convert(before.manifest.words, Request)
        except msgspec.ValidationError as error:
            raise UserError(f"{path}: words: {error}", exit_code=4) from None
        changed = spec.changed(own, words)
        spec.refuse_file(changed, words, path=path)
        return changed
    if not request.anew:
        return words
    as_it_was = shlex.join([*resume_words(before, engine=request.engine, data=words.data), "--new-run"])
    names = ", ".join(map(spec.flag, given(words)))
    message = f"the options that made the plan of this run are not stored, so that {names} cannot be changed in it"
    raise UserError(message, hint=f"{as_it_was} measures it as it was")


def _refuse_changes(
    before: Run, request: RunRequest, asked: CheckedRequest | None, devices: Mapping[str, Environment]
) -> None:
    """Raise UserError if plan, files, versions or device are not the run's."""
    trials, typed = before.manifest.plan, COMMAND.get()
    device, then = trials[0].case.device, before.manifest.environment
    if then.device_name is None:  # it was unknown when the run began: its first record has it
        known = (record.environment for record in before.records if record.case.device == device)
        then = next((one for one in known if one and one.device_name), then)
    now = device_choice.environment(device, devices)
    if now.device_name is None:  # the device of a cluster's job is unknown before it runs: the job checks it
        now = msgspec.structs.replace(now, **{name: getattr(now, name) or getattr(then, name) for name in HARDWARE})
    sources = store.code_digests(trial.case for trial in trials)
    manifest = msgspec.structs.replace(before.manifest, environment=then)
    changes = [*store.changes(manifest, environment=now, sources=sources)]
    then_and_now = [{(one.key, one.passes) for one in of} for of in (trials, asked.trials if asked else trials)]
    if then_and_now[0] != then_and_now[1]:
        changes = [*_other_words(before, request), *changes]
    if changes:
        message = f"this run began with other settings, which would be mixed: {'; '.join(changes)}"
        ways = [f"{shlex.join(['gcprof', *typed, '--new-run'])} measures it anew, in a folder of its own"]
        if len(changes) == 1 and then.num_threads and then.num_threads != now.num_threads:
            again = shlex.join([f"{THREADS}={then.num_threads}", "gcprof", *typed])
            ways = [f"{again} goes on with it", *ways]
        raise UserError(message, hint="; ".join(ways))


def _other_words(before: Run, request: RunRequest) -> list[str]:
    """Return which words are not those of the run, as `name before -> now`."""
    if before.manifest.words is UNSET:
        return ["these options make other trials"]
    then, now = before.manifest.words, given(_changed(before, request))
    names = dict.fromkeys([*then, *now])
    texts = {name: [str(words.get(name, "-")) for words in (then, now)] for name in names if name != "data"}
    return [f"{name.replace('_', ' ')} {old} -> {new}" for name, (old, new) in texts.items() if old != new]


def _owed(before: Run) -> bool:
    return bool(progress.owed(before.manifest.plan, progress.settled(before.records)))


def _nothing_left(before: Run, screen: Screen) -> Ran:
    screen.say("there is nothing left to do: the run is complete")
    return Ran(run=before, exit_code=progress.exit_code(before.records))


def unnamed_words(cases: Iterable[Case], *, folder: Path | None, named: Mapping[str, Iterable[str]]) -> Words:
    """Return the words of these cases that must be typed and were not, each once, by the field of the case.

    Only the fields of TABLES can lead to code or files. `folder` is the run folder that the cases are from, `named` the
    words that were typed, by field. Raises UserError for options that cannot be read.
    """
    words = {}
    for name, table in TABLES.items():
        typed = set(named.get(name, ()))
        choices = dict.fromkeys(getattr(case, name) for case in cases)
        untyped = [one for one in choices if one is not UNSET and one not in typed and not is_plain(one, table, folder)]
        if untyped:
            words[name] = [str(choice) for choice in untyped]
    return words


def resume_words(run: Run, *, engine: str = "local", data: str | None = None) -> list[str]:
    """Return the command that resumes a run, with what the user must type again."""
    where = ["--engine", engine] if engine != "local" else []
    again = _again(run, needs_naming(run))
    return ["gcprof", "run", "--resume", str(run.folder), *again, *(["--data", data] if data else []), *where]


def refuse_cases(cases: Iterable[Case], target: str, *, named: Iterable[Choice]) -> None:
    """Raise UserError if words of these cases of the run `target` lead to code or files; strategies can be named."""
    unnamed = unnamed_words([*cases], folder=run_folder(target), named={"strategy": set(named)})
    _refuse(unnamed, hint="name the model and its settings instead of the run")


def needs_naming(run: Run, named: Mapping[str, Iterable[str]] | None = None) -> Words:
    """Return the words of a run's plan that a user must type again, but those `named`, by the field of a case."""
    return unnamed_words(_cases(run), folder=run.folder, named=named or {})


def words_of(word: str) -> dict[str, str]:
    """Return the model and settings of the run of this name as one types them, several of one joined by commas.

    Raises UserError for a script's run, and for a run whose words lead to code.
    """
    run = store.load(run_folder(word))
    if run.is_script:
        message = f"'{word}' is the run of a script, and this command takes a model"
        raise UserError(message, hint=f"gcprof show {word} names its command")
    cases = list(dict.fromkeys(case.baseline for case in _cases(run)))
    refuse_cases(cases, word, named=())
    values = {field: dict.fromkeys(getattr(case, field) for case in cases) for field in OF_MODEL}
    return {field: ",".join(map(str, of)) for field, of in values.items() if not {None, UNSET} & {*of}}


def _cases(run: Run) -> list[Case]:
    return list(dict.fromkeys(trial.case for trial in run.manifest.plan))


def _again(run: Run, unnamed: Words) -> list[str]:
    """Return the flags that name these words; --model takes all models of the run."""
    models = {"model": list(dict.fromkeys(str(case.model) for case in _cases(run)))} if "model" in unnamed else {}
    named = {**unnamed, **models}
    return [part for key, field in FLAGS.items() if field in named for part in (f"--{key}", ",".join(named[field]))]


def _refuse(unnamed: Words, *, hint: str) -> None:
    for field, (word, *_) in unnamed.items():
        why = "which is not gcprof's own: gcprof does not run code just because a run folder names it"
        raise UserError(f"the {field} of this run is '{word}', {why}", hint=hint)
