"""What functions of Python return: numbers that `print` and a notebook show as the tables of their commands.

Runs are read back here too, without torch.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from profiler.analysis import live_bytes
from profiler.analysis.explanation import Explanation
from profiler.analysis.rows import COLUMNS, Row, flat_row
from profiler.analysis.rows import rows as read_rows
from profiler.core.case import Choice
from profiler.core.errors import UserError, load_module
from profiler.core.plan_file import PlanFile
from profiler.core.record import Evidence, Record, evidence
from profiler.core.trace_data import Trace
from profiler.core.units import bytes_text, count_text
from profiler.runs import run_folder, store
from profiler.views import export as languages
from profiler.views.tables import Table, explanation, plans, text
from profiler.views.tables.columns import device_word, main
from profiler.workflows.fit import Fitted
from profiler.workflows.planner import Planned

if TYPE_CHECKING:
    import pandas as pd

KINDS = {str: "string", int: "Int64", float: "Float64", bool: "bool", tuple: "object"}  # integers stay so beside NA


class Shown:
    """Shows its tables as text, HTML and Markdown, and its picture in HTML; without tables it shows what it is."""

    __slots__ = ()

    def _tables(self) -> list[Table]:
        return []

    def _picture(self) -> bytes | None:
        return None

    def __repr__(self) -> str:
        tables = self._tables()
        return text(tables).plain if tables else super().__repr__()

    def _repr_html_(self) -> str | None:
        tables = self._tables()
        return languages.html(tables, picture=self._picture()) if tables else None

    def _repr_markdown_(self) -> str | None:
        tables = self._tables()
        return languages.markdown(tables) if tables else None


class ShownRecord(Shown, Record, frozen=True, kw_only=True):
    """A record that shows itself as the table of its command."""

    @classmethod
    def of(cls, record: Record) -> Self:
        return cls(**msgspec.structs.asdict(record))

    def _tables(self) -> list[Table]:
        return main(read_rows((self,)))


class PeakMemory(int):
    """The peak of allocated bytes in a training step, with its evidence and its record."""

    evidence: Evidence
    record: Record

    @classmethod
    def of(cls, record: Record) -> Self:
        """Return the peak of a record. Raises UserError if it has none."""
        nbytes = record.readings.peak_bytes if record.readings else None
        if nbytes is None:
            raise UserError(f"'{record.case.model}' has no peak: {record.outcome}", hint=record.detail)
        peak = cls(nbytes)
        peak.record, peak.evidence = record, evidence(record.case, record.environment)
        return peak

    def __repr__(self) -> str:
        case = self.record.case
        device = device_word(case.device)
        settings = f"{case.model} under {case.label}, {case.optimizer}, {case.precision}, {device}"
        return f"{bytes_text(int(self))} {self.evidence} ({settings})"


class StepExplanation(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Where the peak of a predicted step is, what holds it, how low it could be, and why it is no lower."""

    title: str
    explanation: Explanation
    notes: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of allocated bytes."""
        return self.explanation.peak.nbytes

    def _tables(self) -> list[Table]:
        return explanation.in_python(explanation.tables(self.explanation, title=self.title, notes=self.notes))


class Timeline(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """The live bytes of predicted steps, by the strategies' names."""

    title: str
    traces: dict[str, Trace]

    @property
    def peak_bytes(self) -> dict[str, int]:
        """The predicted peak of each strategy."""
        return {name: live_bytes.peak(trace).nbytes for name, trace in self.traces.items()}

    def save(self, path: str | Path) -> Path:
        """Draw the timeline as a png, svg or pdf, over any file there. Raises UserError."""
        view = load_module("profiler.views.plots.steps", needs="matplotlib")
        drawn: Path = view.timeline(self.traces, title=self.title, path=Path(path), force=True)
        return drawn

    def _tables(self) -> list[Table]:
        return [explanation.timelines(self.traces, title=self.title)]

    def _picture(self) -> bytes:
        return languages.png(self.save)

    _repr_png_ = _picture


class Plan(Shown, PlanFile, frozen=True, kw_only=True, dict=True):
    """A plan that shows itself beside the alternatives; a copy and its file hold the plan alone."""

    @classmethod
    def of(cls, file: PlanFile, found: Planned) -> Plan:
        """Return the plan, with what it was chosen from."""
        plan = cls(plan=file.plan, segments=file.segments, fingerprint=file.fingerprint)
        plan.__dict__["found"] = found
        return plan

    def _tables(self) -> list[Table]:
        found: Planned | None = self.__dict__.get("found")
        if found is None:
            return []
        lines = [plans.ComparedPlan(way=found.none), *found.plans]
        below = (
            *plans.reading(found.chain, (line.way.plan for line in lines)),
            "by the costs of the stages, predicted; times are against the step without checkpointing",
            "gcprof.apply(module, plan) checkpoints a module so; plan.save('plan.json') keeps it",
        )
        return [plans.table(lines, found.chain, title=found.title, none=found.none, below=below)]

    def _picture(self) -> bytes:
        found: Planned = self.__dict__["found"]
        points = list(found.frontier)
        view = load_module("profiler.views.plots.frontier", needs="matplotlib")
        return languages.png(lambda path: view.plot_plans(points, found.chain, title=found.title, path=path))


class Fit(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """The ways that were rehearsed, and the one to take."""

    fitted: Fitted
    table: Table

    @property
    def label(self) -> Choice | None:
        """The strategy, `plan` if it is one, and the levers of the way to take; None if nothing fits."""
        chosen = self.fitted.chosen
        if chosen is None or self.plan is None:
            return chosen.case.label if chosen else None
        return msgspec.structs.replace(chosen.case, strategy=Choice("plan")).label

    @property
    def plan(self) -> PlanFile | None:
        """Its plan, if it has one."""
        return self.fitted.plan

    @property
    def code(self) -> str | None:
        """What to paste for it, if the step does not fit as it is."""
        return self.fitted.code

    def _tables(self) -> list[Table]:
        return [self.table]


class Run(store.Run, frozen=True, kw_only=True, dict=True):
    """A run folder as it was when it was loaded. A notebook shows it as a table."""

    @cached_property
    def _rows(self) -> tuple[Row, ...]:
        return read_rows(self.records)

    def rows(self) -> tuple[Row, ...]:
        """One row for each case, its rounds pooled, against the same case without checkpointing."""
        return self._rows

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a DataFrame with the columns of the CSV export: bytes and seconds, samples as tuples."""
        pandas = load_module("pandas")
        lines = [flat_row(row) for row in self.rows()]
        kinds = {name: KINDS[kind] for name, kind in COLUMNS.items()}
        frame: pd.DataFrame = pandas.DataFrame(
            {name: pandas.Series([line[name] for line in lines], dtype=kind) for name, kind in kinds.items()}
        )
        return frame

    def __repr__(self) -> str:
        return f"<gcprof run {self.folder.name}: {count_text(len(self.rows()), 'row')}, {self.status}>"

    def _repr_html_(self) -> str:
        return languages.run_html(self.rows(), status=self.status)


def load(run: str | Path = "last") -> Run:
    """Returns the run that is called so: by its folder, its name below results/, or `last`. It needs no torch.

    `records` are as they were stored, `rows()` pools the rounds of each case and compares it with the case without
    checkpointing, and `to_pandas()` gives a frame of these rows: bytes and seconds, missing where it was not measured.
    Raises UserError where it is no run or is damaged.

    Example::

        run = gcprof.load("last")
        frame = run.to_pandas()
        frame[["strategy", "saved_bytes", "peak_bytes", "step_seconds"]]
    """
    return Run(**msgspec.structs.asdict(store.load(run_folder(str(run)))))
