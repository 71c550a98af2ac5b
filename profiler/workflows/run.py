"""Runs a request through an engine into a run folder, and resumes it: what `gcprof run` and `gcprof predict` do."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from profiler import engines
from profiler.analysis import progress, rows
from profiler.core import catalogue, gpu_specs, schedule
from profiler.core.case import Case, Trial, split_choices
from profiler.core.devices import parse
from profiler.core.errors import UserError, refuse_idle
from profiler.core.record import HARDWARE, Environment
from profiler.core.schedule import Shard
from profiler.core.units import bytes_text, count_text
from profiler.engines import Engine
from profiler.request import device_choice, spec, sweep
from profiler.request.spec import TABLES, CheckedRequest, Request, command_line, given
from profiler.runs import RESULTS, run_diff, store
from profiler.runs.find import run_folder
from profiler.runs.store import Run
from profiler.training import models
from profiler.views.export import files
from profiler.views.tables.evidence import device_word
from profiler.workflows import SILENT, STARTING, Screen, consent, owed_trials

THREADS = "OMP_NUM_THREADS"  # the variable that sets how many threads PyTorch uses


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and where."""

    words: Request
    config: Path | None = None  # a sweep file, which the words override
    output: Path | None = None
    resume: str | None = None  # the run to resume
    anew: bool = False  # measure that run's plan in a folder of its own
    exclusive: bool = False  # stop if others use the device
    engine: str = "local"
    devices: str | None = None  # which of the engine's to use at once
    allow_parallel: bool = False
    shard: str | None = None  # of the sweep
    typed: tuple[str, ...] = ()  # the words of the command line

    def check(self) -> None:
        """Raise UserError for words that cannot go together."""
        devices = {"--devices": self.devices is not None}
        if self.words.device is not None:
            refuse_idle(devices, "with --device")
        if engines.EngineChoice(self.engine).name not in engines.HERE:
            refuse_idle(
                devices, f"with --engine {self.engine}", hint="it has devices of its own; leave one of them out"
            )
        if self.devices is None:
            parallel = {"--allow-parallel": self.allow_parallel}
            refuse_idle(parallel, "without --devices", hint="--devices 0,0 names one twice")
        if self.resume:
            idle = {"--shard": self.shard, "--output": self.output and not self.anew}
            refuse_idle(idle, "with --resume", hint="a run goes on in its own folder, by its own plan")
        elif self.anew:
            refuse_idle({"--new-run": True}, "without --resume", hint="without it, every run is a new one")

    def checked(self) -> Request:
        """Return the sweep file with the words over it. Raises UserError for what the file may not say by itself."""
        if self.config is None:
            return self.words
        asked = spec.override(sweep.read(self.config), self.words)
        consent.refuse_file(asked, self.words, path=self.config)
        return asked

    def parsed_shard(self) -> Shard | None:
        """Return the shard, if there is one. Raises UserError if it cannot be read."""
        return schedule.parse_shard(self.shard) if self.shard else None


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as far as it got."""

    run: Run | None  # None where the shard is empty, and no folder was made
    exit_code: int
    data_directory: str | None = None
    engine: str = "local"


def run(request: RunRequest, screen: Screen = SILENT) -> Ran:
    """Run a request in a new run folder. Raises UserError."""
    return _begin(request, request.checked(), screen)


def resume(request: RunRequest, screen: Screen = SILENT) -> Ran:
    """Resume the run `request.resume`, or measure its plan anew.

    Raises UserError that lists every difference if the words, files, versions or device are not those that the run
    began with.
    """
    assert request.resume
    before = store.load(run_folder(request.resume))
    if before.is_script:
        raise UserError(f"'{request.resume}' is of a script, which cannot be resumed", hint="run its command again")
    words = None if _names_only(before, request) else request.checked()
    data = (words or request.words).data
    _refuse_other_data(before, data)
    if request.anew and words:
        shard = str(before.manifest.shard) if before.manifest.shard else None
        request = msgspec.structs.replace(request, words=words, config=None, shard=shard)
        return _begin(request, _changed(before, request), screen, remarks=before.warnings)
    is_complete = words is None and not request.anew and not _owed(before)
    if not is_complete:
        consent.refuse_unnamed(before, _named_words(before, request.words), request.typed)
    refuse_exclusive(before.manifest.plan, exclusive=request.exclusive)
    if request.anew:
        store.refuse_existing(request.output or RESULTS / "new")
    else:
        _refuse_jobs(before, request.engine)
    if is_complete:
        return _nothing_left(before, screen)
    with ExitStack() as stack:
        with screen.doing(STARTING):
            engine = stack.enter_context(engines.connect(request.engine, plan=before.manifest.plan))
            devices = survey(engine, request, before.manifest.plan)
        checked = CheckedRequest(
            trials=before.manifest.plan, data_directory=data, shard=before.manifest.shard or None,
            remarks=(*before.warnings, *(() if request.anew else _again(before))),
        )  # fmt: skip
        if request.anew or engines.EngineChoice(request.engine).name == "local":
            for device in dict.fromkeys(trial.case.device for trial in checked.trials):
                device_choice.choose_device(device, list(devices))  # every trial would fail, and the run be complete
        if request.anew:
            if gone := run_diff.missing_code(trial.case for trial in checked.trials):
                message = f"this run is of files that are not here: {', '.join(gone)}"
                raise UserError(message, hint="put them back, or go to the folder where the run was begun")
            manifest = before.manifest
            return _in_folder(engine, checked, devices, request, screen, command=manifest.command, words=manifest.words)
        asked = checked_on(devices, _changed(before, request), before.manifest.shard or None) if words else None
        _refuse_changes(before, request, asked, devices)
        if not _owed(before):
            return _nothing_left(before, screen)
        device_choice.refuse_crowded([trial.case for trial in checked.trials], devices)
        return _go_on(engine, before, checked, devices, request, screen)


def _begin(request: RunRequest, words: Request, screen: Screen, *, remarks: Sequence[str] = ()) -> Ran:
    """Run the trials of these words in a new run folder."""
    asked = spec.check(words, device_choice.any_device)
    with ExitStack() as stack:
        with screen.doing(STARTING):
            engine = stack.enter_context(connect(request, asked.trials))
            if not all(trial.case.is_predicted for trial in asked.trials):
                files.prepare_pictures()  # while the engine imports torch
            devices = survey(engine, request)
        checked = checked_on(devices, words, request.parsed_shard())
        if not checked.trials:
            screen.say(empty_text(checked))
            return Ran(run=None, exit_code=0)
        checked = msgspec.structs.replace(checked, remarks=(*remarks, *checked.remarks))
        command = command_line(request.typed)
        own = given(msgspec.structs.replace(words, data=None))  # its folder must be typed again
        return _in_folder(engine, checked, devices, request, screen, command=command, words=own)


def empty_text(checked: CheckedRequest) -> str:
    """Return the message for a shard without trials, which is no error."""
    return f"shard {checked.shard} is empty: the sweep has fewer pairings of a baseline and a round than shards"


def connect(request: RunRequest, trials: Sequence[Trial]) -> Engine:
    """Return the engine for these trials; a wrong request is refused first, before torch is imported."""
    refuse_exclusive(trials, exclusive=request.exclusive)
    store.refuse_existing(request.output or RESULTS / "new")
    request.parsed_shard()
    return engines.connect(request.engine, plan=trials)


def survey(engine: Engine, request: RunRequest, trials: Iterable[Trial] = ()) -> dict[str, Environment]:
    """Return the engine's devices by the names in cases, and set which of them the engine uses at once.

    `trials` that were made for several devices go on with the first one if none are named. Raises UserError.
    """
    devices, word = engine.survey(), request.devices
    if word is None and any(trial.case.device == device_choice.SEVERAL for trial in trials):
        word = "0"
    if word is None:
        return devices
    engine.devices, chosen = device_choice.several(word, devices, twice=request.allow_parallel)
    return chosen


def checked_on(devices: Mapping[str, Environment], words: Request, shard: Shard | None = None) -> CheckedRequest:
    """Return the trials of a request, or of a shard, on the devices here. Raises UserError if one is not here."""
    checked = spec.check(words, lambda word: device_choice.choose_device(word, list(devices)))
    planned = schedule.with_own_rows(checked.trials, lambda model: catalogue.is_code(model, models.TABLE))
    once = schedule.in_one_round(planned, device_choice.hollow(devices))
    checked = msgspec.structs.replace(checked, trials=once)
    device_choice.refuse_absent([trial.case.device for trial in checked.trials], devices)
    device_choice.refuse_crowded([trial.case for trial in checked.trials], devices)
    return spec.part_of(checked, shard) if shard else checked


def refuse_exclusive(trials: Iterable[Trial], *, exclusive: bool) -> None:
    """Raise UserError if the device must be exclusive, but nothing is measured on it."""
    if all(trial.case.is_predicted for trial in trials):
        refuse_idle({"--exclusive": exclusive}, "on a prediction", hint="nothing is measured; leave it out")


def _in_folder(
    engine: Engine,
    checked: CheckedRequest,
    devices: Mapping[str, Environment],
    request: RunRequest,
    screen: Screen,
    *,
    command: str,
    words: dict[str, Any] | UnsetType,
) -> Ran:
    """Make a run folder of these trials, and run them."""
    folder = request.output or store.new_folder(RESULTS, [str(trial.case.model) for trial in checked.trials])
    begun = store.create(
        folder,
        plan=checked.trials,
        command=command,
        environment=device_choice.environment(checked.trials[0].case.device, devices),
        sources=run_diff.code_digests(trial.case for trial in checked.trials),
        words=words,
        shard=checked.shard or UNSET,
    )
    return _go_on(engine, begun, checked, devices, request, screen)


def _go_on(
    engine: Engine,
    before: Run,
    checked: CheckedRequest,
    devices: Mapping[str, Environment],
    request: RunRequest,
    screen: Screen,
) -> Ran:
    """Run what a run owes; return what there is then, also after an interrupt."""
    for line in opening(before.manifest.plan, devices, checked.remarks):
        screen.say(line)
    code, run = owed_trials.follow(
        engine, before, screen, data_directory=checked.data_directory, exclusive=request.exclusive
    )
    return Ran(
        run=run, exit_code=code or progress.exit_code(run.records), data_directory=checked.data_directory,
        engine=request.engine,
    )  # fmt: skip


def opening(trials: Sequence[Trial], devices: Mapping[str, Environment], remarks: Iterable[str]) -> Iterator[str]:
    """Yield the first lines of a run: what is measured, rehearsed or predicted, and what the user should know of it."""
    names = dict.fromkeys(trial.case.device for trial in trials)
    name = next(iter(names))
    predicted = [name for name in names if parse(name).is_predicted]
    rehearsed = [device_word(name) for name in names if parse(name).is_rehearsed]
    device = device_choice.environment(name, devices)
    where = f"torch {device.torch}"
    if len(predicted) < 2 and len(rehearsed) < 2 and device.device_name is not None and device.device_bytes is not None:
        where = f"{device.device_name}, {bytes_text(device.device_bytes)}; {where}"
    why = "" if name != "cpu" or len(devices) > 1 else "no CUDA device here: "
    kind = "the CPU" if name == "cpu" else "the GPU"
    verb = "rehearsing on" if gpu_specs.is_hollow(device.device_name) else "measuring"
    doing = f"rehearsing on {' and '.join(rehearsed)}" if rehearsed else f"{why}{verb} {kind}"
    if predicted and (rehearsed or trials[0].case.is_predicted):
        foreseeing = f"predicting for {', '.join(predicted)}"
        doing = f"{doing} and {foreseeing}" if rehearsed else foreseeing
    yield f"{doing} ({where})"
    for model in dict.fromkeys(trial.case.model.name for trial in trials):
        if catalogue.is_code(model, models.TABLE):
            yield f"note: {model} is the code in {catalogue.place(model).resolve()}"
    for remark in remarks:
        yield f"note: {remark}"


def derive(run: Run) -> tuple[int, list[str]]:
    """Write the tables and pictures of a run that has records; return an exit code and what to say.

    That a picture cannot be drawn is only noted.
    """
    lines = [f"wrote {run.folder / 'trials.jsonl'}"]
    if not run.records:
        return 0, lines
    try:
        lines += [f"wrote {path}" for path in files.write_tables(run)]
        lines += [f"wrote {path}" for path in files.write_pictures(run)]
    except UserError as error:
        if error.exit_code != 1:
            lines += [f"gcprof: {error.message}", f"hint: {error.hint}"]
            return error.exit_code, lines
        lines.append(f"note: no picture was drawn: {error.message}; {error.hint}")
    return 0, lines


# what is resumed


def _names_only(before: Run, request: RunRequest) -> bool:
    """Whether nothing is asked for besides the run's own cases.

    So it is if there are no words, or if the words name only what is the run's own: all of its models, or all that
    leads to code or files.
    """
    words = request.words
    naming = {key: getattr(words, key) for key in consent.FLAGS}
    if request.config is not None or words != Request(**naming, data=words.data):
        return False
    own = {"model": {trial.case.model for trial in before.manifest.plan}}
    must = {field: set(named) for field, named in consent.needs_naming(before).items()}
    typed = _named_words(before, words)
    return all(named in (own.get(field), must.get(field)) for field, named in typed.items())


def _named_words(before: Run, words: Request) -> dict[str, set[str]]:
    """Return the words that were typed, by the field of a case, as the run has them, or else in canonical form."""
    cases = [trial.case for trial in before.manifest.plan]
    named: dict[str, set[str]] = {}
    for key, field in consent.FLAGS.items():
        of_run = {getattr(case, field) for case in cases}
        if (text := getattr(words, key)) is not None and field in TABLES:
            choices = split_choices(text)
            named[field] = {
                one if one in of_run else catalogue.resolve(one, TABLES[field], what=field) for one in choices
            }
        elif text is not None:
            named[field] = {text}
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
        consent.refuse_file(changed, words, path=path)
        return changed
    if not request.anew:
        return words
    as_it_was = shlex.join([*consent.resume_words(before, engine=request.engine, data=words.data), "--new-run"])
    names = ", ".join(map(spec.flag, given(words)))
    message = f"the options that made the plan of this run are not stored, so that {names} cannot be changed in it"
    raise UserError(message, hint=f"{as_it_was} measures it as it was")


def _refuse_jobs(before: Run, engine: str) -> None:
    """Raise UserError if Slurm jobs have shards of the run: some may still be running."""
    if engines.EngineChoice(engine).name != "slurm" and any((before.folder / "shards").glob("*/manifest.json")):
        hint = f"--engine slurm:... continues it; gcprof merge {before.folder}/shards/* merges what it has"
        raise UserError("jobs of a cluster have shards of this run", hint=hint)


def _refuse_other_data(before: Run, data: str | None) -> None:
    from_files = any(trial.case.data == "files" for trial in before.manifest.plan)
    if from_files != (data is not None):
        message = "this run reads its batch from files" if from_files else "--data has no effect on this run"
        raise UserError(message, hint="name their folder with --data" if from_files else "its batch is not from files")


def _refuse_changes(
    before: Run, request: RunRequest, asked: CheckedRequest | None, devices: Mapping[str, Environment]
) -> None:
    """Raise UserError if plan, files, versions or device are not the run's."""
    trials, typed = before.manifest.plan, request.typed
    then = _environment(before)
    now = device_choice.environment(trials[0].case.device, devices)
    if now.device_name is None:  # the device of a cluster's job is unknown before it runs: the job checks it
        now = msgspec.structs.replace(now, **{name: getattr(now, name) or getattr(then, name) for name in HARDWARE})
    sources = run_diff.code_digests(trial.case for trial in trials)
    manifest = msgspec.structs.replace(before.manifest, environment=then)
    changes = [*run_diff.changes(manifest, environment=now, sources=sources)]
    if asked and {*map(_key, asked.trials)} != {*map(_key, trials)}:
        changes = [*_other_words(before, request), *changes]
    if changes:
        message = f"this run began with other settings, which would be mixed: {'; '.join(changes)}"
        ways = [f"{shlex.join(['gcprof', *typed, '--new-run'])} measures it anew, in a folder of its own"]
        if len(changes) == 1 and then.num_threads and then.num_threads != now.num_threads:
            again = shlex.join([f"{THREADS}={then.num_threads}", "gcprof", *typed])
            ways = [f"{again} goes on with it", *ways]
        raise UserError(message, hint="; ".join(ways))


def _key(trial: Trial) -> tuple[Case, int, tuple[str, ...]]:
    return trial.case, trial.round, trial.passes


def _other_words(before: Run, request: RunRequest) -> list[str]:
    """Return which words are not those of the run, as `name before -> now`."""
    if before.manifest.words is UNSET:
        return ["these options make other trials"]
    then, now = before.manifest.words, given(_changed(before, request))
    names = dict.fromkeys([*then, *now])
    texts = {name: [str(words.get(name, "-")) for words in (then, now)] for name in names if name != "data"}
    return [f"{name.replace('_', ' ')} {old} -> {new}" for name, (old, new) in texts.items() if old != new]


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
    store.tidy(before.folder)
    screen.say("there is nothing left to do: the run is complete")
    return Ran(run=before, exit_code=progress.exit_code(before.records))
