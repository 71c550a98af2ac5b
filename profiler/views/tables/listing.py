"""Lists as text: names with their options, the blocks of a model, run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from profiler.analysis import progress
from profiler.analysis.rows import rows
from profiler.core.catalogue import KINDS, Entry
from profiler.core.errors import UserError
from profiler.core.record import Evidence, ModelSummary, evidence
from profiler.core.units import MISSING, count_text, few
from profiler.runs import REFERENCE, read_tags, reference, reference_names, runs
from profiler.runs.store import Run, load
from profiler.views.tables.evidence import device_word, in_order, kinds_text
from profiler.views.tables.grid import Table, numbers, words

LISTED_BYTES = 512 << 20  # the largest trials.jsonl that a list reads; 100,000 trials take half of it
MOST_NAMED = 3  # blocks
FEEDS = {True: "yes", False: "no", None: MISSING}


def listing(entries: Sequence[Entry], *, title: str = "") -> Table:
    """Return a line per name: its options with their defaults, and what it is about."""

    def options(entry: Entry) -> str:
        return " ".join(
            f"{one.name}={f'<{one.kind}>' if one.default is None else one.default}" for one in entry.options
        )

    columns = (
        words("name", "", [entry.name for entry in entries]),
        words("options", "", [options(entry) or "-" for entry in entries]),
        words("about", "", [entry.about for entry in entries]),
    )
    return Table(title=title, columns=columns)


def details(entry: Entry) -> Table:
    """Return one entry in full, each option with its kind and default."""
    options = entry.options
    columns = (
        words("option", "", [option.name for option in options]),
        numbers("default", "", ["must be given" if option.default is None else option.default for option in options]),
        words("what it takes", "", [KINDS.get(option.kind, option.kind) for option in options]),
    )
    below = () if options else ("no options",)
    return Table(title=entry.name, above=(entry.about,), columns=columns if options else (), below=below)


def blocks(outline: ModelSummary, *, better: str | None = None) -> Table:
    """Return a line per block in order, under the name of the model; `better`, a note on other blocks, goes below."""
    listed = outline.blocks
    head = [outline.model, count_text(outline.num_parameters, "parameter"), count_text(len(listed), "block")]
    batch = [f"batch {outline.batch_size}"] if outline.batch_size else []
    columns = (
        words("block", "", [block.name for block in listed]),
        words("class", "", [block.kind for block in listed]),
        numbers("parameters", "", [str(block.num_parameters) for block in listed]),
        words("output", "", [block.output or "not run" for block in listed]),
        words("joins", "the next", [FEEDS[block.feeds_next] for block in listed]),
    )
    apart = [block.name for block in listed if block.feeds_next is False]
    joined = (
        f"a segment ends at a block with 'no', as the next takes more than its output: {few(apart, MOST_NAMED)}"
        if apart
        else None
    )
    below = [f"note: {line}" for line in (outline.remark or joined, better) if line]
    return Table(title=", ".join([*head, *batch]), columns=columns, below=tuple(below))


class RunOverview(msgspec.Struct, frozen=True, kw_only=True):
    """What `gcprof runs list` shows of a run; None if its files could not be read."""

    name: str
    status: str  # complete, partial, unreadable, or large: not read for a list
    created: str | None = None  # UTC, ISO 8601
    models: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()  # measured, rehearsed, predicted
    num_ok: int | None = None
    num_rows: int | None = None  # of the whole plan
    tags: tuple[str, ...] = ()


def overviews(folder: Path) -> list[RunOverview]:
    """Return every run below the folder, the newest last; a damaged one is listed as unreadable."""
    unordered = (_read(path, path.name) for path in runs(folder))
    return sorted(unordered, key=lambda run: (run.created or "", run.name))


def references() -> list[RunOverview]:
    """Return every run that comes with gcprof, by the name that commands take."""
    return [_read(reference(name), f"{REFERENCE}{name}") for name in reference_names()]


def overview(run: Run, name: str) -> RunOverview:
    """Return the overview of a run: its planned models and devices, and how many rows are ok."""
    planned, table = progress.rows_of(run.manifest.plan, run.records), rows(run.records, largest=0)
    known = {row.case: row.evidence for row in table}
    of_first = {case: run.manifest.environment for case in planned if case.device == planned[0].device}
    owed = {evidence(case, of_first.get(case)) for case in planned if case not in known}  # what rows will have
    return RunOverview(
        name=name,
        status=run.status,
        created=run.manifest.created,
        models=tuple(dict.fromkeys(str(case.model) for case in planned)),
        devices=tuple(dict.fromkeys(case.device for case in planned)),
        evidence=in_order(owed | {*known.values()}),
        num_ok=sum(row.outcome == "ok" for row in table),
        num_rows=len(planned),
        tags=read_tags(run.folder),
    )


def run_list(listed: Sequence[RunOverview]) -> Table:
    """Return one line per run."""
    columns = (
        words("run", "", [run.name for run in listed]),
        words("date (UTC)", "", [(run.created or MISSING)[:16].replace("T", " ") for run in listed]),
        words("models", "", [", ".join(run.models) or MISSING for run in listed]),
        words("device", "", [", ".join(map(device_word, run.devices)) or MISSING for run in listed]),
        words("rows ok", "", [_rows_ok(run) for run in listed]),
        *([words("tags", "", [", ".join(run.tags) for run in listed])] if any(run.tags for run in listed) else []),
    )
    return Table(columns=columns)


def _read(path: Path, name: str) -> RunOverview:
    """Return the overview of a folder; a damaged or large one neither stops nor delays the list."""
    try:
        if (path / "trials.jsonl").exists() and (path / "trials.jsonl").stat().st_size > LISTED_BYTES:
            return RunOverview(name=name, status="large", tags=read_tags(path))
        return overview(load(path), name)
    except (UserError, OSError, MemoryError, RecursionError):
        return RunOverview(name=name, status="unreadable", tags=read_tags(path))


def _rows_ok(run: RunOverview) -> str:
    """Return how many rows are ok of how many, their kinds of evidence, and the status unless it is complete."""
    counted = [] if run.num_ok is None else [f"{run.num_ok}/{run.num_rows} {kinds_text(run.evidence)}"]
    return ", ".join([*counted, *([run.status] if run.status != "complete" else [])])
