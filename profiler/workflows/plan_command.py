"""Finds a plan for the model that a user's command trains, and proves it by rehearsing the command under it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from profiler.core import plan_file
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile
from profiler.core.script import Phase
from profiler.core.units import bytes_text, parse_budget
from profiler.planning import candidates
from profiler.planning.chain import Chain
from profiler.planning.plan import plan_file_of
from profiler.planning.solver import Frontier, Point, best, frontier
from profiler.scripts import launch
from profiler.scripts.launch import Asked, Ended
from profiler.scripts.report import NOT_MET, Process, Variant, phase_text

PLANNED = ("forward", "backward")  # phases whose memory a plan changes
GATE = 5  # the exit code if no plan fits
NO_GPU = 3
TRIES = 5  # rehearsals of plans of one depth
BOLDER = 2  # rehearsals of faster plans, where the costs are too high
DEPTHS = (1, 2, 4, 8)  # levels of checkpoints, tried in turn unless the user says how deep
POINTS, LONG = 1000, 200  # of the frontier of a long chain, and its stages
ANY = 2**40  # bytes: a stand-in for a peak that is not known yet
PLAN = "plan"
Say = Callable[[str], None]


class CommandPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a budget for a command: a plan that was rehearsed within it, or why there is none."""

    whole: Variant  # the command as it is
    budget_bytes: int
    plan: PlanFile | None = None
    planned: Variant | None = None  # the command under the plan
    module: str = ""  # the class of the model that the plan is for
    fits: bool = False  # as it is
    why: str | None = None  # no plan fits
    num_tried: int = 0  # plans that were rehearsed

    @property
    def exit_code(self) -> int:
        return GATE if self.why else 0


def check(budget: str) -> None:
    """Raise UserError for a budget that is none, before anything runs."""
    parse_budget(budget, whole_bytes=ANY)


def plan(asked: Asked, budget: str, *, levels: int | None = None, say: Say = lambda text: None) -> CommandPlan:
    """Return the fastest plan under which the whole command, rehearsed, takes at most the budget of allocated memory.

    A percentage is of the command's own peak. Raises UserError where the command fails, or has no model to plan for.
    """
    assert asked.gpus, "seconds are those of a GPU by name"
    say("rehearsing the command as it is")
    end, whole, asked_whole = _rehearsed_whole(asked, say)
    budget_bytes = parse_budget(budget, whole_bytes=peak_bytes(whole))
    found = CommandPlan(whole=whole, budget_bytes=budget_bytes)
    if asked_whole is asked and peak_bytes(whole) <= budget_bytes:
        return msgspec.structs.replace(found, fits=True)
    if why := _unchanged(whole, budget_bytes):
        return msgspec.structs.replace(found, why=why)
    say("tracing a step of the model that it trains")
    module, chain = _chain(asked_whole, end)
    with tempfile.TemporaryDirectory(prefix="gcprof-plan-") as folder:
        search = _Search(asked, chain, budget_bytes, Path(folder) / "plan.json", say)
        tried = search.run(levels, reserve=_beyond(whole, chain))
    found = msgspec.structs.replace(found, module=module, num_tried=search.num_tried)
    if tried is None:
        return msgspec.structs.replace(found, why=search.why())
    return msgspec.structs.replace(found, plan=plan_file_of(chain, tried.point.plan), planned=tried.variant)


def peak_bytes(variant: Variant) -> int:
    """Return the most bytes that a process has allocated, in any phase."""
    return max(process.peak_bytes or 0 for process in variant.processes)


def peak_in(variant: Variant, *, of_plan: bool) -> tuple[Process, Phase] | None:
    """Return the phase with the largest peak, of those that a plan changes or of the others; None if there is none."""
    phases = (
        (process, phase)
        for process in variant.processes
        for phase in process.phases
        if (phase.name in PLANNED) is of_plan
    )
    return max(phases, key=lambda pair: pair[1].peak_bytes or 0, default=None)


def _rehearsed_whole(asked: Asked, say: Say) -> tuple[Ended, Variant, Asked]:
    """Rehearse the command as it is; without a limit of memory, which is returned, if these GPUs have too little."""
    end, variant = _rehearsed(asked, "none")
    if variant.outcome == "out_of_memory":
        say("out of memory: once more without a limit of memory, to see what it needs")
        asked = launch.unlimited(asked)
        end, variant = _rehearsed(asked, "none")
    if not variant.processes and variant.outcome == "ok":
        why = f": {end.no_device[0]}" if end.no_device else ""
        raise UserError(
            f"no process of the command used a GPU{why}", hint="gcprof rehearse -- COMMAND", exit_code=NO_GPU
        )
    if variant.outcome != "ok":
        raise _failed(end, variant)
    return end, variant, asked


def _rehearsed(asked: Asked, strategy: str) -> tuple[Ended, Variant]:
    """Rehearse the whole command. Raises UserError if it was interrupted, or its Python lacks what a strategy needs."""
    asked = msgspec.structs.replace(asked, strategy=strategy)
    end = launch.run(asked, on_line=lambda line: None, stdout=2)
    if end.interrupted:
        raise UserError("interrupted: there is no plan", exit_code=end.exit_code)
    if end.needs:
        raise UserError(end.needs)
    assert asked.gpus
    is_cut = bool(asked.steps or asked.batches)
    variant = Variant.of(
        end, gpu=asked.gpus, values={}, is_cut=is_cut, strategy=strategy, assumed=asked.values, command=asked.words
    )
    name = strategy.partition(":")[0]
    return end, msgspec.structs.replace(variant, words={**variant.words, "strategy": name})


def _failed(end: Ended, variant: Variant) -> UserError:
    detail = variant.detail or next((process.detail for process in variant.processes if process.detail), None)
    word = variant.outcome.replace("_", " ")
    return UserError(
        f"the command {word}{f': {detail}' if detail else ''}", hint="gcprof rehearse -- COMMAND shows where",
        exit_code=end.exit_code or 1,
    )  # fmt: skip


def _unchanged(whole: Variant, budget_bytes: int) -> str | None:
    """Return why no plan can help: a phase that no plan changes is over the budget; None if there is no such phase."""
    other, training = peak_in(whole, of_plan=False), peak_in(whole, of_plan=True)
    if training is None:
        raise UserError(NOT_MET, hint="gcprof rehearse -- COMMAND shows its phases")
    if other is None or (other[1].peak_bytes or 0) <= budget_bytes:
        return None
    peaks = [bytes_text(phase.peak_bytes or 0) for _, phase in (other, training)]
    at = f" ({other[1].line})" if other[1].line else ""
    return (
        f"{phase_text(other[1])} takes {peaks[0]}{at}, which no plan of checkpoints changes; forward and backward take "
        f"{peaks[1]} at most"
    )


def _beyond(whole: Variant, chain: Chain) -> int:
    """Return the bytes that forward and backward of the command take beyond what the costs of its stages add up to."""
    training = peak_in(whole, of_plan=True)
    assert training, "it was looked for before"
    if any(applied.own for process in whole.processes for applied in process.applied):
        return 0  # its own checkpoints are off in the traced step
    return max(0, (training[1].peak_bytes or 0) - candidates.none(chain).cost.peak_bytes)


def _chain(asked: Asked, end: Ended) -> tuple[str, Chain]:
    """Rehearse the command up to its largest step after the first; return the model's class and its chain."""
    traced = launch.run(
        msgspec.structs.replace(asked, chain_step=_largest_step(end)), on_line=lambda line: None, stdout=2
    )
    if traced.interrupted:
        raise UserError("interrupted: there is no plan", exit_code=traced.exit_code)
    if traced.needs:
        raise UserError(traced.needs)
    rows = [row for rows in traced.lines.values() for row in rows]
    made = [row for row in rows if row["kind"] == "chain"]
    chains = [(row["module"], msgspec.convert(row["chain"], Chain)) for row in made if row["chain"]]
    if chains:
        return max(chains, key=lambda pair: pair[1].traced_peak_bytes)
    refused = [f"{row['module']}: {row['why']}" for row in (*made, *_applied(rows)) if row["why"]]
    detail = next((process.detail for process in traced.processes if process.detail), None)
    why = "; ".join(dict.fromkeys(refused)) or detail or NOT_MET
    raise UserError(f"there is no model to plan for: {why}", hint="gcprof rehearse --strategies all -- COMMAND")


def _applied(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [row for row in rows if row["kind"] == "applied" and "module" in row]


def _largest_step(end: Ended) -> int:
    """Return the number of the step, from 0, whose forward or backward takes most; the first only if it is alone."""
    rows = [row for rows in end.lines.values() for row in rows if row["kind"] == "phase" and row["phase"] in PLANNED]
    later = [row for row in rows if row["step"]] or rows
    return int(max(later, key=lambda row: max((device[0] for device in row["devices"].values()), default=0))["step"])


class _Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and the command rehearsed under it."""

    point: Point
    variant: Variant
    needed_bytes: int | None  # None where the GPU has too little memory
    budget_bytes: int

    @property
    def fits(self) -> bool:
        return self.needed_bytes is not None and self.needed_bytes <= self.budget_bytes


class _Search:
    """Rehearses the command under plans of a chain until one fits."""

    def __init__(self, asked: Asked, chain: Chain, budget_bytes: int, path: Path, say: Say) -> None:
        self._asked, self._chain, self._budget, self._path, self._say = asked, chain, budget_bytes, path, say
        self._least: _Tried | None = None  # of plans that did not fit, what took least
        self.num_tried = 0

    def run(self, levels: int | None, *, reserve: int) -> _Tried | None:
        """Return the fastest plan that fits, of as few levels as do; `reserve` is what the costs do not include."""
        smallest: int | None = None
        for depth in (levels,) if levels else DEPTHS:
            points = frontier(self._chain, levels=depth, points=POINTS if len(self._chain.stages) > LONG else None)
            if smallest is not None and points.peak_bytes[0] >= smallest:
                return None  # no deeper plan is smaller
            smallest = points.peak_bytes[0]
            if tried := self._fitted(points, self._budget - reserve):
                return self._bolder(points, tried) or tried
        return None

    def why(self) -> str:
        """Return why no plan fits, once all have been tried."""
        assert self._least, "the smallest plan is tried in any case"
        name, _ = candidates.largest_stage(self._chain)
        needed = self._least.needed_bytes
        if needed is None:
            return (
                f"the GPU has no room for the smallest plan, of {bytes_text(self._least.point.peak_bytes)} by its costs"
            )
        peaks = [peak_in(self._least.variant, of_plan=of_plan) for of_plan in (True, False)]
        _, phase = max(filter(None, peaks), key=lambda pair: pair[1].peak_bytes or 0)
        return (
            f"the smallest plan that was rehearsed takes {bytes_text(needed)}, in {phase_text(phase)}; "
            f"'{name}' sets the smallest peak of all plans"
        )

    def _fitted(self, points: Frontier, limit: int) -> _Tried | None:
        for tries_left in reversed(range(TRIES)):
            point = (best(points, limit) if tries_left else None) or points.point(0)
            tried = self._try(point)
            if tried.fits:
                return tried
            if point.peak_bytes == points.peak_bytes[0]:
                return None
            short = None if tried.needed_bytes is None else tried.needed_bytes - self._budget
            limit = (
                (point.peak_bytes + points.peak_bytes[0]) // 2 if short is None else point.peak_bytes - max(1, short)
            )
        return None

    def _bolder(self, points: Frontier, fitted: _Tried) -> _Tried | None:
        """Return a faster plan that fits too, if the command takes less than the plan's costs say."""
        better: _Tried | None = None
        spare = self._budget - (fitted.needed_bytes or self._budget)
        limit = fitted.point.peak_bytes + spare
        for _ in range(BOLDER if spare > 0 else 0):
            point = best(points, limit)
            if point is None or point.step_seconds >= (better or fitted).point.step_seconds:
                break
            tried = self._try(point)
            if tried.needed_bytes is None:
                break
            better = tried if tried.fits else better
            limit = point.peak_bytes + self._budget - tried.needed_bytes - (not tried.fits)
        return better

    def _try(self, point: Point) -> _Tried:
        plan_file.write(plan_file_of(self._chain, point.plan), self._path)
        end, variant = _rehearsed(self._asked, str(Choice.of(PLAN, {"file": self._path})))
        self.num_tried += 1
        if variant.outcome not in ("ok", "out_of_memory"):
            raise _failed(end, variant)
        needed = peak_bytes(variant) if variant.outcome == "ok" else None
        tried = _Tried(point=point, variant=variant, needed_bytes=needed, budget_bytes=self._budget)
        told = "runs out of memory" if needed is None else f"takes {bytes_text(needed)}"
        self._say(f"under a plan of {bytes_text(point.peak_bytes)} by its costs the command {told}")
        if not tried.fits and (self._least is None or (needed or ANY) < (self._least.needed_bytes or ANY)):
            self._least = tried
        return tried
