"""A published system run anew, or read from a run: what `gcprof reproduce` does."""

from __future__ import annotations

from pathlib import Path

import msgspec

from profiler import engines
from profiler.analysis import progress
from profiler.analysis.reproduction import Reproduction
from profiler.core import catalogue
from profiler.core.case import FAKE, Choice
from profiler.core.errors import UserError
from profiler.request import device_choice, spec
from profiler.runs import RESULTS, run_diff, store
from profiler.runs.find import run_folder
from profiler.runs.store import Run
from profiler.workflows import SILENT, Screen, owed_trials, published
from profiler.workflows.published import System
from profiler.workflows.run import opening
from profiler.workflows.typed_words import command_line


class ReproduceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which published system to run, how large, and where."""

    system: System
    full: bool = False  # the published size also on a CPU
    device: str | None = None
    output: Path | None = None
    typed: tuple[str, ...] = ()  # the words of the command line


class Reproduced(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a published system, and its figures beside the published ones."""

    run: Run
    reproduction: Reproduction
    exit_code: int

    @property
    def is_partial(self) -> bool:
        return bool(progress.owed(self.run.manifest.plan, self.run.records))


def reproduce(request: ReproduceRequest, screen: Screen = SILENT) -> Reproduced:
    """Run the system in a folder of its own. Raises UserError."""
    system, output = request.system, request.output
    if output is not None and output.exists():
        raise UserError(f"'{output}' is there already", hint="name a new folder with -o")
    connect, _ = catalogue.load(Choice(system.engine), engines.TABLE)
    with connect() as engine:
        devices = engine.survey()
        device = device_choice.choose_device(request.device or "auto", list(devices))
        size = system.size_on(device, full=request.full)
        rounds = None if device.startswith(FAKE) else size.request.rounds
        rounds = 1 if device_choice.is_hollow(device, devices) else rounds
        checked = spec.check(msgspec.structs.replace(size.request, device=device, rounds=rounds), lambda word: word)
        folder = output or store.new_folder(RESULTS, [system.name])
        store.create(
            folder,
            plan=checked.trials,
            command=command_line(request.typed),
            environment=device_choice.environment(device, devices),
            sources=run_diff.code_digests(trial.case for trial in checked.trials),
        )
        for line in opening(checked.trials, devices, (f"reduced: {size.reduced}",) if size.reduced else ()):
            screen.say(line)
        code, folder = owed_trials.follow(engine, folder, screen)
    run = store.load(folder)
    return Reproduced(
        run=run,
        reproduction=published.reproduction(system, size, run),
        exit_code=code or progress.exit_code(run.records),
    )


def read(system: System, word: str, screen: Screen = SILENT) -> Reproduced:
    """The figures of a run that is there. Raises UserError (exit code 4) where it is none of the system."""
    run = store.load(run_folder(word))
    for warning in run.warnings:
        screen.say(f"warning: {warning}")
    size = system.size_of({trial.case for trial in run.manifest.plan})
    if size is None or not published.ran_by(system.engine, run):
        hint = f"gcprof reproduce {system.name} makes one"
        raise UserError(f"'{word}' is no run of {system.name}", hint=hint, exit_code=4)
    reproduction = published.reproduction(system, size, run)
    return Reproduced(run=run, reproduction=reproduction, exit_code=progress.exit_code(run.records))
