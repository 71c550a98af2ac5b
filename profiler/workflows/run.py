"""Runs a request through an engine into a run folder: what `gcprof run` and `gcprof predict` do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec import UNSET

from profiler import engines
from profiler.analysis import progress
from profiler.core import catalogue, function_source, gpu_kinds, schedule
from profiler.core.case import FAKE, Trial
from profiler.core.errors import UserError
from profiler.core.gpu_kinds import REHEARSE
from profiler.core.record import Environment
from profiler.core.schedule import Shard
from profiler.core.units import bytes_text
from profiler.engines import Engine
from profiler.request import consent, device_choice, spec, sweep
from profiler.request.spec import CheckedRequest, Request
from profiler.runs import RESULTS, run_diff, store
from profiler.runs.store import Run
from profiler.training import models
from profiler.views.export import files
from profiler.views.tables.evidence import device_word
from profiler.workflows import SILENT, STARTING, Screen, owed_trials
from profiler.workflows.command_text import command_line


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where trials run: the engine, which of its devices, and which shard of the sweep."""

    engine: str = "local"
    devices: str | None = None
    allow_parallel: bool = False
    shard: str | None = None

    def check(self, *, device: str | None) -> None:
        """Raise UserError for words that cannot go together."""
        if self.devices is not None and device is not None:
            raise UserError("--devices has no effect with --device", hint="leave one of them out")
        if self.devices is not None and engines.EngineChoice(self.engine).name not in engines.HERE:
            hint = "it has devices of its own; leave one of them out"
            raise UserError(f"--devices has no effect with --engine {self.engine}", hint=hint)
        if self.allow_parallel and self.devices is None:
            raise UserError("--allow-parallel has no effect without --devices", hint="--devices 0,0 names one twice")

    def parsed_shard(self) -> Shard | None:
        """Return the shard, if there is one. Raises UserError if it cannot be read."""
        return schedule.parse_shard(self.shard) if self.shard else None

    def survey(self, engine: Engine, trials: Iterable[Trial] = ()) -> dict[str, Environment]:
        """Return the engine's devices by the names in cases, and set which of them the engine uses at once.

        `trials` that were made for several devices go on with the first one if none are named. Raises UserError.
        """
        devices = engine.survey()
        word = self.devices
        if word is None and any(trial.case.device == device_choice.SEVERAL for trial in trials):
            word = "0"
        if word is None:
            return devices
        engine.devices, chosen = device_choice.several(word, devices, twice=self.allow_parallel)
        return chosen


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and where."""

    words: Request
    config: Path | None = None  # a sweep file, which the words override
    output: Path | None = None
    resume: str | None = None  # the run to resume
    anew: bool = False  # measure that run's plan in a folder of its own
    exclusive: bool = False  # stop if others use the device
    placement: Placement = Placement()
    typed: tuple[str, ...] = ()  # the words of the command line

    def checked(self) -> Request:
        """Return the sweep file with the words over it. Raises UserError for what the file may not say by itself."""
        if self.config is None:
            return self.words
        asked = spec.override(sweep.read(self.config), self.words)
        consent.refuse_file(asked, self.words, path=self.config)
        return asked


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as far as it got."""

    run: Run | None  # None where the shard is empty, and no folder was made
    exit_code: int
    data_directory: str | None = None


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of writing the files that are derived from a run."""

    exit_code: int
    lines: tuple[str, ...]


def run(request: RunRequest, screen: Screen = SILENT) -> Ran:
    """Run a request in a new run folder. Raises UserError."""
    words = request.checked()
    asked = spec.check(words, device_choice.any_device)
    with ExitStack() as stack:
        with screen.doing(STARTING):
            engine = stack.enter_context(connect(request, asked.trials))
            if not all(trial.case.is_predicted for trial in asked.trials):
                files.prepare_pictures()  # while the engine imports torch
            devices = request.placement.survey(engine)
        checked = checked_on(devices, words, request.placement.parsed_shard())
        if not checked.trials:
            screen.say(empty_text(checked))
            return Ran(run=None, exit_code=0)
        return begin(engine, checked, devices, request, screen, command=command_line(request.typed))


def empty_text(checked: CheckedRequest) -> str:
    """Return the message for a shard without trials, which is no error."""
    return f"shard {checked.shard} is empty: the sweep has fewer pairings of a baseline and a round than shards"


def connect(request: RunRequest, trials: Sequence[Trial]) -> Engine:
    """Return the engine for these trials; a wrong request is refused first, before torch is imported."""
    refuse_idle(trials, exclusive=request.exclusive)
    store.refuse_existing(request.output or RESULTS / "new")
    request.placement.parsed_shard()
    return engines.connect(request.placement.engine, plan=trials)


def checked_on(devices: Mapping[str, Environment], words: Request, shard: Shard | None = None) -> CheckedRequest:
    """Return the trials of a request, or of a shard, on the devices here. Raises UserError if one is not here."""
    checked = spec.check(words, lambda word: device_choice.choose_device(word, list(devices)))
    planned = schedule.with_own_rows(checked.trials, lambda model: catalogue.is_code(model, models.TABLE))
    once = schedule.in_one_round(planned, device_choice.hollow(devices))
    checked = msgspec.structs.replace(checked, trials=once)
    device_choice.refuse_absent([trial.case.device for trial in checked.trials], devices)
    device_choice.refuse_crowded([trial.case for trial in checked.trials], devices)
    return spec.part_of(checked, shard) if shard else checked


def refuse_idle(trials: Iterable[Trial], *, exclusive: bool) -> None:
    """Raise UserError if the device must be exclusive, but nothing is measured on it."""
    if exclusive and all(trial.case.is_predicted for trial in trials):
        raise UserError("--exclusive has no effect on a prediction", hint="nothing is measured; leave it out")


def begin(
    engine: Engine,
    checked: CheckedRequest,
    devices: Mapping[str, Environment],
    request: RunRequest,
    screen: Screen,
    *,
    command: str,
) -> Ran:
    """Make a run folder of these trials, and run them."""
    folder = request.output or store.new_folder(RESULTS, [str(trial.case.model) for trial in checked.trials])
    run = store.create(
        folder,
        plan=checked.trials,
        command=command,
        environment=device_choice.environment(checked.trials[0].case.device, devices),
        sources=run_diff.code_digests(trial.case for trial in checked.trials),
        shard=checked.shard or UNSET,
    )
    return go_on(engine, run, checked, devices, request, screen)


def go_on(
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
    return ran(run, code=code, data_directory=checked.data_directory)


def ran(run: Run, *, code: int = 0, data_directory: str | None = None) -> Ran:
    """Return a run with its exit code: the given one, or what its records come to."""
    return Ran(run=run, exit_code=code or progress.exit_code(run.records), data_directory=data_directory)


def opening(trials: Sequence[Trial], devices: Mapping[str, Environment], remarks: Iterable[str]) -> Iterator[str]:
    """Yield the first lines of a run: what is measured, rehearsed or predicted, and what the user should know of it."""
    names = dict.fromkeys(trial.case.device for trial in trials)
    name = next(iter(names))
    predicted = [name for name in names if name.startswith(FAKE)]
    rehearsed = [device_word(name) for name in names if name.startswith(REHEARSE)]
    device = device_choice.environment(name, devices)
    where = f"torch {device.torch}"
    if len(predicted) < 2 and len(rehearsed) < 2 and device.device_name is not None and device.device_bytes is not None:
        where = f"{device.device_name}, {bytes_text(device.device_bytes)}; {where}"
    why = "" if name != "cpu" or len(devices) > 1 else "no CUDA device here: "
    kind = "the CPU" if name == "cpu" else "the GPU"
    verb = "rehearsing on" if gpu_kinds.is_hollow(device.device_name) else "measuring"
    doing = f"rehearsing on {' and '.join(rehearsed)}" if rehearsed else f"{why}{verb} {kind}"
    if predicted and (rehearsed or trials[0].case.is_predicted):
        foreseeing = f"predicting for {', '.join(predicted)}"
        doing = f"{doing} and {foreseeing}" if rehearsed else foreseeing
    yield f"{doing} ({where})"
    for model in dict.fromkeys(trial.case.model.name for trial in trials):
        if catalogue.is_code(model, models.TABLE):
            yield f"note: {model} is the code in {function_source.place(model).resolve()}"
    for remark in remarks:
        yield f"note: {remark}"


def derive(run: Run) -> Derived:
    """Write the tables and pictures of a run that has records. That a picture cannot be drawn is only noted."""
    lines = [f"wrote {run.folder / 'trials.jsonl'}"]
    if not run.records:
        return Derived(exit_code=0, lines=tuple(lines))
    try:
        lines += [f"wrote {path}" for path in files.write_tables(run)]
        lines += [f"wrote {path}" for path in files.write_pictures(run)]
    except UserError as error:
        if error.exit_code != 1:
            lines += [f"gcprof: {error.message}", f"hint: {error.hint}"]
            return Derived(exit_code=error.exit_code, lines=tuple(lines))
        lines.append(f"note: no picture was drawn: {error.message}; {error.hint}")
    return Derived(exit_code=0, lines=tuple(lines))
