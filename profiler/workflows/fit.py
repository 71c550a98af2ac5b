"""What `gcprof fit` does within a memory: the fastest way to make a step fit. What is said to fit was run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from profiler.analysis.advice import taken_bytes
from profiler.analysis.rows import Row, time_verdict_of
from profiler.analysis.rows import rows as read_rows
from profiler.core import schedule
from profiler.core.case import Case, Choice, Trial
from profiler.core.errors import one_of
from profiler.core.plan_file import OFFLOADING, PlanFile
from profiler.core.record import Record
from profiler.core.units import bytes_text
from profiler.planning import plan_code
from profiler.runs import RESULTS, store
from profiler.views.tables import Table
from profiler.views.tables import plans as view
from profiler.workflows import SILENT, Screen
from profiler.workflows.explain import peak_place
from profiler.workflows.fit_search import CONSENTS, IN_BACKWARD, OFFLOAD, Levers, Search, proved_floors, timed
from profiler.workflows.planner import GATE, file_of
from profiler.workflows.spec import Request
from profiler.workflows.stages import ModelOnDevice, Step, context_of, limit_of, roomy, way_of

ROUNDS = 2  # of the ways that fit, where they are measured
Run = Callable[[tuple[Trial, ...], dict[Path, PlanFile]], tuple[int, tuple[Record, ...]]]  # with an exit code


class FitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which step, what it has to fit, and what may be changed for it."""

    words: Request
    limit: int | float  # bytes of the device's memory, or a fraction of it
    context_bytes: int | None = None  # of it, what CUDA takes besides tensors; None: measured, or assumed
    most_host_bytes: int | None = None  # of pinned host memory, for what waits there; None: any
    allow: tuple[str, ...] = ()  # of CONSENTS
    emit: str | None = None  # the kind of code to write for the chosen way
    draws: bool = False  # whether the curves of plans are wanted

    def check(self) -> None:
        """Raise UserError for a consent that is not known."""
        for word in self.allow:
            one_of(word, CONSENTS, flag="--allow")


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """What a step has to fit, all ways that were run, and the one to take."""

    limit_bytes: int  # of a device
    context_bytes: int  # of them, what CUDA itself takes
    context_source: str | None  # how that is known
    rows: tuple[Row, ...] = ()  # the step as it is first
    left_out: dict[str, str] = {}  # by lever, why
    words: tuple[str, ...] = ()  # the model as it was asked for, for the next command
    allow: tuple[str, ...] = ()  # consents that were given
    curves: dict[str, list[tuple[int, float]]] = {}  # of plans with each lever: peaks, and times as ratios
    places: dict[Case, str] = {}  # of some rows: the phase, the module and the line of the peak
    floors: dict[Levers, int] = {}  # if nothing fits: by levers, what plans with them need at least
    are_proved: bool = False  # whether no plan gets below these, as the traces of rehearsed steps show
    chosen: Row | None = None
    plan: PlanFile | None = None  # the chosen one's, if it has one
    code: str | None = None  # for the chosen one, if it was asked for
    exit_code: int = 0

    @property
    def shown(self) -> tuple[Row, ...]:
        """The step as it is, then what needs less, in order: `all`, the chosen, and what no other row beats."""
        none, *others = self.rows
        ran = [row for row in others if self.needed_bytes(row) is not None and not self.consents(row)]
        rungs = [row for row in ran if row is self.chosen or row.case.label == "all" or not self._is_beaten(row, ran)]
        return none, *sorted(rungs, key=lambda row: -(self.needed_bytes(row) or 0))

    def _is_beaten(self, row: Row, others: Sequence[Row]) -> bool:
        """Whether another row needs no more, and takes no longer to 0.1 %; of two alike the fewest levers stay."""

        def costs(row: Row) -> tuple[float, float, int]:
            return self.needed_bytes(row) or 0, round(row.time_ratio or 0.0, 3), len(row.case.label.parts)

        nbytes, seconds, _ = mine = costs(row)
        comparable = [
            costs(other)
            for other in others
            if (other.time_ratio is not None or row.time_ratio is None) and _asks(other) <= _asks(row)
        ]
        return any(one[0] <= nbytes and one[1] <= seconds and one < mine for one in comparable)

    @property
    def table(self) -> Table:
        """A row for each rung, and below what was left out and what is missing."""
        rows, chosen = self.shown, self.chosen
        source = f"; {view.context_text(self.context_bytes, self.context_source)}" if self.context_source else ""
        below = [f"to fit: {bytes_text(self.limit_bytes)}{source}"]
        taken = {str(lever) for row in rows if self.fits(row) for lever in row.case.label.parts[1:]}
        below += view.left_out_lines({word: why for word, why in self.left_out.items() if str(word) not in taken})
        below += self.missing if chosen is None else ["it fits as it is"] if chosen is rows[0] else []
        if any(map(_asks, rows)):
            below.append(f"{IN_BACKWARD} is not for a training that clips or accumulates gradients")
        return view.fit_table(
            rows, list(map(self.needed_bytes, rows)), list(map(self.fits, rows)), chosen=chosen, places=self.places,
            below=below,
        )  # fmt: skip

    @property
    def missing(self) -> list[str]:
        """What is missing where nothing fits: of the least row, of plans with each lever, and with consents."""
        ran = [(nbytes, row) for row in self.rows if (nbytes := self.needed_bytes(row)) is not None]
        asks = [row for _, row in ran if self.consents(row)]
        given = [(nbytes, row) for nbytes, row in ran if row in self.shown]
        lines = []
        if given:
            least, row = min(given, key=lambda pair: pair[0])
            more = bytes_text(least - self.limit_bytes)
            lines.append(f"nothing fits: the least is {row.case.label}, which needs {more} more")
        if self.floors:  # of each lever alone, and the least of all combinations
            least, together = min((nbytes, "+".join(chosen)) for chosen, nbytes in self.floors.items())
            alone = {
                chosen[0] if chosen else "no lever": nbytes for chosen, nbytes in self.floors.items() if len(chosen) < 2
            }
            said = ", ".join(f"with {name} {bytes_text(nbytes)}" for name, nbytes in alone.items())
            how = "no plan needs less, as traces prove" if self.are_proved else "least found, by the costs of stages"
            lines.append(f"{how}: {said}; {bytes_text(least)} with {together or 'no lever'}")
        for row in asks:
            over = (self.needed_bytes(row) or 0) - self.limit_bytes
            does = "fits" if over <= 0 else f"needs {bytes_text(over)} more"
            lines.append(f"with --allow {','.join(self.consents(row))}: {row.case.label} {does}")
        return lines

    def consents(self, row: Row) -> list[str]:
        """Return the consents that a row takes and that were not given."""
        return [
            lever.name for lever in row.case.levers or () if lever.name in CONSENTS and lever.name not in self.allow
        ]

    def needed_bytes(self, row: Row) -> int | None:
        """Return what a row takes of the device, CUDA's context included; None if it did not run."""
        return taken_bytes(row, self.context_bytes)

    def fits(self, row: Row) -> bool:
        needed = self.needed_bytes(row)
        return needed is not None and needed <= self.limit_bytes


def fit(request: FitRequest, screen: Screen = SILENT) -> Fitted:
    """Find the fastest way to make the step fit. Raises UserError."""
    request.check()
    with ModelOnDevice(request.words, screen, most_host_bytes=request.most_host_bytes) as model:
        for remark in model.remarks:
            screen.say(f"note: {remark}")
        limit = limit_of(request.limit, model.device_bytes, of=model.case.device, say=screen.say)
        context_bytes, source = context_of(model, request.context_bytes)
        room = Fitted(limit_bytes=limit, context_bytes=context_bytes, context_source=source, words=model.words)
        folder = store.new_folder(RESULTS, [f"fit {model.case.model.name}"])

        def run(trials: tuple[Trial, ...], plans: dict[Path, PlanFile]) -> tuple[int, tuple[Record, ...]]:
            code, run = model.run(folder, trials, plans=plans)
            screen.say(f"wrote {run.folder / 'trials.jsonl'}")
            return code, tuple(run.records)

        model.case = roomy(model.case)  # what does not fit has numbers too
        return searched(model.step, request, room, folder, run, screen)


def searched(model: Step, request: FitRequest, room: Fitted, folder: Path, run: Run, screen: Screen) -> Fitted:
    """Find the fastest way to make a step fit the room; `run` runs those that do, with plans in the folder.

    The step runs on a device with room for it, so that what does not fit has numbers too. Raises UserError.
    """
    search = Search(model, room.limit_bytes, room.context_bytes)
    with screen.doing("looking for what fits"):
        allowed = tuple(map(Choice, request.allow))
        ways = search.ways(allowed)
        if model.case.has_estimated_times and not ways:
            search.with_consents(allowed)
        elif model.case.has_estimated_times and ways[0].label != "none":
            ways += search.further(ways)
    files = {way.label: file_of(folder, f"plan {number}") for number, way in enumerate(ways, 1)}
    cases = {way.under(model.case, files[way.label]): way for way in ways}
    code, records = 0, tuple[Record, ...]()
    if ways:
        each = dict.fromkeys((model.case.baseline, *cases))
        trials = schedule.predicted(each) if model.case.is_predicted else schedule.measured(each, ROUNDS)
        code, records = run(trials, {files[way.label]: way.plan for way in ways if way.plan})
    again = {record.case for record in records}
    records = (*(record for record in search.records if record.case not in again), *records)
    plain = {record.case.label: record for record in records}
    added = {
        record.case: search.added_seconds(record.case.label)
        for record in search.records
        if OFFLOAD.name in {lever.name for lever in record.case.label.parts[1:]}
    }
    added |= {case: way.added_seconds for case, way in cases.items() if way.plan and way.plan.schema == OFFLOADING}
    rows = read_rows([timed(record, added.get(record.case), plain) for record in records])
    rows = tuple(sorted(rows, key=lambda row: row.case != row.baseline))
    fitted = msgspec.structs.replace(
        room, rows=rows, left_out=search.left_out, allow=request.allow, are_proved=model.case.is_rehearsed
    )
    if not ways:
        with screen.doing("looking for what no plan gets below"):
            floors = proved_floors(model, search.floors, room.context_bytes) if fitted.are_proved else search.floors
        fitted = msgspec.structs.replace(fitted, floors=floors)
    chosen = _chosen([row for row in fitted.rows if row.case in cases and fitted.fits(row)])
    looked_at = [fitted.rows[0], *([chosen] if chosen and chosen is not fitted.rows[0] else [])]
    with screen.doing("looking where the peak is"):
        places = {row.case: peak_place(model.engine, row.case) for row in looked_at if row.case.has_estimated_times}
    curves = search.curves() if request.draws else {}
    fitted = msgspec.structs.replace(
        fitted, curves=curves, places={case: place for case, place in places.items() if place}
    )
    if chosen is None:
        return msgspec.structs.replace(fitted, exit_code=code or GATE)
    plan = cases[chosen.case].plan
    is_changed = request.emit is not None and chosen.case != model.case
    written = plan_code.emit_way(way_of(model.engine, chosen.case, plan), str(request.emit)) if is_changed else None
    return msgspec.structs.replace(fitted, chosen=chosen, plan=plan, code=written)


def _asks(row: Row) -> bool:
    """Whether a training that clips or accumulates gradients cannot have it."""
    return any(lever.name == IN_BACKWARD for lever in row.case.label.parts)


def _chosen(fitting: Sequence[Row]) -> Row | None:
    """Return the row that no other is surely faster than, of several the one with the fewest levers."""
    unbeaten = [
        row for row in fitting if all(time_verdict_of(row, other) != "slower" for other in fitting if other is not row)
    ]
    return min(unbeaten or fitting, key=lambda row: (len(row.case.label.parts), row.step_seconds or 0.0), default=None)
