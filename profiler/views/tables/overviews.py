"""A line for every run folder: knows nothing of commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.text import Text

from profiler.analysis import progress
from profiler.analysis.rows import rows
from profiler.core.errors import UserError
from profiler.core.units import MISSING
from profiler.runs.find import REFERENCE, reference, reference_names, runs
from profiler.runs.store import Run, load
from profiler.views.tables.columns import Column
from profiler.views.tables.terminal import fitted


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What `gcprof list` says of a run; None where its files could not be read."""

    name: str
    status: str  # complete, partial, unreadable
    created: str | None = None  # UTC, ISO 8601
    models: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    num_ok: int | None = None
    num_rows: int | None = None  # of the whole plan


def overviews(folder: Path) -> list[Overview]:
    """Every run below the folder, the newest last. A damaged one is listed as unreadable."""
    found = (_read(path, path.name) for path in runs(folder))
    return sorted(found, key=lambda one: (one.created or "", one.name))


def references() -> list[Overview]:
    """Every run that comes with gcprof, by the name that commands take."""
    return [_read(reference(name), f"{REFERENCE}{name}") for name in reference_names()]


def overview(run: Run, name: str) -> Overview:
    planned = dict.fromkeys(trial.case for trial in run.manifest.plan)
    return Overview(
        name=name,
        status=progress.status(run.manifest.plan, run.records),
        created=run.manifest.created,
        models=tuple(dict.fromkeys(str(case.model) for case in planned)),
        devices=tuple(dict.fromkeys(case.device for case in planned)),
        num_ok=sum(row.outcome == "ok" for row in rows(run.records)),
        num_rows=len(planned),
    )


def table(found: Sequence[Overview], *, width: int | None = None, encoding: str = "utf-8") -> Text:
    """One line a run."""
    columns = (
        _column("run", [one.name for one in found]),
        _column("date (UTC)", [(one.created or MISSING)[:16].replace("T", " ") for one in found]),
        _column("models", [", ".join(one.models) or MISSING for one in found]),
        _column("device", [", ".join(one.devices) or MISSING for one in found]),
        _column("rows ok", [_rows_ok(one) for one in found]),
    )
    return fitted(columns, width=width, encoding=encoding)


def _read(path: Path, name: str) -> Overview:
    try:
        return overview(load(path), name)
    except UserError:
        return Overview(name=name, status="unreadable")


def _rows_ok(one: Overview) -> str:
    """How many of how many, and what is wrong with the run where something is."""
    counted = [] if one.num_ok is None else [f"{one.num_ok}/{one.num_rows}"]
    return ", ".join([*counted, *([one.status] if one.status != "complete" else [])])


def _column(head: str, cells: list[str]) -> Column:
    return Column(head=(head, ""), cells=tuple(cells))
