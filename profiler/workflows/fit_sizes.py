"""What `gcprof fit` does without a memory or a batch: the largest batch that fits, and the smallest GPU for a step.

What is said to fit was run, and so was one step further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import msgspec

from profiler.analysis.advice import MOST_TRIED, Place, Rung, largest_that_fits
from profiler.analysis.rows import rows as read_rows
from profiler.core import gpu_specs, schedule
from profiler.core.case import Choice, Trial
from profiler.core.errors import UserError
from profiler.core.gpu_specs import parse
from profiler.core.plan_file import PlanFile
from profiler.planning import plan_code
from profiler.runs import RESULTS, store
from profiler.training import label_of, refuse_conflicts
from profiler.workflows import SILENT, Screen
from profiler.workflows.fit import ROUNDS, FitRequest
from profiler.workflows.fit_search import ALL, EACH_IN_BACKWARD, FUSED, LOSS, NO_FOREACH, NONE, PLAN, Levers, Search
from profiler.workflows.plan_fitting import MEMORY
from profiler.workflows.planner import GATE, file_of
from profiler.workflows.spec import flags
from profiler.workflows.stages import ModelOnDevice, Step, context_alone, context_of, limit_of, way_of

Need = Callable[[Place], int | None]  # what a step needs at a place; None if it has no room there


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Every rung that helps, and the one to take."""

    words: tuple[str, ...]  # the model as it was asked for, for the next command
    of_batches: bool  # whether the largest batch was looked for; else the smallest GPU
    rungs: tuple[Rung, ...]  # the step as it is first
    context_source: str | None = None
    left_out: dict[str, str] = {}  # by rung or lever, why
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


def find(request: FitRequest, gpus: Sequence[str] = (), screen: Screen = SILENT) -> Sizes:
    """Find for each rung which of these GPUs, devices of cases, has the least memory that holds the step.

    Without GPUs find the largest batch within a memory; the most samples a second are chosen. Raises UserError.
    """
    request.check()
    source: str | None
    with ModelOnDevice(request.words, screen, most_host_bytes=request.most_host_bytes) as model:
        case = msgspec.structs.replace(model.case, verify="off")
        if gpus:
            context_bytes = request.context_bytes if request.context_bytes is not None else gpu_specs.CONTEXT_BYTES
            source = "assumed" if request.context_bytes is None else "as asked"
            sizes = {gpu: gpu_specs.find(parse(gpu).name).memory_bytes for gpu in sorted(gpus)}
            places = [
                Place(case=msgspec.structs.replace(case, device=gpu), limit=sizes[gpu], context_bytes=context_bytes)
                for gpu in sorted(sizes, key=lambda gpu: -sizes[gpu])
            ]
            at, ladder = places[0], of_gpus(model.step, places)
        else:
            if case.batch_size is None:
                message = f"'{case.model}' makes its own batch, of one size"
                raise UserError(message, hint="give the function a parameter batch_size")
            limit = limit_of(request.limit, model.device_bytes, of=model.case.device, say=screen.say)
            context_bytes, source = context_of(model, request.context_bytes)
            at = Place(case=case, limit=limit, context_bytes=context_bytes)
            ladder = of_batches(model.step, at)
        with screen.doing(f"looking for the {'smallest GPUs' if gpus else 'largest batches'}"):
            rungs = ladder.rungs(at, tuple(map(Choice, request.allow)))
        sizes_found = _run(model, rungs, request, screen, of_batches=not gpus)
        return msgspec.structs.replace(sizes_found, left_out=ladder.left_out, context_source=source)


class _Ladder:
    """Looks for the last place that holds a step, rung by rung. More fits in place 1 than in any other.

    `place` returns the place of a number, if there is one, and `reach` the number of the last place with room for what
    is needed there, from a number on; 0 if there is none.
    """

    def __init__(self, model: Step, place: Callable[[int], Place | None], reach: Callable[[Need, int], int]) -> None:
        self._model, self.place, self._reach = model, place, reach
        self._searches: dict[Place, Search] = {}
        self.left_out: dict[str, str] = {}

    def rungs(self, at: Place, allowed: Levers) -> list[Rung]:
        """Return the step as it is, and each rung that reaches further than those that change less.

        Levers are those that can be applied `at` a place; what costs most is tried where nothing else fits. Raises
        UserError if the step cannot be run as it is.
        """
        self._search(at).needed(NONE)
        if why := context_alone(at.context_bytes, at.limit):
            self.left_out |= why
            return [Rung(label=NONE, reach=0, place=self._at(1), beyond=None)]
        rungs = list(self._of_levers((), []))
        if self.place(rungs[-1].reach + 1) is None:
            return rungs
        loss, kernels = self._applicable(at, LOSS), self._applicable(at, FUSED) or self._applicable(at, NO_FOREACH)
        cheap = (*loss, *kernels)
        consents = self._applicable(at, *allowed)
        with_consents = []
        for lever in cheap:
            with suppress(UserError):
                refuse_conflicts(at.case.under(label_of(NONE, (lever, *consents))))
                with_consents.append(lever)
        for levers in dict.fromkeys([cheap, (*with_consents, *consents)]):
            rungs += self._of_levers(levers, rungs) if levers else ()
        if not any(rung.reach for rung in rungs):
            rungs += self._of_levers((*loss, *self._applicable(at, EACH_IN_BACKWARD)), rungs)
        return list({rung.label: rung for rung in rungs}.values())  # without its levers a rung may be one of before

    def _of_levers(self, levers: Levers, before: Sequence[Rung]) -> Iterator[Rung]:
        """Yield the strategies with these levers, as far as they reach further than without, and than no strategy."""
        least = 0 if before else -1
        for strategy in (NONE, ALL, PLAN):
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
        number, asked = self._reach(self._need(strategy, levers), start), levers
        plan = None
        while strategy == PLAN and number and not (plan := self._search(self._at(number)).plan(levers)):
            number -= 1
        for lever in levers if number else ():
            fewer = tuple(other for other in levers if other != lever)
            needed = self._need(strategy, fewer)(self._at(number))
            levers = fewer if needed is not None and needed <= self._at(number).limit else levers
        if plan and levers != asked:
            plan = self._search(self._at(number)).plan(levers) or plan
        file = plan.plan if plan else None
        if file:
            number = max(number, self._reach(lambda place: self._search(place).needed_under(levers, file), number))
        label, beyond = label_of(strategy, levers), self.place(number + 1)
        return Rung(label=label, reach=number, place=self._at(number or 1), beyond=beyond, plan=file)

    def _need(self, strategy: Choice, levers: Levers) -> Need:
        """Return what gives the bytes of a step at a place, of a plan the smallest; None if it has no room there."""
        if strategy == PLAN:
            return lambda place: self._search(place).smallest(levers)
        return lambda place: self._search(place).needed(label_of(strategy, levers))

    def _search(self, place: Place) -> Search:
        """Return what runs the step at a place, there with no more memory than the limit."""
        if place not in self._searches:
            step = msgspec.structs.replace(self._model, case=place.limited)
            self._searches[place] = Search(step, place.limit, place.context_bytes, bytes_alone=True)
        return self._searches[place]

    def _applicable(self, at: Place, *levers: Choice) -> Levers:
        """Return those of the levers that can be applied by themselves; others are left out."""
        applicable = []
        for lever in levers:
            try:
                self._search(at).needed(label_of(NONE, (lever,)))
                applicable.append(lever)
            except UserError as error:
                self.left_out[lever] = error.message
        return tuple(applicable)

    def _at(self, number: int) -> Place:
        place = self.place(number)
        assert place is not None
        return place


def of_batches(model: Step, place: Place) -> _Ladder:
    """Return the ladder whose places are batch sizes; a batch that is measured is predicted first, and confirmed."""
    limit, case = place.limit, place.case

    def sized(number: int) -> Place:
        return msgspec.structs.replace(place, case=msgspec.structs.replace(case, batch_size=number))

    def reach(needed: Need, start: int) -> int:
        first, most = max(start, case.batch_size or 1), MOST_TRIED
        if not (case.is_rehearsed or case.is_predicted):
            most = largest_that_fits(lambda size: needed(sized(size).foreseen), limit=limit, start=first)
            taken = needed(sized(most)) if most else None
            if not most or (taken is not None and taken <= limit):
                return most
            first, most = max(1, most - 1), most - 1
        return largest_that_fits(lambda size: needed(sized(size)) if size <= most else None, limit=limit, start=first)

    return _Ladder(model, sized, reach)


def of_gpus(model: Step, places: Sequence[Place]) -> _Ladder:
    """Return the ladder whose places are GPUs, the one with the most memory first."""

    def reach(needed: Need, start: int) -> int:
        """Return the smallest GPU with room: from that of the size that the largest needs, smaller ones, or larger."""

        def fits(number: int) -> bool:
            taken = needed(places[number - 1]) if number <= len(places) else None
            return taken is not None and taken <= places[number - 1].limit

        most = needed(places[0])
        number = sum(most is not None and most <= place.limit for place in places)
        while fits(number + 1):
            number += 1
        while number and not fits(number):
            number -= 1
        return number

    return _Ladder(model, lambda number: places[number - 1] if number <= len(places) else None, reach)


def _run(
    model: ModelOnDevice, rungs: Sequence[Rung], request: FitRequest, screen: Screen, *, of_batches: bool
) -> Sizes:
    """Run each rung where it fits at the most, and beyond, in a folder."""
    folder = store.new_folder(RESULTS, [f"fit {model.case.model.name}"])
    plans = {file_of(folder, f"plan {number}"): rung.plan for number, rung in enumerate(rungs) if rung.plan}
    files = iter(plans)
    rungs = [
        msgspec.structs.replace(rung, label=label_of(Choice.of(PLAN, {"file": next(files)}), rung.label.parts[1:]))
        if rung.plan
        else rung
        for rung in rungs
    ]
    here = [rung.place.limited.under(rung.label) for rung in rungs]
    beyond = [rung.beyond.limited.under(rung.label) if rung.beyond and rung.reach else None for rung in rungs]
    if model.case.has_estimated_times:
        passes = schedule.REHEARSED_PASSES if model.case.is_rehearsed else MEMORY
        trials = [Trial(case=case, passes=passes) for case in here]
    else:
        trials = [
            msgspec.structs.replace(trial, passes=("memory", "time") if trial.round == 1 else ("time",))
            for trial in schedule.in_rounds(here, ROUNDS)
        ]
    trials += [Trial(case=case, passes=MEMORY) for case in beyond if case]
    code, run = model.run(folder, tuple(trials), plans=plans)
    screen.say(f"wrote {run.folder / 'trials.jsonl'}")
    by_case = {row.case: row for row in read_rows(run.records)}
    ran = tuple(
        msgspec.structs.replace(rung, row=by_case.get(case), further=further and by_case.get(further))
        for rung, case, further in zip(rungs, here, beyond, strict=True)
    )
    exit_code = code if any(rung.reach for rung in rungs) else GATE
    found = "batch_size" if of_batches else "device"
    words = str(request.words.model), *flags(request.words, without=("model", "strategies", found))
    sizes = Sizes(words=words, of_batches=of_batches, rungs=ran, exit_code=exit_code)
    if request.emit is None or sizes.chosen is None or sizes.chosen.row is None or sizes.chosen.label == NONE:
        return sizes
    way = way_of(model.engine, sizes.chosen.row.case, sizes.chosen.plan)
    return msgspec.structs.replace(sizes, code=plan_code.emit_way(way, request.emit))
