"""Finds the largest batch that a memory holds, and the smallest GPU that holds a step: what else `gcprof fit` answers.

Each is found by rung: the step as it is, under `all` and under its fastest plan, then with levers. What is said to fit
was run there, and so was one sample more, or the next smaller GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from profiler.analysis.memory_fit import MOST_TRIED, Place, Rung, largest_that_fits
from profiler.core import gpu_specs, plan_file, schedule
from profiler.core.case import Case, Choice, Trial
from profiler.core.devices import parse
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile
from profiler.core.record import bytes_needed
from profiler.planning import lever_code
from profiler.planning.chain import Chain
from profiler.planning.plan import plan_file_of
from profiler.request.spec import flags
from profiler.runs import RESULTS, store
from profiler.training.levers import label as label_of
from profiler.training.levers import refuse_conflicts
from profiler.workflows import SILENT, Screen
from profiler.workflows.fit import ROUNDS, FitRequest
from profiler.workflows.fit_search import ALL, FUSED, IN_BACKWARD, LOSS, NO_FOREACH, NONE, PLAN, Levers
from profiler.workflows.plan_comparison import file_of
from profiler.workflows.plan_fitting import MEMORY, Steps, fit_plan, offered, under
from profiler.workflows.planner import GATE
from profiler.workflows.stages import ModelOnDevice, context_of, limit_of, stages, way_of

STRATEGIES = (NONE, ALL, PLAN)


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Every rung that helps, and the one to take."""

    words: tuple[str, ...]  # the model as it was asked for, for the next command
    of_batches: bool  # whether the largest batch was looked for; else the smallest GPU
    context_source: str | None
    rungs: tuple[Rung, ...]  # the step as it is first
    left_out: dict[str, str]  # by rung or lever, why
    code: str | None = None  # for the chosen one, if it was asked for
    exit_code: int = 0

    @property
    def plan(self) -> PlanFile | None:
        return self.chosen.plan if self.chosen else None

    @property
    def chosen(self) -> Rung | None:
        """Of batches the rung with the most samples a second, else the one that reaches furthest; None if none fits."""
        fitting = [rung for rung in self.rungs if rung.reach]
        has_rates = self.of_batches and all(rung.samples_per_second for rung in fitting)
        return max(fitting, key=lambda rung: (has_rates and rung.samples_per_second) or rung.reach, default=None)


def largest_batches(request: FitRequest, screen: Screen = SILENT) -> Sizes:
    """Find the largest batch of each rung within a memory; the most samples a second are chosen. Raises UserError."""
    request.check()
    with ModelOnDevice(request.words, screen) as model:
        if model.case.batch_size is None:
            hint = "give the function a parameter batch_size"
            raise UserError(f"'{model.case.model}' makes its own batch, of one size", hint=hint)
        limit = limit_of(model, request.limit, screen.say)
        context_bytes, source = context_of(model, request.context_bytes)
        case = msgspec.structs.replace(model.case, verify="off")
        search = _Batches(model, Place(case=case, limit=limit, context_bytes=context_bytes), request.most_host_bytes)
        with screen.doing("looking for the largest batches"):
            rungs = search.rungs(search.place(model.case.batch_size), tuple(map(Choice, request.allow)))
        return _run(model, search, rungs, request, screen, of_batches=True, context_source=source)


def smallest_gpus(request: FitRequest, gpus: Sequence[str], screen: Screen = SILENT) -> Sizes:
    """Find the GPU with the least memory that holds the step, for each rung, of devices of cases. Raises UserError."""
    request.check()
    with ModelOnDevice(request.words, screen) as model:
        context = gpu_specs.CONTEXT_BYTES if request.context_bytes is None else request.context_bytes
        by_size = sorted((-gpu_specs.find(parse(gpu).name).memory_bytes, gpu) for gpu in gpus)
        case = msgspec.structs.replace(model.case, verify="off")
        places = [
            Place(case=msgspec.structs.replace(case, device=gpu), limit=-size, context_bytes=context)
            for size, gpu in by_size
        ]
        search = _Gpus(model, places, request.most_host_bytes)
        with screen.doing("looking for the smallest GPUs"):
            rungs = search.rungs(places[0], tuple(map(Choice, request.allow)))
        source = "assumed" if request.context_bytes is None else "as asked"
        return _run(model, search, rungs, request, screen, of_batches=False, context_source=source)


class _Search(ABC):
    """Looks for the last place that holds a step, rung by rung. More fits in place 1 than in any other."""

    def __init__(self, model: ModelOnDevice, most_host_bytes: int | None) -> None:
        self._model, self._most_host_bytes = model, most_host_bytes
        self._needed: dict[tuple[Case, Choice], int | None] = {}
        self.left_out: dict[str, str] = {}

    @abstractmethod
    def place(self, number: int) -> Place | None:
        """Return the place of a number, if there is one."""

    @abstractmethod
    def reach(self, needed: Callable[[Place], int | None], start: int) -> int:
        """Return the number of the last place with room for what is needed there; 0 if there is none."""

    def rungs(self, at: Place, allowed: Levers) -> list[Rung]:
        """Return the step as it is, and each rung that reaches further than those that change less.

        Levers are those that can be applied `at` a place; what costs most is tried where nothing else fits. Raises
        UserError if the step cannot be run as it is.
        """
        self._step(at, NONE)
        rungs = list(self._of_levers((), []))
        if self.place(rungs[-1].reach + 1) is None:
            return rungs
        loss, kernels = self._applicable(at, LOSS), self._applicable(at, FUSED) or self._applicable(at, NO_FOREACH)
        cheap = (*loss, *kernels)
        consents = self._applicable(at, *allowed)
        with_consents = tuple(lever for lever in cheap if not _conflict(at.case, lever, consents))
        for levers in dict.fromkeys([cheap, (*with_consents, *consents)]):
            rungs += self._of_levers(levers, rungs) if levers else ()
        if not any(rung.reach for rung in rungs):
            rungs += self._of_levers((*loss, *self._applicable(at, IN_BACKWARD)), rungs)
        return rungs

    def _of_levers(self, levers: Levers, before: Sequence[Rung]) -> Iterator[Rung]:
        """Yield the strategies with these levers, as far as they reach further than without, and than no strategy."""
        least = 0 if before else -1
        for strategy in STRATEGIES:
            without = [rung.reach for rung in before if rung.label.parts[0].name == strategy]
            try:
                rung = self._rung(strategy, levers, start=max([1, least, *without]))
            except UserError as error:
                if not before and strategy == NONE:
                    raise
                self.left_out[label_of(strategy, levers)] = error.message
                continue
            if rung.reach > max([least, *without]):
                yield rung
                if self.place(rung.reach + 1) is None:
                    return
            least = max(least, rung.reach if strategy == NONE else 0)

    def _rung(self, strategy: Choice, levers: Levers, start: int) -> Rung:
        """Return how far a strategy reaches with those of the levers that it needs there. Raises UserError."""
        number, asked = self.reach(self._need(strategy, levers), start), levers
        plan = None
        while strategy == PLAN and number and not (plan := self._fastest(self._at(number), levers)):
            number -= 1
        for lever in levers if number else ():
            fewer = tuple(other for other in levers if other != lever)
            needed = self._need(strategy, fewer)(self._at(number))
            levers = fewer if needed is not None and needed <= self._at(number).limit else levers
        if plan and levers != asked:
            plan = self._fastest(self._at(number), levers) or plan
        if plan:
            number = max(number, self.reach(partial(self._under, levers=levers, plan=plan), number))
        label, beyond = label_of(strategy, levers), self.place(number + 1)
        return Rung(label=label, reach=number, place=self._at(number or 1), beyond=beyond, plan=plan)

    def _need(self, strategy: Choice, levers: Levers) -> Callable[[Place], int | None]:
        """Return what gives the bytes of a step at a place, of a plan the smallest; None if it has no room there."""
        if strategy == PLAN:
            return partial(self._smallest, levers=levers)
        return partial(self._step, label=label_of(strategy, levers))

    def _step(self, place: Place, label: Choice) -> int | None:
        case = place.limited.under(label)
        if (case, label) not in self._needed:
            (record,) = self._model.engine.run([Trial(case=case, passes=MEMORY)])
            if record.outcome not in ("ok", "out_of_memory"):
                raise UserError(f"{label} cannot be run: {record.detail}")
            is_done = record.outcome == "ok"
            needed = bytes_needed(record.readings, case.device, place.context_bytes) if is_done else None
            self._needed[case, label] = needed
        return self._needed[case, label]

    def _smallest(self, place: Place, levers: Levers) -> int | None:
        case = place.case.under(label_of(NONE, levers))
        if (case, PLAN) not in self._needed:
            chain = stages(self._model.engine, case, None, passes=MEMORY)
            steps = self._steps(place, levers, chain)
            frontiers = offered(chain, case, 0, self._most_host_bytes)
            tried = steps.run(min(frontiers, key=lambda points: points.peak_bytes[0]).point(0))
            self._needed[case, PLAN] = tried.needed_bytes if tried.has_room else None
        return self._needed[case, PLAN]

    def _fastest(self, place: Place, levers: Levers) -> PlanFile | None:
        """Return the fastest plan whose step fits a place; without times the smallest."""
        case, beyond = place.case.under(label_of(NONE, levers)), place.context_bytes
        has_times = not case.is_predicted or parse(case.device).name in gpu_specs.names()
        calibration = self._model.calibration()
        chain = stages(self._model.engine, case, calibration, passes=("memory", "time") if has_times else MEMORY)
        steps = self._steps(place, levers, chain)
        for points in offered(chain, case, place.limit - beyond, self._most_host_bytes):
            found = fit_plan(steps.run, points, place.limit, beyond=beyond, is_rehearsed=case.is_rehearsed)
            if found:
                return plan_file_of(chain, found.point.plan)
        return None

    def _under(self, place: Place, levers: Levers, plan: PlanFile) -> int | None:
        """Return the bytes of the step under a plan; None if it has no room."""
        with TemporaryDirectory(prefix="gcprof-") as folder:
            path = Path(folder) / plan_file.USUAL
            plan_file.write(plan, path)
            case = under(place.limited.under(label_of(NONE, levers)), path)
            (record,) = self._model.engine.run([Trial(case=case, passes=MEMORY)])
        is_done = record.outcome == "ok"
        return bytes_needed(record.readings, case.device, place.context_bytes) if is_done else None

    def _steps(self, place: Place, levers: Levers, chain: Chain) -> Steps:
        case = place.limited.under(label_of(NONE, levers))
        need = partial(bytes_needed, device=case.device, context_bytes=place.context_bytes)
        passes = () if case.is_predicted else MEMORY
        most = self._most_host_bytes
        return Steps(self._model.engine, case, chain, passes=passes, need=need, most_host_bytes=most)

    def _applicable(self, at: Place, *levers: Choice) -> Levers:
        """Return those of the levers that can be applied by themselves; others are left out."""
        applicable = []
        for lever in levers:
            try:
                self._step(at, label_of(NONE, (lever,)))
                applicable.append(lever)
            except UserError as error:
                self.left_out[lever] = error.message
        return tuple(applicable)

    def _at(self, number: int) -> Place:
        place = self.place(number)
        assert place is not None
        return place


class _Batches(_Search):
    """Places are batch sizes."""

    def __init__(self, model: ModelOnDevice, place: Place, most_host_bytes: int | None) -> None:
        super().__init__(model, most_host_bytes)
        self._place = place

    def place(self, number: int) -> Place:
        case = msgspec.structs.replace(self._place.case, batch_size=number)
        return msgspec.structs.replace(self._place, case=case)

    def reach(self, needed: Callable[[Place], int | None], start: int) -> int:
        """Return the largest batch; one that is measured is predicted first, and confirmed."""
        limit, case = self._place.limit, self._place.case
        first, number = max(start, case.batch_size or 1), MOST_TRIED
        if not (case.is_rehearsed or case.is_predicted):
            number = largest_that_fits(lambda size: needed(self.place(size).foreseen), limit=limit, start=first)
            taken = needed(self.place(number)) if number else None
            if not number or (taken is not None and taken <= limit):
                return number
            first, number = max(1, number - 1), number - 1
        return largest_that_fits(
            lambda size: needed(self.place(size)) if size <= number else None, limit=limit, start=first
        )


class _Gpus(_Search):
    """Places are GPUs, the one with the most memory first."""

    def __init__(self, model: ModelOnDevice, places: Sequence[Place], most_host_bytes: int | None) -> None:
        super().__init__(model, most_host_bytes)
        self._places = places

    def place(self, number: int) -> Place | None:
        return self._places[number - 1] if number <= len(self._places) else None

    def reach(self, needed: Callable[[Place], int | None], start: int) -> int:
        """Return the smallest GPU with room: from that of the size that the largest needs, smaller ones, or larger."""

        def fits(place: Place | None) -> bool:
            taken = needed(place) if place else None
            return taken is not None and place is not None and taken <= place.limit

        most = needed(self._at(1))
        number = sum(most is not None and most <= place.limit for place in self._places)
        while fits(self.place(number + 1)):
            number += 1
        while number and not fits(self.place(number)):
            number -= 1
        return number


def _conflict(case: Case, lever: Choice, others: Sequence[Choice]) -> bool:
    try:
        refuse_conflicts(case.under(label_of(NONE, (lever, *others))))
    except UserError:
        return True
    return False


def _run(
    model: ModelOnDevice, search: _Search, rungs: Sequence[Rung], request: FitRequest, screen: Screen, **about: Any
) -> Sizes:
    """Run each rung where it fits at the most, and beyond, in a folder."""
    folder = store.new_folder(RESULTS, [f"fit {model.case.model.name}"])
    files = [file_of(folder, f"plan {number}") for number in range(len(rungs))]
    labels = [
        Choice("+".join([Choice.of("plan", {"file": file}), *rung.label.parts[1:]])) if rung.plan else rung.label
        for rung, file in zip(rungs, files, strict=True)
    ]
    here = [rung.place.limited.under(label) for rung, label in zip(rungs, labels, strict=True)]
    beyond = [
        rung.beyond.limited.under(label) if rung.beyond and rung.reach else None
        for rung, label in zip(rungs, labels, strict=True)
    ]
    if model.case.has_estimated_times:
        passes = schedule.REHEARSED_PASSES if model.case.is_rehearsed else MEMORY
        trials = [Trial(case=case, passes=passes) for case in here]
    else:
        trials = [
            msgspec.structs.replace(trial, passes=("memory", "time") if trial.round == 1 else ("time",))
            for trial in schedule.in_rounds(here, ROUNDS)
        ]
    trials += [Trial(case=case, passes=MEMORY) for case in beyond if case]
    plans = {file: rung.plan for rung, file in zip(rungs, files, strict=True) if rung.plan}
    code, run = model.run(folder, tuple(trials), plans=plans, typed=request.typed)
    screen.say(f"wrote {run.folder / 'trials.jsonl'}")
    by_case = {case: tuple(record for record in run.records if record.case == case) for case in (*here, *beyond)}
    ran = tuple(
        msgspec.structs.replace(rung, label=label, records=by_case[case], further=next(iter(by_case[further]), None))
        for rung, label, case, further in zip(rungs, labels, here, beyond, strict=True)
    )
    exit_code = code if any(rung.reach for rung in rungs) else GATE
    found = "batch_size" if about["of_batches"] else "device"
    words = str(request.words.model), *flags(request.words, without=("model", "strategies", found))
    sizes = Sizes(words=words, rungs=ran, left_out=search.left_out, exit_code=exit_code, **about)
    if request.emit is None or sizes.chosen is None or sizes.chosen.record is None or sizes.chosen.label == NONE:
        return sizes
    way = way_of(model.engine, sizes.chosen.record.case, sizes.chosen.plan)
    return msgspec.structs.replace(sizes, code=lever_code.emit(way, request.emit))
