"""Finds what is wrong with a run folder, and on which line."""

from __future__ import annotations

from collections import Counter
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

    def find(where: object, text: str, *, is_damage: bool = True) -> None:
        text = text.removeprefix(f"{where}: ")  # as the errors of the readers begin
        findings.append(Finding(where=str(where), text=text, is_damage=is_damage))

    def find_old(where: object, schema: int) -> None:
        if schema < SCHEMA:
            find(where, f"schema {schema}, and {SCHEMA} is the present one", is_damage=False)

    plan: dict[Key, Trial] | None = None
    try:
        manifest = store.read_manifest(folder)
        plan = {(trial.case, trial.round): trial for trial in manifest.plan}
        find_old(folder / "manifest.json", manifest.schema)
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
        find_old(where, record.schema)
        records.append(record)
        key = record.case, record.round
        if key in seen:
            before, earlier = seen[key]
            same = "the same record as" if encode(earlier) == encode(record) else "another result of the trial of"
            find(where, f"{same} line {before}; the later one counts", is_damage=False)
        seen[key] = number, record
        trial = plan.get(key) if plan is not None else None
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
