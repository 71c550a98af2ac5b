"""Several run folders -> one, the same for any order of them: knows nothing of screens."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from profiler import store
from profiler.analysis.rows import latest
from profiler.case import Case, Trial, encode
from profiler.errors import UserError
from profiler.record import Environment, Record, moment
from profiler.store import Manifest, Run
from profiler.upkeep import migrate

SOFTWARE = ("gcprof", "python", "torch")  # the same in all
DEVICE = ("device_name", "cuda", "driver", "num_threads")  # the same wherever a device has the same name in a case
Key = tuple[Case, int]


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A trial of which two runs hold different records."""

    case: Case
    round: int
    kept: str  # the name of the run whose record was kept


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """What several runs are together, before it is written."""

    manifest: Manifest
    records: tuple[Record, ...]
    logs: tuple[Path, ...]  # of the records that were kept
    conflicts: tuple[Conflict, ...]
    num_same: int  # records that more than one run holds
    warnings: tuple[str, ...] = ()  # what could not be read


def merge(folders: Sequence[Path]) -> Merged:
    """The trials of all plans and the records of all runs, each once.

    Where two runs hold different records of a trial, the one that began later is kept; of two that began in the same
    second, the one whose text is the greater. Raises UserError (exit code 4) for runs of an old schema, or of which the
    numbers cannot stand beside each other.
    """
    _refuse_few(folders)
    found = sorted((store.load(folder) for folder in folders), key=lambda run: (run.manifest.created, _text(run)))
    _refuse_incomparable(found)
    plan = _plan(found)
    offers = _offers(found)
    kept = {key: max(of_key, key=lambda offer: _later(offer[1])) for key, of_key in offers.items()}
    order = {key: number for number, key in enumerate(plan)}
    keys = sorted(kept, key=lambda key: (order.get(key, len(order)), encode(kept[key][1])))
    return Merged(
        manifest=_manifest(found, tuple(plan.values())),
        records=tuple(kept[key][1] for key in keys),
        logs=tuple(_log(kept[key][0].folder, key) for key in keys),
        conflicts=tuple(
            Conflict(case=key[0], round=key[1], kept=kept[key][0].folder.name)
            for key in keys
            if len({encode(record) for _, record in offers[key]}) > 1
        ),
        warnings=tuple(f"{run.folder.name}: {warning}" for run in found for warning in run.warnings),
        num_same=sum(len(offers[key]) - len({encode(record) for _, record in offers[key]}) for key in keys),
    )


def write(merged: Merged, folder: Path) -> None:
    """Make the new run folder. Raises UserError where it is there already, or cannot be written."""
    trials = b"".join(encode(record) + b"\n" for record in merged.records)
    store.save(folder, manifest=encode(merged.manifest), trials=trials)
    for log in merged.logs:
        if log.is_file():
            shutil.copyfile(log, folder / "logs" / log.name)


def _refuse_few(folders: Sequence[Path]) -> None:
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise UserError("merging takes two runs or more, each named once", hint="gcprof merge RUN RUN -o FOLDER")
    old = [folder for folder in folders if migrate.num_old(folder)]
    if old:
        raise UserError(
            f"'{old[0]}' is of an older schema than is written now",
            hint=f"gcprof migrate {old[0]} --in-place",
            exit_code=4,
        )


def _refuse_incomparable(found: Sequence[Run]) -> None:
    seen: dict[tuple[str, str], tuple[object, Run]] = {}
    for run in found:
        for scope, environment in _environments(run):
            for name in SOFTWARE if scope == "all" else DEVICE:
                value = getattr(environment, name)
                other, before = seen.setdefault((scope, name), (value, run)) if value is not None else (value, run)
                if value != other:
                    where = "" if scope == "all" else f" of {scope}"
                    raise UserError(
                        f"{name}{where} is {other} in '{before.folder.name}' and {value} in '{run.folder.name}'",
                        hint="gcprof compare shows runs of different machines beside each other",
                        exit_code=4,
                    )


def _environments(run: Run) -> Iterator[tuple[str, Environment]]:
    """Each environment with what it must agree in: the software of all, the device of those that name it alike."""
    yield "all", run.manifest.environment
    for record in run.records:
        if record.environment is not None:
            yield "all", record.environment
            yield record.case.device, record.environment


def _plan(found: Sequence[Run]) -> dict[Key, Trial]:
    """Every trial once, in the order of the runs and of their plans."""
    plan: dict[Key, Trial] = {}
    for run in found:
        for trial in run.manifest.plan:
            plan.setdefault((trial.case, trial.round), trial)
    return plan


def _offers(found: Sequence[Run]) -> dict[Key, list[tuple[Run, Record]]]:
    """The last word of each run on each trial."""
    offers: dict[Key, list[tuple[Run, Record]]] = {}
    for run in found:
        for record in latest(run.records):
            offers.setdefault((record.case, record.round), []).append((run, record))
    return offers


def _later(record: Record) -> tuple[datetime, bytes]:
    began = moment(record.environment.started) if record.environment else None
    return began or datetime.min.replace(tzinfo=UTC), encode(record)


def _manifest(found: Sequence[Run], plan: tuple[Trial, ...]) -> Manifest:
    names = " ".join(sorted(run.folder.name for run in found))
    first = found[0].manifest
    return msgspec.structs.replace(first, command=f"gcprof merge {names}", plan=plan)


def _text(run: Run) -> bytes:
    return encode(run.manifest) + b"".join(encode(record) for record in run.records)


def _log(folder: Path, key: Key) -> Path:
    return folder / "logs" / f"{key[0].id}-{key[1]}.log"
