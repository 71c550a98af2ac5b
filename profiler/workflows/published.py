"""The published systems: configs/published/NAME.toml. Knows nothing of what runs or prints them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from profiler.analysis.reproduction import PublishedFigure, Reproduction, lines
from profiler.analysis.rows import rows
from profiler.core import catalogue, strict_files
from profiler.core.case import Case, Choice
from profiler.core.errors import UserError, nearest_or_all
from profiler.core.record import evidence
from profiler.core.user_code import shipped
from profiler.request import spec, sweep
from profiler.request.spec import Request
from profiler.runs.store import Run
from profiler.training import models, optimizers, strategies

SIZES = ("full", "cpu")
TABLES = {"model": models.TABLE, "strategy": strategies.TABLE, "optimizer": optimizers.TABLE}


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What to run at one size, and the figures to stand beside it."""

    request: Request
    wanted: tuple[PublishedFigure, ...]
    reduced: str | None = None  # in a sentence; None: this is the published size


class System(msgspec.Struct, frozen=True, kw_only=True):
    """One published system."""

    name: str
    title: str
    source: str
    unsaid: tuple[str, ...]  # what the source leaves open
    engine: str  # a key of engines.TABLE: what runs it
    full: Size
    cpu: Size

    def size_on(self, device: str, *, full: bool) -> Size:
        """The size to run: the published one where asked for and wherever the device is no CPU.

        Where both are the same run, that of the device: its arithmetic counts.
        """
        is_one_run = self.full.request == self.cpu.request
        return self.cpu if device == "cpu" and (is_one_run or not full) else self.full

    def size_of(self, cases: set[Case]) -> Size | None:
        """The size whose every case is among these, whatever the device; None where neither is."""
        for size in (self.full, self.cpu):
            for device in {case.device for case in cases}:
                checked = spec.check(msgspec.structs.replace(size.request, device=device), lambda word: word)
                if {_compared(trial.case) for trial in checked.trials} <= {_compared(case) for case in cases}:
                    return self.size_on(device, full=True) if size is self.full else size
        return None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    source: str
    unsaid: tuple[str, ...] = ()
    engine: str = "local"
    full: dict[str, Any]
    cpu: dict[str, Any] = {}
    row: tuple[dict[str, Any], ...]


def folder() -> Path:
    """The folder of the files that come with gcprof."""
    return shipped("configs", "published")


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder().glob("*.toml")))


def find(name: str) -> System:
    """The system of that name. Raises UserError, naming the nearest, where there is none."""
    if name not in names():
        raise UserError(f"no published system is called '{name}'", hint=nearest_or_all(name, names()))
    return read(folder() / f"{name}.toml")


def read(path: Path) -> System:
    """A system's file. Those that come with gcprof are sound: a test reads them all."""
    text, document = strict_files.load_toml(path, hint="examples are in configs/published/")
    file = msgspec.convert(document, _File)
    full = sweep.as_request(file.full, path=path, text=text)
    smaller = {key: value for key, value in file.cpu.items() if key != "reduced"}
    cpu = spec.override(full, sweep.as_request(smaller, path=path, text=text))
    figures = {size: tuple(figure for row in file.row for figure in _figures(row, size)) for size in SIZES}
    return System(
        name=path.stem,
        title=file.title,
        source=file.source,
        unsaid=file.unsaid,
        engine=file.engine,
        full=Size(request=full, wanted=figures["full"]),
        cpu=Size(request=cpu, wanted=figures["cpu"], reduced=file.cpu.get("reduced")),
    )


def ran_by(engine: str, run: Run) -> bool:
    """Whether the steps of a run were taken by this engine: a Trainer's records say that they are of a real run."""
    trained = {any(note.code == "GCP020" for note in record.notes) for record in run.records if record.outcome == "ok"}
    return trained <= {engine == "trainer"}


def reproduction(system: System, size: Size, run: Run) -> Reproduction:
    """Every published figure beside what a run found."""
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


def _figures(row: dict[str, Any], size: str) -> Iterator[PublishedFigure]:
    """What a row stands for at one size: a figure for each of its quantities and strategies."""
    fields = {key: value for key, value in row.items() if key not in SIZES} | row.get(size, {})
    if "arithmetic" in fields:
        fields |= {"published": fields["arithmetic"], "arithmetic": True}
    for strategy in _each(fields.get("strategy")):
        for quantity in _each(fields["quantity"]):
            yield _figure({**fields, "strategy": strategy, "quantity": quantity})


def _each(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _figure(fields: dict[str, Any]) -> PublishedFigure:
    words = {key: fields[key] for key in TABLES if fields.get(key) is not None}
    choices = {key: catalogue.resolve(Choice(word), TABLES[key], what=key) for key, word in words.items()}
    return msgspec.convert({"label": " ".join(choices.values()), **fields, **choices}, PublishedFigure)


def _compared(case: Case) -> tuple[object, ...]:
    """What a run must have measured to be one of a system: not how long or how often, and not where."""
    return case.model, case.strategy, case.optimizer, case.precision, case.batch_size, case.accumulate, case.blocks
