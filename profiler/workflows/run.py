"""Runs a request through an engine into a run folder, where each record is stored before it is shown.

With --dry-run it estimates what that costs; times are predicted on this machine, even if the trials run elsewhere.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from profiler import engines
from profiler.analysis import progress
from profiler.analysis.progress import Bounds, cost
from profiler.analysis.time_ratio import other_processes
from profiler.core import catalogue, device_choice, gpu_specs, schedule
from profiler.core.case import Case, Trial
from profiler.core.errors import UserError, load_module, refuse_idle
from profiler.core.gpu_specs import parse, to_predict
from profiler.core.record import Environment, Record
from profiler.core.schedule import Shard
from profiler.core.units import bytes_text
from profiler.engines import WORKER, Engine, EngineChoice
from profiler.runs import RESULTS, store
from profiler.runs.store import Run, Writer
from profiler.training import models
from profiler.views import export
from profiler.views.tables.columns import card, device_word
from profiler.views.tables.progress import cost_lines
from profiler.workflows import SILENT, STARTING, Interrupted, Screen, spec
from profiler.workflows.spec import CheckedRequest, Request, command_line, given

UNTOLD = "GCP031"  # the note that a device reports nothing about itself


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
    is_kept: bool = True  # else the folder goes with the command, and no picture is drawn

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
        asked = spec.override(spec.read_sweep(self.config), self.words)
        spec.refuse_file(asked, self.words, path=self.config)
        return asked


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as far as it got."""

    run: Run | None  # None where the shard is empty, and no folder was made
    exit_code: int
    data_directory: str | None = None
    engine: str = "local"


class Started(NamedTuple):
    """An engine at work, its devices, and the trials that are asked of it."""

    engine: Engine
    devices: Mapping[str, Environment]
    checked: CheckedRequest


def run(
    request: RunRequest, screen: Screen = SILENT, *, words: Request | None = None, remarks: Sequence[str] = ()
) -> Ran:
    """Run a request, or the trials of these words in its place, in a new run folder. Raises UserError."""
    words = words or request.checked()
    with started(request, words, screen) as begun:
        if begun is None:
            return Ran(run=None, exit_code=0)
        checked = msgspec.structs.replace(begun.checked, remarks=(*remarks, *begun.checked.remarks))
        own = given(msgspec.structs.replace(words, data=None))  # its folder must be typed again
        begun = begun._replace(checked=checked)
        return in_folder(begun, request, screen, words=own)


@contextmanager
def started(request: RunRequest, words: Request, screen: Screen) -> Iterator[Started | None]:
    """Yield the engine of a request with the trials of these words; None for an empty shard, which is no error.

    A wrong request is refused first, before torch is imported. Raises UserError.
    """
    trials = spec.check(words, device_choice.any_device).trials
    shard = schedule.parse_shard(request.shard) if request.shard else None
    refuse_exclusive(trials, exclusive=request.exclusive)
    store.refuse_existing(request.output or RESULTS / "new")
    with ExitStack() as stack:
        with screen.doing(STARTING):
            engine = stack.enter_context(engines.connect(request.engine, plan=trials))
            if request.is_kept and not all(trial.case.is_predicted for trial in trials):
                with suppress(UserError):  # a slow import, done while the engine imports torch
                    load_module("profiler.views.plots", needs="matplotlib")
            devices = survey(engine, request)
        checked = checked_on(devices, words, shard)
        if not checked.trials:
            screen.say(f"shard {shard} is empty: the sweep has fewer pairings of a baseline and a round than shards")
        yield Started(engine, devices, checked) if checked.trials else None


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
    trials = schedule.with_own_rows(checked.trials, lambda model: catalogue.is_code(model, models.TABLE))
    hollow = device_choice.hollow(devices)  # these have no times that later rounds could add to
    trials = tuple(trial for trial in trials if trial.round == 1 or trial.case.device not in hollow)
    device_choice.refuse_absent([trial.case.device for trial in trials], devices)
    device_choice.refuse_crowded([trial.case for trial in trials], devices)
    trials, placed = schedule.cut(trials, shard) if shard else (trials, None)
    return msgspec.structs.replace(checked, trials=trials, shard=placed)


def refuse_exclusive(trials: Iterable[Trial], *, exclusive: bool) -> None:
    """Raise UserError if the device must be exclusive, but nothing is measured on it."""
    if all(trial.case.is_predicted for trial in trials):
        refuse_idle({"--exclusive": exclusive}, "on a prediction", hint="nothing is measured; leave it out")


def in_folder(
    begun: Started, request: RunRequest, screen: Screen, *, command: str = "", words: dict[str, Any] | UnsetType = UNSET
) -> Ran:
    """Make a run folder of the trials, and run them; `command` is that of the request if none is given."""
    trials = begun.checked.trials
    made = store.create(
        request.output or store.new_folder(RESULTS, [str(trial.case.model) for trial in trials]),
        plan=trials,
        command=command or command_line(),
        environment=device_choice.environment(trials[0].case.device, begun.devices),
        sources=store.code_digests(trial.case for trial in trials),
        words=words,
        shard=begun.checked.shard or UNSET,
    )
    return go_on(begun, made, request, screen)


def go_on(begun: Started, before: Run, request: RunRequest, screen: Screen) -> Ran:
    """Run what a run owes; return what there is then, also after an interrupt."""
    for line in opening(before.manifest.plan, begun.devices, begun.checked.remarks):
        screen.say(line)
    data = begun.checked.data_directory
    code, run = follow(begun.engine, before, screen, data_directory=data, exclusive=request.exclusive)
    code = code or progress.exit_code(run.records)
    return Ran(run=run, exit_code=code, data_directory=data, engine=request.engine)


def follow(
    engine: Engine,
    run: Run,
    screen: Screen = SILENT,
    *,
    data_directory: str | None = None,
    exclusive: bool = False,
    ready: Sequence[Record] = (),
) -> tuple[int, Run]:
    """Run what a run still owes, and show each record; return an exit code, 0 if nothing ended it early, and the run.

    What ends it early is reported: an interrupt or a UserError.
    """
    records = [*run.records]
    code = 0

    def warn(text: str) -> None:
        screen.say(f"warning: {text}")

    try:
        engine.at_work = screen.at_work
        with screen.watch([trial.case for trial in run.manifest.plan]) as show:
            owed = run_owed(engine, run, data_directory=data_directory, exclusive=exclusive, ready=ready, warn=warn)
            for record, left in owed:
                records.append(record)
                show(record, left, run.folder / "logs" / f"{store.log_name(record.key)}.log")
    except Interrupted as interrupted:
        screen.say("interrupted; what was printed is safe")
        code = interrupted.exit_code
    except UserError as error:
        screen.say(f"gcprof: {error.message}")
        screen.say(f"hint: {error.hint}")
        code = error.exit_code
    return code, store.of_records(run.folder, run.manifest, records)


def run_owed(
    engine: Engine,
    run: Run,
    *,
    data_directory: str | None = None,
    exclusive: bool = False,
    ready: Sequence[Record] = (),
    warn: Callable[[str], None] = warnings.warn,
) -> Generator[tuple[Record, int], None, None]:
    """Run what a run still owes; yield each record once it is on disk, and how many are left.

    `ready` are records of trials in the plan that were measured before; they come first. Trials that crashed or took
    too long are owed again. `warn` is called with what does no harm yet. Raises UserError if the folder cannot be
    written, another process writes to it or has since it was read; and (exit code 3) if the device must be exclusive,
    and others used it or may have.
    """
    folder, plan = run.folder, run.manifest.plan
    writer = Writer(folder)
    try:
        if not writer.is_locked:
            warn(f"locks do not work in '{folder}': make sure that no other gcprof writes there")
        if writer.num_bytes != run.num_bytes:
            raise UserError(f"another gcprof has written to '{folder}' meanwhile", hint="give the command again")
        done = progress.settled(run.records)
        left = len(progress.owed(plan, done))
        engine.logs = folder / "logs"
        placed = (msgspec.structs.replace(trial, data_directory=data_directory) for trial in plan)
        for record in chain(ready, engine.run(placed, [*done, *ready])):
            writer.append(record)
            done.append(record)
            is_usual = record.outcome == "ok" and not progress.finds_own(record)
            left = left - 1 if is_usual else len(progress.owed(plan, done))  # else others come or go with it
            yield record, left
            if exclusive:
                _refuse_shared(record)
    finally:
        writer.close()


def _refuse_shared(record: Record) -> None:
    conditions = record.readings.conditions
    sharing, _ = other_processes([conditions] if conditions else [])
    unknown = next((note.text for note in record.notes if note.code == UNTOLD), None)
    if sharing or unknown:
        hint = "go on with --resume, once the device is free" if sharing else "go on with --resume, without --exclusive"
        raise UserError(f"--exclusive error: {sharing or unknown}", hint=hint, exit_code=3)


def opening(trials: Sequence[Trial], devices: Mapping[str, Environment], remarks: Iterable[str]) -> Iterator[str]:
    """Yield the first lines of a run: what is measured, rehearsed or predicted, and what the user should know of it."""
    names = dict.fromkeys(trial.case.device for trial in trials)
    name = next(iter(names))
    predicted = [name for name in names if parse(name).is_predicted]
    rehearsed = [device_word(name) for name in names if parse(name).is_rehearsed]
    device = device_choice.environment(name, devices)
    where = f"torch {device.torch}"
    if len(predicted) < 2 and len(rehearsed) < 2 and device.device_name is not None and device.device_bytes is not None:
        where = f"{card(device.device_name)}, {bytes_text(device.device_bytes)}; {where}"
    why = "" if name != "cpu" or len(devices) > 1 else "no CUDA device here: "
    kind = "the CPU" if name == "cpu" else "the GPU"
    verb = "rehearsing on" if gpu_specs.is_hollow(device.device_name) else "measuring"
    doing = f"rehearsing on {' and '.join(rehearsed)}" if rehearsed else f"{why}{verb} {kind}"
    if predicted and (rehearsed or trials[0].case.is_predicted):
        foreseeing = f"predicting for {', '.join(map(device_word, predicted))}"
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
        for path in export.write_derived(run):
            lines.append(f"wrote {path}")
    except UserError as error:
        if error.exit_code != 1:
            lines += [f"gcprof: {error.message}", f"hint: {error.hint}"]
            return error.exit_code, lines
        lines.append(f"note: no picture was drawn: {error.message}; {error.hint}")
    return 0, lines


PATIENCE_SECONDS = 15.0  # for all predictions: those that are not done by then are reported as unknown
NO_MATCH, WITHIN = "no blocks match", "block '"  # beginnings of what is wrong with --blocks
START_SECONDS = 3.0  # assumed for a trial on a GPU that is not here: its process, CUDA's context, the model


def dry_run(request: RunRequest, screen: Screen = SILENT, *, show: Callable[[CheckedRequest], None]) -> list[str]:
    """Return what a run costs, in lines; `show` gets its trials first. Nothing if its shard is empty.

    Raises UserError, with exit code 1, as the run does, if --blocks matches nothing in any model.
    """
    with started(request, request.checked(), screen) as begun:
        if begun is None:
            return []
        engine, devices, checked = begun
        for line in opening(checked.trials, devices, checked.remarks):
            screen.say(line)
        # models in which --blocks matches nothing are named; they are built without memory
        named = [trial.case.baseline for trial in checked.trials if trial.case.blocks]
        cases = list({str(case.model): case for case in named}.values())
        refused = 0
        records = _predicted([case.foreseen for case in cases], checked.data_directory)
        for case, record in zip(cases, records, strict=True):
            detail = (record.detail or "") if record else ""
            if record is None or record.outcome not in ("ok", "skipped"):
                screen.say(
                    f"{case.model}: its blocks are not looked at: no step was traced within {PATIENCE_SECONDS:g} s"
                )
            elif detail.startswith((NO_MATCH, WITHIN)):
                refused += 1
                screen.say(f"{case.model}: skipped, {detail}")
        if cases and refused == len(cases):
            hint = f"`gcprof blocks {cases[0].model}` shows the blocks that are found"
            raise UserError("no model has such blocks, so there is nothing to run", hint=hint, exit_code=1)
        show(checked)
        return estimate(checked, devices, engine, request.engine)


def estimate(checked: CheckedRequest, devices: Mapping[str, Environment], engine: Engine, where: str) -> list[str]:
    """Estimate in lines trials, steps, and seconds if trials are measured on a GPU; `where` is the engine's text."""
    trials = [trial for trial in checked.trials if not trial.if_own]  # those with `if_own` may never run
    measured = [trial for trial in trials if not trial.case.is_predicted and not trial.case.is_rehearsed]
    on_gpu = [trial for trial in measured if trial.case.twin.device != "cpu"]
    if not on_gpu:
        return cost_lines(cost(trials, {}, start_seconds=0.0))
    device, engine_choice = on_gpu[0].case.device, EngineChoice(where)
    name = devices[device].device_name if device in devices else None
    named = [word for word in (device, *engine_choice.options.values()) if gpu_specs.is_known(word)]
    kind = gpu_specs.word_of(name) if name is not None else gpu_specs.canonical(named[0]) if named else None
    basis, speeds = None, dict[Case, Bounds]()  # of the baselines' steps, as far as they can be predicted in time
    cases = list(dict.fromkeys(trial.case.baseline for trial in on_gpu)) if kind else []
    on_kind = [msgspec.structs.replace(case, device=to_predict(kind or "")) for case in cases]
    for case, record in zip(cases, _predicted(on_kind, checked.data_directory), strict=True):
        if record is None:
            break
        step, forward = record.readings.step_seconds, record.readings.forward_seconds
        if step and forward:
            speeds[case.twin] = Bounds(step[0], step[0] + forward[0])
            basis = basis or next((note.text for note in record.notes if note.code == "GCP016"), None)
    is_here = engine_choice.name in engines.HERE
    seconds = START_SECONDS
    if is_here:  # a new process that opens the device, measured once
        began = time.monotonic()
        engine.ask(f"{WORKER}:free_bytes", device, failing=f"{device} does not answer")
        seconds = time.monotonic() - began
    total = cost(trials, speeds, start_seconds=seconds)
    why = f"not predicted within {PATIENCE_SECONDS:g} s" if kind else "no GPU is named whose rates are known"
    start = f"{seconds:.2g} s {'as measured now' if is_here else 'assumed'} for the start of"
    return cost_lines(total, basis=basis, start=start, unknown=why)


def _predicted(cases: Sequence[Case], data: str | None) -> Iterator[Record | None]:
    """Yield the prediction of each case; None once no time is left."""
    if not cases:
        return
    with engines.connect(stage_seconds=PATIENCE_SECONDS, measures=False) as local:
        until = time.monotonic() + PATIENCE_SECONDS
        for case in cases:
            if time.monotonic() > until:
                yield None
                continue
            alone = msgspec.structs.replace(case, parallel=UNSET, ranks=UNSET, sampling=UNSET)  # one rank
            (record,) = local.run([Trial(case=alone, passes=("memory",), data_directory=data)])
            yield record
