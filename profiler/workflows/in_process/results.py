"""Results of `explain`, `timeline` and `plan`: a notebook shows tables and pictures; print shows text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from profiler.analysis import live_bytes
from profiler.analysis.explanation import Explanation
from profiler.core import optional_deps
from profiler.core.plan_file import PlanFile
from profiler.core.trace_data import Trace
from profiler.planning.candidates import Way
from profiler.planning.chain import Chain
from profiler.planning.solver import Point
from profiler.views.export import markdown as languages
from profiler.views.tables import explanation, plans
from profiler.views.tables.grid import Table, text


class StepExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Where the peak of a predicted step is, what holds it, how low it could be, and why it is no lower."""

    title: str
    explanation: Explanation
    notes: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of allocated bytes."""
        return self.explanation.peak.nbytes

    def __str__(self) -> str:
        return text(self._tables).plain

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return languages.html(self._tables)

    def _repr_markdown_(self) -> str:
        return languages.markdown(self._tables)

    @property
    def _tables(self) -> list[Table]:
        return explanation.in_python(explanation.tables(self.explanation, title=self.title, notes=self.notes))


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The live bytes of predicted steps, by the strategies' names."""

    title: str
    traces: dict[str, Trace]

    @property
    def peak_bytes(self) -> dict[str, int]:
        """The predicted peak of each strategy."""
        return {name: live_bytes.peak(trace).nbytes for name, trace in self.traces.items()}

    def save(self, path: str | Path) -> Path:
        """Draw the timeline as a png, svg or pdf, over any file there. Raises UserError."""
        view = optional_deps.load("profiler.views.plots.timeline", needs="matplotlib")
        drawn: Path = view.plot(self.traces, title=self.title, path=Path(path), force=True)
        return drawn

    def __repr__(self) -> str:
        return f"<gcprof timeline of {self.title}: {', '.join(self.traces)}>"

    def _repr_png_(self) -> bytes:
        return languages.png(self.save)

    def _repr_html_(self) -> str:
        return languages.html([explanation.timelines(self.traces, title=self.title)], picture=self._repr_png_())

    def _repr_markdown_(self) -> str:
        return languages.markdown([explanation.timelines(self.traces, title=self.title)])


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan was chosen from: its chain, the frontier, and the alternatives."""

    title: str
    chain: Chain
    points: Sequence[Point]  # of the frontier
    ways: tuple[Way, ...]  # the plan first, then what a user would pick without a solver
    none: Way


class Plan(PlanFile, frozen=True, kw_only=True, dict=True):
    """A plan that its notebook shows next to the alternatives; its file is like that of any plan."""

    @classmethod
    def of(cls, file: PlanFile, found: Found) -> Plan:
        """Return the plan, with what it was chosen from."""
        plan = cls(plan=file.plan, segments=file.segments, fingerprint=file.fingerprint)
        plan.__dict__["found"] = found
        return plan

    def _repr_html_(self) -> str | None:
        found = self._found
        if found is None:
            return None
        view = optional_deps.load("profiler.views.plots.lines", needs="matplotlib")
        png = languages.png(lambda path: view.plot_plans(found.points, found.chain, title=found.title, path=path))
        return languages.html([self._table(found)], picture=png)

    def _repr_markdown_(self) -> str | None:
        found = self._found
        if found is None:
            return None
        return languages.markdown([self._table(found)])

    @property
    def _found(self) -> Found | None:
        """What the plan was chosen from; None for a copy, which has only what its file has."""
        return self.__dict__.get("found")

    def _table(self, found: Found) -> Table:
        lines = [plans.ComparedPlan(way=way) for way in (found.none, *found.ways)]
        below = [
            *plans.reading(line.way.plan for line in lines),
            plans.legend(found.chain),
            "by the costs of the stages, predicted; times are against the step without checkpointing",
            "profiler.apply(module, plan) checkpoints a module so; plan.save('plan.json') keeps it",
        ]
        return Table(title=found.title, columns=plans.way_columns(lines, found.none), below=tuple(below))
