"""Finds the fastest way to make a training step fit a memory, with every lever: what `gcprof fit` does.

Gains of levers do not add up, so that none is judged by itself: each combination of levers that change the whole step
is run, and where it does not fit as it is, its own chain of blocks is planned. What is said to fit was run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import msgspec

from profiler.analysis.rows import Row, time_verdict_of
from profiler.analysis.rows import rows as read_rows
from profiler.core import schedule
from profiler.core.case import Case, Choice, Trial
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile
from profiler.core.record import Readings, Record, bytes_needed
from profiler.planning.plan import plan_file_of
from profiler.request.spec import Request
from profiler.runs import RESULTS, store
from profiler.training import levers
from profiler.workflows import SILENT, Screen
from profiler.workflows.plan_comparison import file_of
from profiler.workflows.plan_fitting import MEMORY, Steps, fit_plan, offered, under
from profiler.workflows.planner import GATE
from profiler.workflows.stages import ModelOnDevice, context_of, limit_of, stages

NONE, ALL, PLAN = Choice("none"), Choice("all"), Choice("plan")
LOSS = ("chunk-loss",)
FUSED, NO_FOREACH = Choice("fused"), Choice("no-foreach")  # the latter where the optimizer has no fused kernels
OPTIMIZER = (FUSED, NO_FOREACH)
# What costs most is tried where nothing else fits. On an H200, a step of GPT-2 with a batch of 8 x 1024 in bf16 took
# 62 ms; with steps of each parameter in the backward 110, with two micro-batches 96, and with eight 365.
IN_BACKWARD = ("in-backward",)
MICRO_BATCHES = ("micro-batches:n=2", "micro-batches:n=4", "micro-batches:n=8")
CONSENTS = ("8bit", "bf16-state")  # change what is trained
LEAST = 6  # ways that do not fit are shown
ROUNDS = 2  # of the ways that fit, where they are measured


class FitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which step, what it has to fit, and what may be changed for it."""

    words: Request
    limit: int | float  # bytes of the device's memory, or a fraction of it
    context_bytes: int | None = None  # of it, what CUDA takes besides tensors; None: measured, or assumed
    most_host_bytes: int | None = None  # of pinned host memory, for what waits there; None: any
    allow: tuple[str, ...] = ()  # of CONSENTS
    typed: tuple[str, ...] = ()  # the words of the command line

    def check(self) -> None:
        """Raise UserError for a consent that is not known."""
        for word in self.allow:
            if word not in CONSENTS:
                raise UserError(f"--allow {word}: no lever needs it", hint=f"--allow {' or '.join(CONSENTS)}")


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """All ways that were run, and the one to take."""

    words: tuple[str, ...]  # the model as it was asked for, for the next command
    limit_bytes: int
    context_bytes: int
    context_source: str | None
    rows: tuple[Row, ...]  # the step as it is first
    left_out: dict[str, str]  # by lever, why
    chosen: Row | None = None
    plan: PlanFile | None = None  # the chosen one's, if it has one
    exit_code: int = 0

    @property
    def shown(self) -> tuple[Row, ...]:
        """The step as it is, what fits, and of the rest those that need least."""
        none, *others = self.rows
        rest = [row for row in others if not self.fits(row)]
        least = sorted(rest, key=lambda row: self.needed_bytes(row) or 2**63)[:LEAST]
        return none, *(row for row in others if row in least or self.fits(row))

    def needed_bytes(self, row: Row) -> int | None:
        """Return what a row takes of the device, CUDA's context included; None if it did not run."""
        return bytes_needed(row.readings, row.case.device, self.context_bytes) if row.outcome == "ok" else None

    def fits(self, row: Row) -> bool:
        needed = self.needed_bytes(row)
        return needed is not None and needed <= self.limit_bytes


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy or a plan with levers, whose step fits."""

    label: Choice
    plan: PlanFile | None = None

    def under(self, case: Case, file: Path) -> Case:
        """Return the case in this way; `file` is the plan's."""
        case = case.under(self.label)
        return under(case, file) if self.plan else case


def fit(request: FitRequest, screen: Screen = SILENT) -> Fitted:
    """Find the fastest way to make the step fit. Raises UserError."""
    request.check()
    with ModelOnDevice(request.words, screen) as model:
        for remark in model.remarks:
            screen.say(f"note: {remark}")
        limit = limit_of(model, request.limit, screen.say)
        context_bytes, source = context_of(model, request.context_bytes)
        search = _Search(model, limit, context_bytes, request.most_host_bytes)
        with screen.doing("looking for what fits"):
            ways = search.ways(tuple(map(Choice, request.allow)))
        folder = store.new_folder(RESULTS, [f"fit {model.case.model.name}"])
        files = {way.label: file_of(folder, f"plan {number}") for number, way in enumerate(ways, 1)}
        cases = {way.under(model.case, files[way.label]): way for way in ways}
        code, records = 0, tuple[Record, ...]()
        if ways:
            each = dict.fromkeys((model.case.baseline, *cases))
            is_predicted = model.case.is_predicted
            trials = schedule.predicted(each) if is_predicted else schedule.measured(each, ROUNDS)
            plans = {files[way.label]: way.plan for way in ways if way.plan}
            code, run = model.run(folder, trials, plans=plans, typed=request.typed)
            screen.say(f"wrote {run.folder / 'trials.jsonl'}")
            records = tuple(run.records)
        again = {record.case for record in records}
        rows = read_rows((*(record for record in search.records if record.case not in again), *records))
        fitted = Fitted(
            words=model.words, limit_bytes=limit, context_bytes=context_bytes, context_source=source,
            rows=tuple(sorted(rows, key=lambda row: row.case != row.baseline)), left_out=search.left_out,
        )  # fmt: skip
        chosen = _chosen([row for row in fitted.rows if row.case in cases and fitted.fits(row)])
        if chosen is None:
            return msgspec.structs.replace(fitted, exit_code=code or GATE)
        return msgspec.structs.replace(fitted, chosen=chosen, plan=cases[chosen.case].plan)


def _chosen(fitting: Sequence[Row]) -> Row | None:
    """Return the row that no other is surely faster than, of several the one with the fewest levers."""
    unbeaten = [
        row for row in fitting if all(time_verdict_of(row, other) != "slower" for other in fitting if other is not row)
    ]
    return min(unbeaten or fitting, key=lambda row: (len(row.case.label.parts), row.step_seconds or 0.0), default=None)


class _Search:
    """Runs a step with combinations of levers, each as it is and, where that does not fit, under its fastest plan."""

    def __init__(self, model: ModelOnDevice, limit: int, context_bytes: int, most_host_bytes: int | None) -> None:
        self._model, self._limit, self._context_bytes = model, limit, context_bytes
        self._most_host_bytes = most_host_bytes
        self._run: dict[Choice, Record] = {}  # by label
        self.left_out: dict[str, str] = {}

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(self._run.values())

    def ways(self, allowed: tuple[Choice, ...]) -> list[Way]:
        """Return what fits of the first tier of which anything does."""
        as_it_is = self.run(NONE)
        if self._fits(as_it_is):
            return [Way(label=NONE)]
        for taken in ((), allowed) if allowed else ((),):  # what changes the training last
            for tier in _tiers(taken):
                if found := [way for chosen in tier for way in self._ways(chosen)]:
                    return found
        return []

    def _ways(self, chosen: tuple[Choice, ...]) -> list[Way]:
        """Return the step with these levers if it fits, else its fastest plan and, where none fits, `all`."""
        if any(lever in self.left_out for lever in chosen) or (NO_FOREACH in chosen and FUSED not in self.left_out):
            return []
        none, every = _label(NONE, chosen), _label(ALL, chosen)
        plain = self.run(none)
        if plain.outcome == "skipped" and len(chosen) == 1:
            self.left_out[chosen[0]] = plain.detail or "it cannot be applied"
        if self._fits(plain) or self._needed(plain.readings) is None:
            return [Way(label=none)] if self._fits(plain) else []
        fits = self._fits(self.run(every))
        plan = self._plan(chosen)
        if plan is not None:
            return [Way(label=_label(PLAN, chosen), plan=plan)]
        return [Way(label=every)] if fits else []

    def _plan(self, chosen: tuple[Choice, ...]) -> PlanFile | None:
        """Return the fastest plan with these levers whose step fits; None if none does."""
        model = self._model
        case = model.case.under(_label(NONE, chosen))
        try:
            budget = f"{max(1, self._limit - self._context_bytes)}B"  # below the floor nothing is timed
            chain = stages(model.engine, case, model.calibration(), budget=budget)
        except UserError as error:  # the blocks are no chain
            self.left_out[" ".join(("plans", *(("with", *chosen) if chosen else ())))] = error.message
            return None
        most = self._most_host_bytes
        steps = Steps(model.engine, case, chain, passes=MEMORY, need=self._needed, most_host_bytes=most)
        for points in offered(chain, case, self._limit - self._context_bytes, most):
            found = fit_plan(steps.run, points, self._limit, beyond=self._context_bytes, is_rehearsed=case.is_rehearsed)
            if found:
                return plan_file_of(chain, found.point.plan)
        return None

    def run(self, label: Choice) -> Record:
        """Run the step under a label, once."""
        if label not in self._run:
            case = self._model.case.under(label)
            passes = schedule.REHEARSED_PASSES if case.is_rehearsed else MEMORY
            (self._run[label],) = self._model.engine.run([Trial(case=case, passes=passes)])
        return self._run[label]

    def _fits(self, record: Record) -> bool:
        needed = self._needed(record.readings) if record.outcome == "ok" else None
        return needed is not None and needed <= self._limit

    def _needed(self, readings: Readings) -> int | None:
        return bytes_needed(readings, self._model.case.device, self._context_bytes)


def _tiers(allowed: tuple[Choice, ...]) -> Iterator[list[tuple[Choice, ...]]]:
    """Yield combinations of levers, those that cost least first; all have those that were allowed."""

    def combined(*choices: tuple[str, ...]) -> list[tuple[Choice, ...]]:
        known = [[word for word in words if not word or Choice(word).name in levers.TABLE] for words in choices]
        made = [(*map(Choice, filter(None, words)), *allowed) for words in product(*known)]
        return sorted(made, key=len)

    loss, optimizer = ("", *LOSS), ("", *OPTIMIZER)
    yield combined(loss, optimizer)
    yield combined(loss, IN_BACKWARD)
    for parts in MICRO_BATCHES:
        yield combined(loss, (FUSED,), (parts,))


def _label(strategy: Choice, chosen: tuple[Choice, ...]) -> Choice:
    return levers.resolved(Choice("+".join([strategy, *chosen])))
