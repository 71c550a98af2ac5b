"""Merges several run folders into one, which does not depend on their order; finds what is wrong with a run folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from profiler.analysis import progress
from profiler.analysis.progress import impossible
from profiler.core import by_key, plan_file, schedule
from profiler.core.case import Key, Trial, encode
from profiler.core.errors import UserError
from profiler.core.record import HARDWARE, SOFTWARE, Environment, Evidence, Record, evidence, moment
from profiler.core.schedule import Shard
from profiler.core.units import count_text
from profiler.runs import TAGS, store
from profiler.runs.store import Manifest, Run

KNOWN = ("manifest.json", "trials.jsonl", "logs", "derived", plan_file.FOLDER, "shards", "jobs", ".writer", TAGS)


class Offer(NamedTuple):
    """A run's last record of a trial, and its line as it was stored."""

    run: Run
    record: Record
    line: bytes


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The run that several runs make together, before it is written."""

    manifest: Manifest
    records: tuple[Record, ...]
    lines: tuple[bytes, ...]  # of the records, as they were stored
    logs: tuple[Path, ...]  # of the records that were kept
    num_same: int  # records that more than one run holds
    remarks: tuple[str, ...]  # on results that differ, and on what is left out or missing
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
    lines_of: list[list[bytes]] = [[] for _ in folders]
    read = [(store.load(folder, lines=lines), lines) for folder, lines in zip(folders, lines_of, strict=True)]
    read.sort(key=lambda one: (one[0].manifest.created, encode(one[0].manifest), one[1]))
    runs = [run for run, _ in read]
    if len({run.is_script for run in runs}) > 1:
        raise UserError("runs of scripts and of models are no one run", hint="merge each kind by itself", exit_code=4)
    _refuse_incomparable(runs)
    plan, shard = _joined(runs)
    last = [
        {one.key: Offer(run, one, line) for one, line in zip(run.records, lines, strict=True)} for run, lines in read
    ]
    offers = by_key(pair for own in last for pair in own.items())
    latest = {key: max(of_key, key=_later) for key, of_key in offers.items()}
    failed = {  # not ended from outside: then the first round may be ok when it is measured again
        case for (case, number), offer in latest.items()
        if number == 1 and offer.record.outcome not in ("ok", *progress.LOST)
    }  # fmt: skip
    kept = {(case, number): offer for (case, number), offer in latest.items() if number == 1 or case not in failed}
    order = {key: number for number, key in enumerate(plan)}
    keys = sorted(kept, key=lambda key: (order.get(key, len(order)), kept[key].line))
    different = {key: len({encode(offer.record) for offer in offers[key]}) for key in keys}
    remarks = [
        f"{key[0].strategy}, round {key[1]}: the results differ; kept the later one, of '{kept[key].run.folder.name}'"
        for key in keys
        if different[key] > 1
    ]
    if needless := len(latest) - len(kept):
        what = f"{count_text(needless, 'record')} of later rounds, of cases whose first round is not ok"
        remarks.append(f"left out {what}: one run measures none")
    if shard:
        remarks.append("these are not all shards of one sweep, so the merged run is partial")
    words = runs[0].manifest.words
    return Merged(
        manifest=msgspec.structs.replace(
            runs[0].manifest,
            command=f"gcprof runs merge {' '.join(sorted(run.folder.name for run in runs))}",
            plan=tuple(plan.values()),
            sources={name: digest for run in runs for name, digest in run.manifest.sources.items()},
            words=words if all(run.manifest.words == words for run in runs) else UNSET,
            shard=shard,
        ),
        records=tuple(kept[key].record for key in keys),
        lines=tuple(kept[key].line for key in keys),
        logs=tuple(kept[key].run.folder / "logs" / f"{store.log_name(key)}.log" for key in keys),
        num_same=sum(len(offers[key]) - different[key] for key in keys),
        remarks=tuple(remarks),
        warnings=tuple(f"{run.folder.name}: {warning}" for run in runs for warning in run.warnings),
    )


def write(merged: Merged, folder: Path) -> None:
    """Create the new run folder. Raises UserError if it exists already, or cannot be written."""
    store.save(folder, manifest=encode(merged.manifest), trials=b"".join(merged.lines), logs=merged.logs)


def _refuse_incomparable(runs: Sequence[Run]) -> None:
    """Raise UserError unless all runs have the same software and files, and each device the same hardware."""
    seen: dict[str, tuple[object, Run]] = {}
    for run in runs:
        known: list[tuple[Environment, tuple[str, ...], str]] = [(run.manifest.environment, SOFTWARE, "")]
        for record in run.records:
            if record.environment is not None:
                known.append((record.environment, SOFTWARE, ""))
                known.append((record.environment, HARDWARE, f" of {record.case.device}"))
        facts = [(f"{name}{where}", getattr(one, name)) for one, names, where in known for name in names]
        for name, value in (*run.manifest.sources.items(), *facts):
            first, before = seen.setdefault(name, (value, run)) if value is not None else (value, run)
            if value != first:
                message = f"{name} is {first} in '{before.folder.name}' and {value} in '{run.folder.name}'"
                hint = "gcprof compare shows runs of different machines beside each other"
                raise UserError(message, hint=hint, exit_code=4)


def _joined(runs: Sequence[Run]) -> tuple[dict[Key, Trial], Shard | UnsetType]:
    """Return every trial once, and what shard of a sweep the runs are together; UNSET if no trial of it is elsewhere.

    The order is that of the sweep if all runs are its shards, else run by run. Shards whose trials are all planned by
    runs that are no shards miss nothing.
    """
    planned = {trial.key for run in runs if not run.manifest.shard for trial in run.manifest.plan}
    parts = [(run.manifest.shard, run.manifest.plan) for run in runs if run.manifest.shard]
    left = [shard for shard, trials in parts if not planned.issuperset(trial.key for trial in trials)]
    placed = {place: trial for shard, trials in parts for place, trial in zip(shard.places, trials, strict=False)}
    in_order = [placed[place] for place in sorted(placed)]
    is_one_sweep = len({shard.sweep for shard, _ in parts}) == 1
    by_run = [trial for run in runs for trial in run.manifest.plan]
    plan: dict[Key, Trial] = {}
    for trial in (is_one_sweep and len(parts) == len(runs) and in_order) or by_run:
        plan.setdefault(trial.key, trial)
    if not left:
        return plan, UNSET
    if is_one_sweep and left[0].sweep is UNSET:  # of before: shards had no digest of their sweep
        is_whole = {shard.index for shard, _ in parts} == set(range(1, left[0].count + 1))
    else:
        is_whole = is_one_sweep and left[0].sweep == schedule.digest(in_order)
    places = sorted(placed) if is_one_sweep and len(left) == len(runs) else ()
    return plan, UNSET if is_whole else msgspec.structs.replace(left[0], places=tuple(places))


def _later(offer: Offer) -> tuple[datetime, bytes, bytes]:
    began = moment(offer.record.environment.started) if offer.record.environment else None
    return began or datetime.min.replace(tzinfo=UTC), encode(offer.record), offer.line


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. Damage stops a reader or makes a number wrong; other findings do no harm."""

    where: str  # `FOLDER/trials.jsonl:3`
    text: str
    is_damage: bool = True


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All findings of one run folder."""

    run: str
    num_records: int
    evidence: dict[Evidence, int] = {}  # the number of records by evidence
    findings: tuple[Finding, ...]


def validate(folder: Path) -> Report:
    """Check every line of a run folder. What is wrong in it becomes findings, never an exception."""
    findings: list[Finding] = []

    def find(where: object, text: str, *, is_damage: bool = True) -> None:
        text = text.removeprefix(f"{where}: ")  # as the errors of the readers begin
        findings.append(Finding(where=str(where), text=text, is_damage=is_damage))

    plan: dict[Key, Trial] | None = None
    try:
        manifest = store.read_manifest(folder)
        plan = {trial.key: trial for trial in manifest.plan}
    except UserError as error:
        find(folder / "manifest.json", error.message)
    if not (folder / "trials.jsonl").exists():
        find(folder / "trials.jsonl", "the file is missing")
    records, seen = list[Record](), dict[Key, tuple[int, Record]]()
    for number, (where, line) in enumerate(store.numbered_lines(folder), start=1):
        if store.is_torn(line):
            find(where, "the last line is torn")
            continue
        try:
            record = store.decoded(line, Record, where)
        except UserError as error:
            find(where, error.message)
            continue
        records.append(record)
        if record.key in seen:
            before, earlier = seen[record.key]
            same = "the same record as" if encode(earlier) == encode(record) else "another result of the trial of"
            find(where, f"{same} line {before}; the later one counts", is_damage=False)
        seen[record.key] = number, record
        trial = plan.get(record.key) if plan is not None else None
        if plan is not None and trial is None:
            find(where, f"not in the plan: {record.case.label}, round {record.round}", is_damage=False)
        for text in impossible(record, trial.passes if trial else None):
            find(where, text)
    if owed := progress.owed((plan or {}).values(), records):
        planned = count_text(len(plan or ()), "planned trial")
        find(folder, f"{len(owed)} of {planned} not there: gcprof run --resume", is_damage=False)
    for path in sorted(folder.iterdir()):
        if path.name not in KNOWN:
            find(path, "not a file of a run folder", is_damage=False)
    kinds = Counter(evidence(record.case, record.environment) for record in records)
    return Report(run=str(folder), num_records=len(records), evidence=dict(kinds), findings=tuple(findings))
