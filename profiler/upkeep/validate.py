"""A run folder -> what is wrong with it, and on which line: knows nothing of screens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from profiler import store
from profiler.analysis.rows import static
from profiler.case import Case, Trial, encode
from profiler.errors import UserError
from profiler.record import SCHEMA, Record
from profiler.units import bytes_text, count_text

KNOWN = ("manifest.json", "trials.jsonl", "logs", "derived", "plans")
Key = tuple[Case, int]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Damage makes a reader stop or a number wrong; the others are worth knowing and harm nothing."""

    where: str  # `FOLDER/trials.jsonl:3`
    text: str
    is_damage: bool = True


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found in one run folder."""

    run: str
    num_records: int
    findings: tuple[Finding, ...]

    @property
    def is_damaged(self) -> bool:
        return any(finding.is_damage for finding in self.findings)


def validate(folder: Path) -> Report:
    """Look at every line of a run folder. Raises nothing for what is in it."""
    findings: list[Finding] = []
    plan = _plan(folder, findings)
    records = list(_records(folder, findings))
    findings += _repeated(records)
    findings += [finding for where, record in records for finding in _looked_at(where, record, plan)]
    findings += _torn(folder)
    owed = (plan or {}).keys() - {(record.case, record.round) for _, record in records}
    if owed:
        told = f"{len(owed)} of {count_text(len(plan or ()), 'planned trial')} not there: gcprof run --resume"
        findings.append(Finding(where=str(folder), text=told, is_damage=False))
    findings += [
        Finding(where=str(path), text="no file of a run folder", is_damage=False)
        for path in sorted(folder.iterdir())
        if path.name not in KNOWN
    ]
    return Report(run=str(folder), num_records=len(records), findings=tuple(findings))


def _plan(folder: Path, findings: list[Finding]) -> dict[Key, Trial] | None:
    """The trials of the plan; None where the manifest cannot be read, which is found."""
    where = str(folder / "manifest.json")
    try:
        manifest = store.read_manifest(folder)
    except UserError as error:
        findings.append(Finding(where=where, text=error.message.removeprefix(f"{where}: ")))
        return None
    findings += _old(where, manifest.schema, (folder / "manifest.json").read_bytes())
    return {(trial.case, trial.round): trial for trial in manifest.plan}


def _records(folder: Path, findings: list[Finding]) -> Iterator[tuple[str, Record]]:
    """Every record that can be read, and where it is; a line that cannot is found."""
    path = folder / "trials.jsonl"
    if not path.exists():
        findings.append(Finding(where=str(path), text="the file is missing"))
        return
    for where, line in store.documents(folder):
        if where == str(folder / "manifest.json"):
            continue
        try:
            record = store.read_record(line, where)
        except UserError as error:
            findings.append(Finding(where=where, text=error.message.removeprefix(f"{where}: ")))
            continue
        findings += _old(where, record.schema, line)
        yield where, record


def _old(where: str, schema: int, text: bytes) -> list[Finding]:
    """Whether what was read in the present schema is in an older one on disk."""
    written = msgspec.json.decode(text)["schema"]
    told = f"schema {written}, and {SCHEMA} is the present one: gcprof migrate"
    return [Finding(where=where, text=told, is_damage=False)] if written != schema or written < SCHEMA else []


def _torn(folder: Path) -> list[Finding]:
    where = store.torn(folder)
    return [] if where is None else [Finding(where=where, text="the last line is torn")]


def _repeated(records: list[tuple[str, Record]]) -> Iterator[Finding]:
    """Records of a trial that is there already: readers take the last one."""
    seen: dict[Key, tuple[str, Record]] = {}
    for where, record in records:
        key = (record.case, record.round)
        if key in seen:
            before, other = seen[key]
            same = "the same record as" if encode(other) == encode(record) else "another result of the trial of"
            text = f"{same} line {before.rpartition(':')[2]}; the later one counts"
            yield Finding(where=where, text=text, is_damage=False)
        seen[key] = (where, record)


def _looked_at(where: str, record: Record, plan: dict[Key, Trial] | None) -> Iterator[Finding]:
    """What is wrong with one record."""
    trial = plan.get((record.case, record.round)) if plan is not None else None
    if plan is not None and trial is None:
        text = f"not in the plan: {record.case.strategy}, round {record.round}"
        yield Finding(where=where, text=text, is_damage=False)
    readings = record.readings
    for name, value in _negative(msgspec.to_builtins(readings)):
        yield Finding(where=where, text=f"{name} is {value}")
    floor, peak = static(readings), readings.peak_bytes
    if floor is not None and peak is not None and peak < floor:
        told = f"the peak of {bytes_text(peak)} is below the static {bytes_text(floor)}"
        yield Finding(where=where, text=told)
    if readings.saved_bytes is not None and peak is not None and peak < readings.saved_bytes:
        told = f"the peak of {bytes_text(peak)} is below the saved {bytes_text(readings.saved_bytes)}"
        yield Finding(where=where, text=told)
    is_timed = trial is not None and "time" in trial.passes and not record.case.is_predicted
    if is_timed and record.outcome == "ok" and not readings.step_seconds:
        yield Finding(where=where, text="ok, and its step has no time samples")


def _negative(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number below zero in nested data, with the name it is under."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _negative(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _negative(inner, name)
    elif isinstance(value, int | float) and value < 0:
        yield name, value
