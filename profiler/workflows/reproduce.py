"""Runs the published systems, `configs/published/NAME.toml`, or reads them from a run: what `gcprof reproduce` does."""

from __future__ import annotations

from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from profiler import engines
from profiler.analysis import progress
from profiler.analysis.reproduction import PublishedFigure, Reproduction, lines
from profiler.analysis.rows import rows
from profiler.core import catalogue, device_choice, safe_files
from profiler.core.case import Case, Choice
from profiler.core.errors import UserError, nearest_or_all, shipped
from profiler.core.gpu_specs import parse
from profiler.core.record import evidence
from profiler.runs import RESULTS, run_folder, store
from profiler.runs.store import Run
from profiler.workflows import SILENT, Screen, spec
from profiler.workflows.run import RunRequest, Started, in_folder
from profiler.workflows.spec import TABLES, Request

SYSTEMS = shipped("configs", "published")
SIZES = ("full", "cpu")
TRAINED = "GCP020"  # the note that only records of a Trainer's real run have


# what makes a case one of a system: not how long or how often it ran, and not where
_compared = attrgetter("model", "label", "optimizer", "precision", "batch_size", "accumulate", "blocks")


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What to run at one size, and the published figures to compare it with."""

    request: Request
    wanted: tuple[PublishedFigure, ...]
    reduced: str | None = None  # how, in a sentence; None: this is the published size


class System(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published system."""

    name: str
    title: str
    source: str
    unsaid: tuple[str, ...] = ()  # what the source leaves open
    engine: str = "local"  # a key of engines.TABLE: what runs it
    full: Size
    cpu: Size

    def size_on(self, device: str, *, full: bool) -> Size:
        """Return the size to run: the smaller one on a CPU unless `full`, else the published one.

        If both sizes are the same run, the device decides, since computed figures depend on it.
        """
        is_one_run = self.full.request == self.cpu.request
        return self.cpu if device == "cpu" and (is_one_run or not full) else self.full

    def size_of(self, cases: set[Case]) -> Size | None:
        """Return the size whose cases are all among these, on whatever device; None if neither is."""
        for size in (self.full, self.cpu):
            for device in {case.device for case in cases}:
                checked = spec.check(msgspec.structs.replace(size.request, device=device), lambda word: word)
                if {_compared(trial.case) for trial in checked.trials} <= {_compared(case) for case in cases}:
                    return self.size_on(device, full=True) if size is self.full else size
        return None


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in SYSTEMS.glob("*.toml")))


def find(name: str) -> System:
    """Return the system of that name. Raises UserError that names the nearest if there is none."""
    if name not in names():
        raise UserError(f"no published system is called '{name}'", hint=nearest_or_all(name, names()))
    return load(SYSTEMS / f"{name}.toml")


def load(path: Path) -> System:
    """Read a system's file. Those that come with gcprof are sound: a test reads them all."""
    text, document = safe_files.load_toml(path, hint="examples are in configs/published/")
    rows, reduced = document.pop("row"), document.setdefault("cpu", {}).pop("reduced", None)
    full, smaller = (spec.as_request(document[size], path=path, text=text) for size in SIZES)
    figures: dict[str, list[PublishedFigure]] = {size: [] for size in SIZES}
    for size, row in product(SIZES, rows):  # a figure for each of its strategies and quantities
        fields = {key: value for key, value in row.items() if key not in SIZES} | row.get(size, {})
        if "arithmetic" in fields:
            fields |= {"published": fields["arithmetic"], "arithmetic": True}
        lists = [value if isinstance(value, list) else [value] for value in map(fields.get, ("strategy", "quantity"))]
        for strategy, quantity in product(*lists):
            given = {**fields, "strategy": strategy, "quantity": quantity}
            words = {key: given[key] for key in TABLES if given.get(key) is not None}
            choices = {key: catalogue.resolve(Choice(word), TABLES[key], what=key) for key, word in words.items()}
            labelled = {"label": " ".join(choices.values()), **given, **choices}
            figures[size].append(msgspec.convert(labelled, PublishedFigure))
    sizes = {
        "full": Size(request=full, wanted=tuple(figures["full"])),
        "cpu": Size(request=spec.override(full, smaller), wanted=tuple(figures["cpu"]), reduced=reduced),
    }
    return msgspec.convert({"name": path.stem, **document, **sizes}, System)


class Reproduced(NamedTuple):
    """A run of a published system, with its figures compared with the published ones."""

    run: Run
    reproduction: Reproduction
    exit_code: int


def reproduce(
    system: System,
    screen: Screen = SILENT,
    *,
    full: bool = False,
    device: str | None = None,
    output: Path | None = None,
) -> Reproduced:
    """Run the system in a folder of its own, at the published size also on a CPU if `full`. Raises UserError."""
    store.refuse_existing(output or RESULTS / "new")
    with engines.connect(system.engine) as engine:
        devices = engine.survey()
        chosen = device_choice.choose_device(device or "auto", list(devices))
        size = system.size_on(chosen, full=full)
        rounds = None if parse(chosen).is_predicted else size.request.rounds
        rounds = 1 if device_choice.is_hollow(chosen, devices) else rounds
        checked = spec.check(msgspec.structs.replace(size.request, device=chosen, rounds=rounds), lambda word: word)
        remarks = (f"reduced: {size.reduced}",) if size.reduced else ()
        begun = Started(engine, devices, msgspec.structs.replace(checked, remarks=remarks))
        request = RunRequest(words=size.request, output=output or store.new_folder(RESULTS, [system.name]))
        ran = in_folder(begun, request, screen)
    assert ran.run
    return Reproduced(ran.run, _reproduction(system, size, ran.run), ran.exit_code)


def read(system: System, word: str, screen: Screen = SILENT) -> Reproduced:
    """Read the figures of an existing run. Raises UserError (exit code 4) if it is none of the system."""
    run = store.load(run_folder(word))
    for warning in run.warnings:
        screen.say(f"warning: {warning}")
    size = None if run.is_script else system.size_of({trial.case for trial in run.manifest.plan})
    notes = [{note.code for note in record.notes} for record in run.records if record.outcome == "ok"]
    is_of_engine = all((TRAINED in codes) == (system.engine == "trainer") for codes in notes)
    if size is None or not is_of_engine:
        hint = f"gcprof reproduce {system.name} makes one"
        raise UserError(f"'{word}' is not a run of {system.name}", hint=hint, exit_code=4)
    return Reproduced(run, _reproduction(system, size, run), progress.exit_code(run.records))


def _reproduction(system: System, size: Size, run: Run) -> Reproduction:
    """Return every published figure with what the run found."""
    case = run.manifest.plan[0].case
    return Reproduction(
        name=system.name,
        title=system.title,
        source=system.source,
        unsaid=system.unsaid,
        reduced=size.reduced,
        environment=run.manifest.environment,
        device=case.device,
        evidence=evidence(case, run.manifest.environment),
        lines=lines(size.wanted, rows(run.records), reduced=size.reduced is not None),
    )
