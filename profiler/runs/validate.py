"""Finds what is wrong with a run folder, and on which line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from profiler.analysis import progress
from profiler.analysis.sanity import impossible
from profiler.core import plan_file
from profiler.core.case import Case, Trial, encode
from profiler.core.errors import UserError
from profiler.core.record import SCHEMA, Evidence, Record, evidence
from profiler.core.units import count_text
from profiler.runs import store
from profiler.runs.find import TAGS

KNOWN = ("manifest.json", "trials.jsonl", "logs", "derived", plan_file.FOLDER, "shards", "jobs", ".writer", TAGS)
Key = tuple[Case, int]


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

    @property
    def is_damaged(self) -> bool:
        return any(finding.is_damage for finding in self.findings)


def validate(folder: Path) -> Report:
    """Check every line of a run folder. What is wrong in it becomes findings, never an exception."""
    findings: list[Finding] = []
    plan = _plan(folder, findings)
    records = list(_records(folder, findings))
    findings += _repeated(records)
    findings += [finding for where, record in records for finding in _looked_at(where, record, plan)]
    owed = progress.owed((plan or {}).values(), [record for _, record in records])
    if owed:
        text = f"{len(owed)} of {count_text(len(plan or ()), 'planned trial')} not there: gcprof run --resume"
        findings.append(Finding(where=str(folder), text=text, is_damage=False))
    findings += [
        Finding(where=str(path), text="not a file of a run folder", is_damage=False)
        for path in sorted(folder.iterdir())
        if path.name not in KNOWN
    ]
    kinds = Counter(evidence(record.case, record.environment) for _, record in records)
    return Report(run=str(folder), num_records=len(records), evidence=dict(kinds), findings=tuple(findings))


def _plan(folder: Path, findings: list[Finding]) -> dict[Key, Trial] | None:
    """Return the trials of the plan; None, with a finding, if the manifest cannot be read."""
    try:
        manifest = store.read_manifest(folder)
    except UserError as error:
        findings.append(_unread(str(folder / "manifest.json"), error))
        return None
    findings += _old(str(folder / "manifest.json"), manifest.schema)
    return {(trial.case, trial.round): trial for trial in manifest.plan}


def _records(folder: Path, findings: list[Finding]) -> Iterator[tuple[str, Record]]:
    """Yield every readable record and where it is; an unreadable line becomes a finding."""
    if not (folder / "trials.jsonl").exists():
        findings.append(Finding(where=str(folder / "trials.jsonl"), text="the file is missing"))
    for where, line in store.numbered_lines(folder):
        if store.is_torn(line):
            findings.append(Finding(where=where, text="the last line is torn"))
            continue
        try:
            record = store.read_record(line, where)
        except UserError as error:
            findings.append(_unread(where, error))
            continue
        findings += _old(where, record.schema)
        yield where, record


def _unread(where: str, error: UserError) -> Finding:
    return Finding(where=where, text=error.message.removeprefix(f"{where}: "))


def _old(where: str, schema: int) -> list[Finding]:
    """Return a finding if a document is in an older schema."""
    remark = f"schema {schema}, and {SCHEMA} is the present one"
    return [Finding(where=where, text=remark, is_damage=False)] if schema < SCHEMA else []


def _repeated(records: list[tuple[str, Record]]) -> Iterator[Finding]:
    """Yield a finding for every further record of a trial; readers take the last one."""
    seen: dict[Key, tuple[str, Record]] = {}
    for where, record in records:
        key = (record.case, record.round)
        if key in seen:
            before, earlier = seen[key]
            same = "the same record as" if encode(earlier) == encode(record) else "another result of the trial of"
            text = f"{same} line {before.rpartition(':')[2]}; the later one counts"
            yield Finding(where=where, text=text, is_damage=False)
        seen[key] = (where, record)


def _looked_at(where: str, record: Record, plan: dict[Key, Trial] | None) -> Iterator[Finding]:
    """Yield the findings of one record."""
    trial = plan.get((record.case, record.round)) if plan is not None else None
    if plan is not None and trial is None:
        text = f"not in the plan: {record.case.strategy}, round {record.round}"
        yield Finding(where=where, text=text, is_damage=False)
    for text in impossible(record, trial.passes if trial else None):
        yield Finding(where=where, text=text)
