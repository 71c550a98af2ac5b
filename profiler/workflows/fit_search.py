"""Searches the combinations of levers for those under which a step fits a memory, the cheapest first.

Gains of levers do not add up, so that none is left out for what it does by itself: a combination is not tried where
the floor of its chain, which no plan gets below, is above the limit, or where one of its levers lowers neither the
step's peak nor that floor. What is said to fit was run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec import UNSET

from profiler.analysis.peak_floor import floor
from profiler.core import gpu_specs, schedule
from profiler.core.case import Case, Choice, Trial
from profiler.core.errors import UserError
from profiler.core.gpu_specs import parse
from profiler.core.plan_file import PlanFile
from profiler.core.record import Readings, Record, bytes_needed
from profiler.planning import chain as chains
from profiler.planning import simulator
from profiler.planning.chain import Chain, Plan, plan_file_of
from profiler.planning.simulator import simulate
from profiler.planning.solver import Point
from profiler.training import LEVERS, label_of
from profiler.workflows import plan_fitting
from profiler.workflows.plan_fitting import FASTER, HELPS, MEMORY, TriedPlan, copied, fastest, frontiers, offloading
from profiler.workflows.stages import Step, context_alone, followed, stages

NONE, ALL, PLAN = Choice("none"), Choice("all"), Choice("plan")
LOSS, FUSED, NO_FOREACH = Choice("chunk-loss"), Choice("fused"), Choice("no-foreach")
EIGHT_BIT = Choice("8bit")  # has kernels of its own
EXPANDABLE = Choice("expandable-segments")
IN_BACKWARD, OFFLOAD = Choice("in-backward"), Choice("offload-inputs")
# What costs most is tried where nothing else fits. On an H200, a step of GPT-2 with a batch of 8 x 1024 in bf16 took
# 62 ms; with steps of each parameter in the backward 110, with two micro-batches 96, and with eight 365.
EACH_IN_BACKWARD = Choice("in-backward:mib=1")
COSTLY = ((), (EACH_IN_BACKWARD,), *((Choice(f"micro-batches:n={n}"),) for n in (2, 4, 8)))
CONSENTS = ("8bit", "bf16-state")  # change what is trained
SURE = 0.95  # of a floor by the costs of stages, which may be a few percent too high

Levers = tuple[Choice, ...]


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy or a plan with levers, whose step fits."""

    label: Choice
    plan: PlanFile | None = None
    added_seconds: float | None = None  # of the plan by its costs, to the step with its levers alone

    def under(self, case: Case, file: Path) -> Case:
        """Return the case in this way; `file` is the plan's."""
        case = case.under(self.label)
        return plan_fitting.under(case, file) if self.plan else case


class Search:
    """Runs a step with combinations of levers, each as it is and, where that does not fit, under its fastest plan."""

    def __init__(self, model: Step, limit: int, context_bytes: int, *, bytes_alone: bool = False) -> None:
        """`bytes_alone`: of steps no times are estimated, and stages are traced with all levers."""
        self._passes = schedule.REHEARSED_PASSES if model.case.is_rehearsed and not bytes_alone else MEMORY
        self._bytes_alone = bytes_alone
        self._most_host_bytes, self._gpu = model.most_host_bytes, parse(model.case.device).name
        self._model, self._limit, self._context_bytes = model, limit, context_bytes
        self._has_times = not model.case.is_predicted or self._gpu in gpu_specs.names()
        self._run: dict[Choice, Record] = {}  # by label
        self._traced: dict[Levers, Chain | None] = {}  # by the levers that change what blocks hold
        self._tried: dict[tuple[Levers, Plan], TriedPlan] = {}
        self._is_short = False  # of reserved memory alone, in what was tried last
        self._short: list[Levers] = []  # levers under which only reserved memory was too large, in this tier
        self._refused: set[Choice] = set()  # levers that cannot be applied
        self.floors: dict[Levers, int] = {}  # what the step needs at least under any plan, by the costs of its stages
        self.left_out: dict[str, str] = {}

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(self._run.values())

    def ways(self, allowed: Levers) -> list[Way]:
        """Return what fits of the first tier of which anything does. Raises UserError if the step itself cannot run."""
        as_it_is = self.run(NONE)
        if as_it_is.outcome not in ("ok", "out_of_memory"):
            raise UserError(as_it_is.detail or f"the step {as_it_is.outcome}", exit_code=1)
        if self._fits(as_it_is):
            return [Way(label=NONE)]
        if why := context_alone(self._context_bytes, self._limit):
            self.left_out |= why
            return []
        self.run_all([ALL, *(label_of(NONE, (lever,)) for lever in (LOSS, FUSED))])  # `all` to compare with in any case
        self._refuse_if_skipped(LOSS)
        self._refuse_if_skipped(FUSED)
        for taken in ((), allowed) if allowed else ((),):  # what changes the training last
            for tier in self._tiers(taken):
                self.run_all(label_of(NONE, chosen) for chosen in tier)
                self._short.clear()
                found = [way for chosen in tier for way in self._ways(chosen)]
                if found := [*found, *self._with_expandable_segments(others=bool(found))]:
                    taken_too = {lever for way in found for lever in way.label.parts}
                    self.left_out = {lever: why for lever, why in self.left_out.items() if lever not in taken_too}
                    return found
        return []

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Return the plans with each lever, and last with all: their peaks, and times as ratios to the step as it is.

        Peaks and what plans add are by the costs of stages; levers that are left out have none.
        """
        kernels = NO_FOREACH if FUSED in self._refused else FUSED
        singles = [lever for lever in (LOSS, kernels, IN_BACKWARD) if lever not in self._refused]
        asked = {"without levers": ((), False), **{f"with {lever}": ((lever,), False) for lever in singles}}
        asked |= {"with inputs on the host": ((), True), "with all": (_ordered(tuple(singles)), True)}
        curves = {name: self._curve(chosen, is_away=is_away) for name, (chosen, is_away) in asked.items()}
        return {name: curve for name, curve in curves.items() if curve}

    def _curve(self, chosen: Levers, *, is_away: bool) -> list[tuple[int, float]]:
        chain, base = self._chain(chosen, timed=True), self._chain((), timed=True)
        if chain is None or base is None:
            return []
        sure = chains.with_sure_options(chain)
        away = offloading(copied(sure, self._gpu), 0, self._most_host_bytes) if is_away else None
        points = away or next(frontiers(sure))
        none, whole = (simulator.none(one).cost.step_seconds for one in (chain, base))
        mine, plain = (self.run(label_of(NONE, one)).readings.step_seconds for one in (chosen, ()))
        own, whole = (mine[0], plain[0]) if mine and plain else (none, whole)
        added = [(seconds - none) * _num_parts(chosen) for seconds in points.step_seconds]
        return (
            [(peak, (own + more) / whole) for peak, more in zip(points.peak_bytes, added, strict=True)] if whole else []
        )

    def further(self, found: list[Way]) -> list[Way]:
        """Run what may come next after the first way: `all` with its levers, and with each that takes more besides.

        Returns those of them that fit and cost nothing but the optimizer's kernels; and each plan with fused ones too.
        """
        _, *taken = found[0].label.parts
        names = {lever.name for lever in taken}
        more = [FUSED, *(() if "micro-batches" in names else (IN_BACKWARD,)), OFFLOAD]
        added = [_ordered((*taken, lever)) for lever in more if lever.name not in names and lever not in self._refused]
        self.run_all(label_of(ALL, chosen) for chosen in ((*taken,), *added))
        cheap = [label_of(ALL, chosen) for chosen in added if set(chosen) - {*taken} == {FUSED}]
        ways = [Way(label=label) for label in cheap if self._fits(self._run[label])]
        known = {way.label for way in found}
        for way in found if FUSED not in self._refused else ():
            label = label_of(PLAN, _ordered((*{*way.label.parts[1:], FUSED},)))
            if way.plan and label not in known:
                plan = msgspec.structs.replace(way.plan, levers=label.parts[1:])
                ways.append(msgspec.structs.replace(way, label=label, plan=plan))
        return ways

    def with_consents(self, allowed: Levers) -> None:
        """Run the step that needs least with each lever that needs a consent it does not have."""
        known = [record for record in self.records if record.outcome == "ok" and self._needed(record.readings)]
        if not known or context_alone(self._context_bytes, self._limit):
            return
        least = min(known, key=lambda record: self._needed(record.readings) or 0)
        _, *taken = least.case.label.parts
        consents = [Choice(word) for word in CONSENTS if word not in allowed]
        kept = tuple(lever for lever in taken if lever not in (FUSED, NO_FOREACH))
        labels = [label_of(ALL, _ordered((*kept, consent))) for consent in consents]
        self.run_all(labels)

    def _tiers(self, allowed: Levers) -> Iterator[list[Levers]]:
        """Yield combinations of levers, those that cost least first; all have those that were allowed."""
        for costly in COSTLY:
            made = [
                _ordered((*loss, *kernels, *back, *costly, *allowed))
                for back in (((),) if costly else ((), (IN_BACKWARD,)))
                for kernels in ((), (FUSED,), (NO_FOREACH,))
                for loss in ((), (LOSS,))
                if (NO_FOREACH not in kernels or FUSED in self._refused) and not (kernels and EIGHT_BIT in allowed)
            ]
            yield [chosen for chosen in made if not self._refused.intersection(chosen)]

    def _refuse_if_skipped(self, lever: Choice) -> None:
        record = self.run(label_of(NONE, (lever,)))
        if record.outcome == "skipped":
            word = Choice(lever.name)  # of micro-batches, that of all numbers
            self.left_out[word] = (record.detail or "it cannot be applied").removeprefix(f"{word}: ")
            self._refused.add(lever)

    def _with_expandable_segments(self, *, others: bool) -> list[Way]:
        """Return what fits with them, of steps of which only the reserved memory was too large, or of some plan's."""
        short = [_ordered((*chosen, EXPANDABLE)) for chosen in dict.fromkeys(self._short)]
        found = [way for chosen in short for way in self._ways(chosen)]
        if short and not found and not others:
            self.left_out[EXPANDABLE] = "what the allocator reserves stays too large with it"
        return found

    def _ways(self, chosen: Levers) -> list[Way]:
        """Return the step with these levers if it fits, else its fastest plan or, where that is no better, `all`."""
        plain = self.run(label_of(NONE, chosen))
        if len(chosen) == 1:
            self._refuse_if_skipped(chosen[0])
        if self._fits(plain) or self._needed(plain.readings) is None:
            return [Way(label=label_of(NONE, chosen))] if self._fits(plain) else []
        if not self._help(chosen) or self._floor(chosen) * SURE > self._limit:
            return []
        every = self.run(label_of(ALL, chosen))
        self._is_short = self._lacks_only_reserved(every.readings)
        way = self.plan(chosen)
        if self._is_short and EXPANDABLE not in chosen:  # a faster plan may fit where what is reserved is not torn
            self._short.append(chosen)
        is_every = self._fits(every) and (way is None or not self._is_slower(chosen, way))
        return [Way(label=label_of(ALL, chosen))] if is_every else [way] if way else []

    def _help(self, chosen: Levers) -> bool:
        """Whether each of the levers lowers the peak, or the floor of plans, of the step with the others."""
        for lever in chosen:
            others = tuple(one for one in chosen if one != lever)
            if lever == EXPANDABLE or lever in CONSENTS:
                continue
            before, after = self._least(others), self._least(chosen)
            if not any(now and then and now <= HELPS * then for then, now in zip(before, after, strict=True)):
                if not others:
                    self.left_out[lever] = "it lowers neither the step's peak nor the least that plans need"
                return False
        return True

    def _least(self, chosen: Levers) -> tuple[int | None, int | None]:
        """Return the peak of the step as it is, and what its plans need at least."""
        plain = self.run(label_of(NONE, chosen)).readings.peak_bytes
        floor = self._floor(chosen) or self.run(label_of(ALL, chosen)).readings.peak_bytes
        return plain, floor

    def _floor(self, chosen: Levers) -> int:
        """Return what the step needs at least under any plan, by the costs of its stages; 0 if they are not known."""
        if chosen not in self.floors:
            chain = self._chain(chosen)
            if chain is None:
                return 0
            _, nbytes = simulator.largest_stage(copied(chain, self._gpu))
            self.floors[chosen] = nbytes + self._context_bytes
        return self.floors[chosen]

    def _chain(self, chosen: Levers, *, timed: bool = False) -> Chain | None:
        """Return the chain of the step with these levers; None if its blocks are no chain.

        Its stages are traced with the levers that change what they hold; of the others, what is held throughout and
        the optimizer's peak are those of the step that was run.
        """
        inside = chosen
        if not self._bytes_alone:
            inside = tuple(lever for lever in chosen if lever.name in {LOSS.name, "micro-batches"})
        is_timed = timed and self._has_times
        if inside not in self._traced or (is_timed and not _has_seconds(self._traced[inside])):
            self._traced[inside] = self._trace(inside, timed=timed)
        chain = self._traced[inside]
        if chain is None or self._bytes_alone:
            return chain
        mine, base = (self.run(label_of(NONE, one)).readings for one in (chosen, inside))
        static = chain.static_bytes + (mine.start_bytes or 0) - (base.start_bytes or 0)
        optimizer = (mine.phases or {}).get("optimizer")
        floor = optimizer.allocated if optimizer and optimizer.allocated else chain.floor_bytes
        if any(lever.name == IN_BACKWARD for lever in chosen):  # a gradient goes where its parameter steps
            free = (msgspec.structs.replace(stage, gradient_bytes=0) for stage in chain.stages)
            chain = msgspec.structs.replace(chain, stages=tuple(free))
        return msgspec.structs.replace(
            chain, static_bytes=max(0, static), floor_bytes=floor, traced_peak_bytes=mine.peak_bytes or 0
        )

    def _trace(self, inside: Levers, *, timed: bool) -> Chain | None:
        """Trace the stages of the step; those of micro-batches are stages of a smaller batch."""
        model = self._model
        case, num_parts = model.case.under(label_of(NONE, inside)), _num_parts(inside)
        if num_parts > 1 and case.batch_size and case.batch_size % num_parts == 0:
            others = tuple(lever for lever in inside if lever.name != "micro-batches")
            case = msgspec.structs.replace(case, batch_size=case.batch_size // num_parts, levers=others or UNSET)
        is_timed = timed or (case.has_estimated_times and not self._bytes_alone)
        passes = (*MEMORY, "time") if self._has_times and is_timed else MEMORY
        try:
            chain = stages(model.engine, case, model.calibration(), passes=passes)
        except UserError as error:  # the blocks are no chain
            self.left_out[" ".join(("plans", *(("with", *inside) if inside else ())))] = error.message
            return None
        if _num_parts(inside) == 1:
            return chain
        summed = sum(stage.gradient_bytes for stage in chain.stages) if case.levers != inside else 0
        parts = (msgspec.structs.replace(stage, gradient_bytes=0) for stage in chain.stages)
        return msgspec.structs.replace(chain, static_bytes=chain.static_bytes + summed, stages=tuple(parts))

    def plan(self, chosen: Levers) -> Way | None:
        """Return the fastest plan with these levers whose step fits; None if none does."""
        chain = self._chain(chosen, timed=True)
        if chain is None:
            return None
        beyond = self._context_bytes
        if not self._bytes_alone:  # a first guess
            every = self.run(label_of(ALL, chosen)).readings
            beyond = max(beyond, (self._needed(every) or 0) - (every.peak_bytes or 0))
        _, fitted = fastest(
            partial(self._try, chosen, chain), chain, self._limit, gpu=self._gpu, beyond=beyond,
            is_rehearsed=self._model.case.is_rehearsed, most_host_bytes=self._most_host_bytes,
        )  # fmt: skip
        if fitted is None:
            return None
        plan, none = fitted.point.plan, simulator.none(chain)
        added = (fitted.point.step_seconds - none.cost.step_seconds) * _num_parts(chosen)
        return Way(label=label_of(PLAN, chosen), plan=plan_file_of(chain, plan, chosen), added_seconds=added)

    def smallest(self, chosen: Levers) -> int | None:
        """Return what the smallest plan with these levers needs; None if it has no room. Raises UserError."""
        chain = self._chain(chosen)
        if chain is None:
            raise UserError(next(reversed(self.left_out.values())))
        sure = chains.with_sure_options(chain)
        points = [*frontiers(sure), offloading(copied(sure, self._gpu), 0, self._most_host_bytes)]
        smallest = min(filter(None, points), key=lambda front: front.peak_bytes[0]).point(0)
        return self._try(chosen, chain, smallest).needed_bytes

    def _try(self, chosen: Levers, chain: Chain, point: Point) -> TriedPlan:
        """Run the step with these levers under a plan, once."""
        if (chosen, point.plan) not in self._tried:
            step = msgspec.structs.replace(self._model, case=self._model.case.under(label_of(NONE, chosen)))
            self._tried[chosen, point.plan] = plan_fitting.Steps(step, chain, need=self._needed).run(point)
        tried = self._tried[chosen, point.plan]
        self._is_short |= any(self._lacks_only_reserved(record.readings) for record in tried.records)
        return tried

    def _is_slower(self, chosen: Levers, way: Way) -> bool:
        """Whether `all` is surely slower than a plan, by the costs of stages."""
        chain, every = self._chain(chosen), self.added_seconds(label_of(ALL, chosen))
        if chain is None or every is None or way.added_seconds is None or not _has_seconds(chain):
            return True
        none = simulator.none(chain).cost.step_seconds * _num_parts(chosen)
        return every - way.added_seconds > (1 - FASTER) * none

    def added_seconds(self, label: Choice) -> float | None:
        """Return how much longer a step takes under `all` than with its levers alone, by the costs of its stages."""
        chosen = tuple(lever for lever in label.parts[1:] if lever.name != OFFLOAD.name)
        chain = self._chain(chosen) if label.parts[0] == ALL else None
        if chain is None:
            return None
        plan, away = simulator.all_stages(chain), copied(chain, self._gpu)
        if OFFLOAD in label.parts and away.host_rate:
            ends = range(1, len(chain.stages) - 1)
            offloaded = tuple(end for end in ends if (end,) in plan.items and chains.fetches(chain, end + 1))
            chain, plan = away, msgspec.structs.replace(plan, offloaded=offloaded)
        added = simulate(chain, plan).step_seconds - simulator.none(chain).cost.step_seconds
        return added * _num_parts(chosen)

    def needed(self, label: Choice) -> int | None:
        """Return what the step needs under a label; None if it has no room. Raises UserError if it cannot be run."""
        return self._of(self.run(label))

    def needed_under(self, chosen: Levers, plan: PlanFile) -> int | None:
        """Return what the step needs with these levers under a plan; None if it has no room. Raises UserError."""
        with plan_fitting.written(plan) as path:
            case = plan_fitting.under(self._model.case.under(label_of(NONE, chosen)), path)
            (record,) = self._model.engine.run([Trial(case=case, passes=self._passes)])
        return self._of(record)

    def _of(self, record: Record) -> int | None:
        if record.outcome not in ("ok", "out_of_memory"):
            raise UserError(f"{record.case.label} cannot be run: {record.detail}")
        return self._needed(record.readings) if record.outcome == "ok" else None

    def run(self, label: Choice) -> Record:
        """Run the step under a label, once."""
        self.run_all([label])
        return self._run[label]

    def run_all(self, labels: Iterable[Choice]) -> None:
        """Run the step under each of these labels, those together that were not run before."""
        case = self._model.case
        owed = [label for label in dict.fromkeys(labels) if label not in self._run]
        trials = [Trial(case=case.under(label), passes=self._passes) for label in owed]
        for record in self._model.engine.run(trials) if trials else ():
            self._run[record.case.label] = record

    def _fits(self, record: Record) -> bool:
        needed = self._needed(record.readings) if record.outcome == "ok" else None
        return needed is not None and needed <= self._limit

    def _needed(self, readings: Readings) -> int | None:
        return bytes_needed(readings, self._model.case.device, self._context_bytes)

    def _lacks_only_reserved(self, readings: Readings) -> bool:
        needed, peak = self._needed(readings), readings.peak_bytes
        return needed is not None and peak is not None and peak + self._context_bytes <= self._limit < needed


def _ordered(chosen: Levers) -> Levers:
    order = list(LEVERS)
    return tuple(sorted(chosen, key=lambda lever: order.index(lever.name)))


def _num_parts(chosen: Levers) -> int:
    return next((int(lever.options["n"]) for lever in chosen if lever.name == "micro-batches"), 1)


def _has_seconds(chain: Chain | None) -> bool:
    return chain is None or any(stage.forward_seconds for stage in chain.stages)


def timed(record: Record, added_seconds: float | None, plain: dict[Choice, Record]) -> Record:
    """Return the record of a step whose inputs wait in host memory with an estimate that has the waits for copies.

    It is that of the step with its levers alone, and what is added by the costs of stages; the record's own takes the
    copies of a whole phase together, and is a bound.
    """
    others = [lever for lever in record.case.label.parts[1:] if lever.name != OFFLOAD.name]
    alone = plain.get(Choice("+".join(["none", *others])))
    if added_seconds is None or alone is None or not alone.case.has_estimated_times:
        return record
    least = record.readings.step_seconds or (0.0,)
    seconds = tuple(max(*least, second + added_seconds) for second in alone.readings.step_seconds or least)
    return msgspec.structs.replace(record, readings=msgspec.structs.replace(record.readings, step_seconds=seconds))


def proved_floors(model: Step, of: Mapping[Levers, int], context_bytes: int) -> dict[Levers, int]:
    """Return what no plan gets below, by levers: each alone, and those with the least of these floors by costs."""
    floors = {}
    least = min(of, key=of.__getitem__, default=())
    for chosen in (one for one in of if len(one) < 2 or one == least):
        with suppress(UserError):  # a step that cannot be followed
            trial = Trial(case=model.case.under(label_of("none", chosen)))
            step = followed(model.engine, trial, with_choices=True)  # and with what blocks save
            floors[chosen] = floor(step.trace, blocks=step.blocks, is_proof=True).nbytes + context_bytes
    return floors
