"""Merges several run folders into one, which does not depend on their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import UnsetType

from profiler.analysis import progress
from profiler.analysis.rows import latest
from profiler.core import schedule
from profiler.core.case import Case, Trial, encode
from profiler.core.errors import UserError
from profiler.core.record import HARDWARE, SOFTWARE, Environment, Record, moment
from profiler.core.schedule import Shard
from profiler.runs import store
from profiler.runs.store import Manifest, Run

Key = tuple[Case, int]


class Offer(NamedTuple):
    """A run's last record of a trial; the text is its line."""

    run: Run
    record: Record
    text: bytes


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A trial for which two runs hold different records."""

    case: Case
    round: int
    kept: str  # the name of the run whose record was kept


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The run that several runs make together, before it is written."""

    manifest: Manifest
    records: tuple[Record, ...]
    lines: tuple[bytes, ...]  # of the records, as they were stored
    logs: tuple[Path, ...]  # of the records that were kept
    conflicts: tuple[Conflict, ...]
    num_same: int  # records that more than one run holds
    num_needless: int = 0  # of later rounds, which a single run would not have measured
    warnings: tuple[str, ...] = ()  # what could not be read


def merge(folders: Sequence[Path]) -> Merged:
    """Merge the trials of all plans and the records of all runs, each once.

    If the runs are shards of one sweep, the order is that of the sweep. A later round of a case is left out if its
    first round is not ok, since a single run would not have measured it. If two runs hold different records of a trial,
    the one that began later is kept; of two that began in the same second, the one whose text sorts last. Raises
    UserError (exit code 4) for runs whose numbers cannot be compared.
    """
    if len({folder.resolve() for folder in folders}) < max(2, len(folders)):
        raise UserError("merging takes two runs or more, each named once", hint="gcprof runs merge RUN RUN -o FOLDER")
    read = sorted(map(_read, folders), key=lambda read: (read[0].manifest.created, encode(read[0].manifest), read[1]))
    runs = [run for run, _ in read]
    if len({run.is_script for run in runs}) > 1:
        raise UserError("runs of scripts and of models are no one run", hint="merge each kind by itself", exit_code=4)
    _refuse_incomparable(runs)
    plan = _plan(runs)
    offers = _offers(read)
    latest_of = {key: max(of_key, key=_later) for key, of_key in offers.items()}
    kept = {key: offer for key, offer in latest_of.items() if not _is_needless(key, latest_of)}
    order = {key: number for number, key in enumerate(plan)}
    keys = sorted(kept, key=lambda key: (order.get(key, len(order)), kept[key].text))
    return Merged(
        manifest=_manifest(runs, tuple(plan.values())),
        records=tuple(kept[key].record for key in keys),
        lines=tuple(kept[key].text for key in keys),
        logs=tuple(_log(kept[key].run.folder, key) for key in keys),
        conflicts=tuple(
            Conflict(case=key[0], round=key[1], kept=kept[key].run.folder.name)
            for key in keys
            if _num_different(offers[key]) > 1
        ),
        warnings=tuple(f"{run.folder.name}: {warning}" for run in runs for warning in run.warnings),
        num_same=sum(len(offers[key]) - _num_different(offers[key]) for key in keys),
        num_needless=len(latest_of) - len(kept),
    )


def write(merged: Merged, folder: Path) -> None:
    """Create the new run folder. Raises UserError if it exists already, or cannot be written."""
    store.save(folder, manifest=encode(merged.manifest), trials=b"".join(merged.lines), logs=merged.logs)


def _refuse_incomparable(runs: Sequence[Run]) -> None:
    seen: dict[str, tuple[object, Run]] = {}
    for run in runs:
        for name, value in _circumstances(run):
            first, before = seen.setdefault(name, (value, run)) if value is not None else (value, run)
            if value != first:
                message = f"{name} is {first} in '{before.folder.name}' and {value} in '{run.folder.name}'"
                hint = "gcprof compare shows runs of different machines beside each other"
                raise UserError(message, hint=hint, exit_code=4)


def _circumstances(run: Run) -> Iterator[tuple[str, object]]:
    """Yield what all runs must agree on: software and files; and the hardware of each device by its name."""
    yield from run.manifest.sources.items()
    yield from _named(run.manifest.environment, SOFTWARE)
    for record in run.records:
        if record.environment is not None:
            yield from _named(record.environment, SOFTWARE)
            yield from _named(record.environment, HARDWARE, where=f" of {record.case.device}")


def _named(environment: Environment, names: Sequence[str], *, where: str = "") -> Iterator[tuple[str, object]]:
    return ((f"{name}{where}", getattr(environment, name)) for name in names)


def _plan(runs: Sequence[Run]) -> dict[Key, Trial]:
    """Return every trial once, in the order of the sweep if all runs are its shards, else run by run."""
    parts = [(run.manifest.shard, run.manifest.plan) for run in runs if run.manifest.shard]
    joined = schedule.joined_shards(parts) if len(parts) == len(runs) else None
    plan: dict[Key, Trial] = {}
    for trial in joined or (trial for run in runs for trial in run.manifest.plan):
        plan.setdefault((trial.case, trial.round), trial)
    return plan


def _left_of_sweep(runs: Sequence[Run]) -> Shard | UnsetType:
    """Return what shard of a sweep the runs are together; UNSET if no trial of it is elsewhere.

    Shards whose trials are all planned by runs that are no shards miss nothing.
    """
    planned = {(trial.case, trial.round) for run in runs if not run.manifest.shard for trial in run.manifest.plan}
    parts = [
        (run.manifest.shard, run.manifest.plan)
        for run in runs
        if run.manifest.shard and not planned.issuperset((trial.case, trial.round) for trial in run.manifest.plan)
    ]
    left = schedule.left_of(parts)
    return msgspec.structs.replace(left, places=()) if left and len(parts) < len(runs) else left


def _is_needless(key: Key, latest_of: Mapping[Key, Offer]) -> bool:
    """Whether a single run would not have measured this trial: a later round, and the first one failed.

    A first round that was ended from outside does not count, since it may be ok when it is measured again.
    """
    first = latest_of.get((key[0], 1))
    return key[1] > 1 and first is not None and first.record.outcome not in ("ok", *progress.LOST)


def _read(folder: Path) -> tuple[Run, list[bytes]]:
    """Return a run, and the line of each of its records, as it was stored."""
    return store.load(folder), [line for _, line in store.numbered_lines(folder) if not store.is_torn(line)]


def _offers(read: Iterable[tuple[Run, list[bytes]]]) -> dict[Key, list[Offer]]:
    """Return each run's last record of each trial."""
    offers: dict[Key, list[Offer]] = {}
    for run, lines in read:
        texts = {(record.case, record.round): line for record, line in zip(run.records, lines, strict=True)}
        for record in latest(run.records):
            key = record.case, record.round
            offers.setdefault(key, []).append(Offer(run, record, texts[key]))
    return offers


def _num_different(offers: Sequence[Offer]) -> int:
    return len({encode(offer.record) for offer in offers})


def _later(offer: Offer) -> tuple[datetime, bytes, bytes]:
    began = moment(offer.record.environment.started) if offer.record.environment else None
    return began or datetime.min.replace(tzinfo=UTC), encode(offer.record), offer.text


def _manifest(runs: Sequence[Run], plan: tuple[Trial, ...]) -> Manifest:
    names = " ".join(sorted(run.folder.name for run in runs))
    first = runs[0].manifest
    sources = {name: digest for run in runs for name, digest in run.manifest.sources.items()}
    command, shard = f"gcprof runs merge {names}", _left_of_sweep(runs)
    return msgspec.structs.replace(first, command=command, plan=plan, sources=sources, shard=shard)


def _log(folder: Path, key: Key) -> Path:
    return folder / "logs" / f"{store.log_name(*key)}.log"
