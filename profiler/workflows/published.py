"""The published systems: configs/published/NAME.toml, read strictly. Knows nothing of what runs or prints them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from profiler.analysis import quantities
from profiler.analysis.reproduction import PublishedFigure, Reproduction, lines
from profiler.analysis.rows import rows
from profiler.core import catalogue, strict_files
from profiler.core.case import Case, Choice
from profiler.core.errors import UserError, nearest, nearest_or_all
from profiler.core.record import evidence
from profiler.core.user_code import shipped
from profiler.request import spec, sweep
from profiler.request.spec import Request
from profiler.runs.store import Run
from profiler.training import models, optimizers, strategies

SIZES = ("full", "cpu")
TABLES = {"model": models.TABLE, "strategy": strategies.TABLE, "optimizer": optimizers.TABLE}
SEVERAL = ("strategy", "quantity")  # of which a row may name more than one
ROW_KEYS = (*PublishedFigure.__struct_fields__, *SIZES)


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
    """Raises UserError with file and line for what cannot be read: not TOML, an unknown key, a wrong type or unit."""
    text, document = strict_files.load_toml(path, hint="examples are in configs/published/")
    _refuse_unknown(document, _File.__struct_fields__, path, text)
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        raise _refused(path, text, _key(error), str(error).partition(" - at")[0]) from None
    full = sweep.as_request(file.full, path=path, text=text)
    smaller = {key: value for key, value in file.cpu.items() if key != "reduced"}
    cpu = spec.override(full, sweep.as_request(smaller, path=path, text=text))
    figures = {
        size: tuple(figure for row in _rows(file, path, text) for figure in _wanted(row, size)) for size in SIZES
    }
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


def _rows(file: _File, path: Path, text: str) -> list[dict[str, Any]]:
    """The rows as they stand, each checked in both sizes."""
    for number, row in enumerate(file.row):
        for keys in (row, *(row.get(size, {}) for size in SIZES)):
            if isinstance(keys, dict):  # else the row itself is refused
                _refuse_unknown(keys, ROW_KEYS, path, text, number)
                _refuse_kinds(keys, path, text, number)
        try:
            for size in SIZES:
                _wanted(row, size)
        except UserError as error:
            raise _refused(path, text, "quantity", error.message, number=number, hint=error.hint) from None
    return list(file.row)


def _refuse_unknown(
    keys: Iterable[str], allowed: Sequence[str], path: Path, text: str, number: int | None = None
) -> None:
    for key in keys:
        if key not in allowed:
            hint = nearest(key, allowed) or f"the keys are {', '.join(allowed)}"
            raise _refused(path, text, key, f"no key is called '{key}'", number=number, hint=hint)


def _refuse_kinds(keys: dict[str, Any], path: Path, text: str, number: int) -> None:
    """What is looked up must be words, and a size a table, before the types of the others are checked."""
    for key, value in keys.items():
        words = _each(value) if key in SEVERAL else [value]
        kind = dict if key in SIZES else str
        if key in (*SIZES, *SEVERAL, *TABLES, "unit") and not all(isinstance(word, kind) for word in words):
            raise _refused(path, text, key, f"{key} cannot be {value!r:.40}", number=number)


def _wanted(row: dict[str, Any], size: str) -> list[PublishedFigure]:
    """A row as the figures that it stands for at one size: one for each of its quantities and strategies."""
    fields = {key: value for key, value in row.items() if key not in SIZES} | row.get(size, {})
    if isinstance(fields.get("arithmetic"), (int, float, str)) and not isinstance(fields["arithmetic"], bool):
        fields |= {"published": fields["arithmetic"], "arithmetic": True}
    chosen, measured = _each(fields.pop("strategy", None)), _each(fields.pop("quantity", ""))
    return [_one({**fields, "strategy": strategy, "quantity": name}) for strategy in chosen for name in measured]


def _each(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _one(fields: dict[str, Any]) -> PublishedFigure:
    for key, table in TABLES.items():
        if fields.get(key) is not None:
            fields[key] = str(catalogue.resolve(Choice(fields[key]), table, what=key))
    name, unit = fields["quantity"], fields.get("unit", "")
    if name not in quantities.TABLE:
        hint = nearest(str(name), quantities.TABLE) or f"the quantities are {', '.join(quantities.TABLE)}"
        raise UserError(f"no quantity is called '{name}'", hint=hint)
    units = quantities.UNITS[quantities.TABLE[name].kind]
    if unit not in units:
        raise UserError(f"{name} has no unit '{unit}'", hint=f"choose from {', '.join(units) or 'none'}")
    fields.setdefault("label", " ".join(str(fields[key]) for key in TABLES if fields.get(key) is not None))
    try:
        return msgspec.convert(fields, PublishedFigure, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        raise UserError(f"{_key(error)}: {str(error).partition(' - at')[0]}") from None


def _refused(
    path: Path, text: str, key: str, message: str, *, number: int | None = None, hint: str | None = None
) -> UserError:
    """An error that names the file and the line of a key, in the n-th row where that is known."""
    written = text.splitlines()
    heads = [index for index, line in enumerate(written) if re.match(r"\s*\[\[\s*row\s*\]\]", line)]
    first = heads[number] if number is not None and number < len(heads) else 0
    pattern = re.compile(rf"\b{re.escape(key)}\b[\"']?\s*[=.\]]")
    line = next((index for index in range(first, len(written)) if pattern.search(written[index])), first)
    return UserError(f"{path}:{line + 1}: {message}", hint=hint or "examples are in configs/published/")


def _key(error: msgspec.ValidationError) -> str:
    """The key that msgspec complains of: an unknown or missing one, or the last of the path."""
    named = re.search(r"field `(\w+)`", str(error))
    return named[1] if named else re.sub(r"\[.*?\]", "", str(error).rpartition("$.")[2].rstrip("`"))


def _compared(case: Case) -> tuple[object, ...]:
    """What a run must have measured to be one of a system: not how long or how often, and not where."""
    return case.model, case.strategy, case.optimizer, case.precision, case.batch_size, case.accumulate, case.blocks
