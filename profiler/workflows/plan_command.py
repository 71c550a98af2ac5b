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
from profiler.planning.solver import Point
from profiler.scripts import launch
from profiler.scripts.launch import Asked, Ended
from profiler.scripts.report import NOT_MET, Process, Variant, phase_text
from profiler.workflows.plan_fitting import TriedPlan, fit_plan, frontiers

PLANNED = ("forward", "backward")  # phases whose memory a plan changes
GATE = 5  # the exit code if no plan fits
NO_GPU = 3
ANY = 2**40  # bytes: a stand-in for a peak that is not known
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
    end, whole, asked_whole = rehearsed_whole(asked, say)
    budget_bytes = parse_budget(budget, whole_bytes=peak_bytes(whole))
    found = CommandPlan(whole=whole, budget_bytes=budget_bytes)
    if asked_whole is asked and peak_bytes(whole) <= budget_bytes:
        return msgspec.structs.replace(found, fits=True)
    if why := _unchanged(whole, budget_bytes):
        return msgspec.structs.replace(found, why=why)
    say("tracing a step of the model that it trains")
    module, chain = traced_chain(asked_whole, end)
    search = _Search(asked, chain, budget_bytes, say)
    fitted = search.run(levels, beyond=_beyond(whole, chain))
    found = msgspec.structs.replace(found, module=module, num_tried=len(search.tried))
    if fitted is None:
        return msgspec.structs.replace(found, why=search.why())
    return msgspec.structs.replace(found, plan=plan_file_of(chain, fitted.point.plan), planned=search.variant(fitted))


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


def rehearsed_whole(asked: Asked, say: Say) -> tuple[Ended, Variant, Asked]:
    """Rehearse the command as it is; without a limit of memory, which is returned, if these GPUs have too little."""
    end, variant = rehearsed(asked, "none")
    if variant.outcome == "out_of_memory":
        say("out of memory: once more without a limit of memory, to see what it needs")
        asked = launch.unlimited(asked)
        end, variant = rehearsed(asked, "none")
    if not variant.processes and variant.outcome == "ok":
        why = f": {end.no_device[0]}" if end.no_device else ""
        raise UserError(
            f"no process of the command used a GPU{why}", hint="gcprof rehearse -- COMMAND", exit_code=NO_GPU
        )
    if variant.outcome != "ok":
        raise failure(end, variant)
    return end, variant, asked


def rehearsed(asked: Asked, label: str, *, stdout: int = 2) -> tuple[Ended, Variant]:
    """Rehearse the whole command. Raises UserError if it was interrupted, or its Python lacks what a strategy needs."""
    asked = msgspec.structs.replace(asked, strategy=label)
    end = launch.run(asked, stdout=stdout)
    if end.interrupted:
        raise UserError("interrupted: there is no plan", exit_code=end.exit_code)
    variant = Variant.of(end, asked, {})
    strategy, *levers = Choice(label).parts
    named = "+".join([strategy.name, *levers])
    return end, msgspec.structs.replace(variant, words={**variant.words, "strategy": named})


def failure(end: Ended, variant: Variant) -> UserError:
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


def traced_chain(asked: Asked, end: Ended, *, stdout: int = 2) -> tuple[str, Chain]:
    """Rehearse the command up to its largest step after the first, with the levers of its label alone.

    Returns the model's class and its chain. Raises UserError where there is none.
    """
    traced = launch.run(msgspec.structs.replace(asked, chain_step=_largest_step(end)), stdout=stdout)
    if traced.interrupted:
        raise UserError("interrupted: there is no plan", exit_code=traced.exit_code)
    made = [row for row in traced.rows if row["kind"] == "chain"]
    chains = [(row["module"], msgspec.convert(row["chain"], Chain)) for row in made if row["chain"]]
    if chains:
        return max(chains, key=lambda pair: pair[1].traced_peak_bytes)
    applied = [row for row in traced.rows if row["kind"] == "applied" and "module" in row]
    refused = [f"{row['module']}: {row['why']}" for row in (*made, *applied) if row["why"]]
    detail = next((process.detail for process in traced.processes if process.detail), None)
    why = "; ".join(dict.fromkeys(refused)) or detail or NOT_MET
    raise UserError(f"there is no model to plan for: {why}", hint="gcprof rehearse --strategies all -- COMMAND")


def _largest_step(end: Ended) -> int:
    """Return the number of the step, from 0, whose forward or backward takes most; the first only if it is alone."""
    rows = [row for row in end.rows if row["kind"] == "phase" and row["phase"] in PLANNED]
    later = [row for row in rows if row["step"]] or rows
    return int(max(later, key=lambda row: max((device[0] for device in row["devices"].values()), default=0))["step"])


class _Search:
    """Rehearses the command under plans of a chain until one fits."""

    def __init__(self, asked: Asked, chain: Chain, budget_bytes: int, say: Say) -> None:
        self._asked, self._chain, self._budget, self._say = asked, chain, budget_bytes, say
        self.tried: list[tuple[TriedPlan, Variant]] = []

    def run(self, levels: int | None, *, beyond: int) -> TriedPlan | None:
        """Return the fastest plan that fits, of as few levels as do; `beyond` is what the costs do not include."""
        fitted = (fit_plan(self._try, points, self._budget, beyond=beyond) for points in frontiers(self._chain, levels))
        return next(filter(None, fitted), None)

    def variant(self, plan: TriedPlan) -> Variant:
        """Return the command under a plan that was tried."""
        return next(variant for tried, variant in self.tried if tried.point == plan.point)

    def why(self) -> str:
        """Return why no plan fits, once all have been tried."""
        least, variant = min(self.tried, key=lambda pair: pair[0].needed_bytes or ANY)
        name, _ = candidates.largest_stage(self._chain)
        if least.needed_bytes is None:
            smallest = bytes_text(least.point.peak_bytes)
            return f"the GPU has no room for the smallest plan, of {smallest} by its costs"
        peaks = [peak_in(variant, of_plan=of_plan) for of_plan in (True, False)]
        _, phase = max(filter(None, peaks), key=lambda pair: pair[1].peak_bytes or 0)
        return (
            f"the smallest plan that was rehearsed takes {bytes_text(least.needed_bytes)}, in {phase_text(phase)}; "
            f"'{name}' sets the smallest peak of all plans"
        )

    def _try(self, point: Point) -> TriedPlan:
        with tempfile.TemporaryDirectory(prefix="gcprof-plan-") as folder:
            path = Path(folder) / plan_file.USUAL
            plan_file.write(plan_file_of(self._chain, point.plan), path)
            end, variant = rehearsed(self._asked, str(Choice.of(PLAN, {"file": path})))
        if variant.outcome not in ("ok", "out_of_memory"):
            raise failure(end, variant)
        has_room = variant.outcome == "ok"
        tried = TriedPlan(point=point, needed_bytes=peak_bytes(variant) if has_room else None, has_room=has_room)
        self.tried.append((tried, variant))
        told = f"takes {bytes_text(peak_bytes(variant))}" if has_room else "runs out of memory"
        self._say(f"under a plan of {bytes_text(point.peak_bytes)} by its costs the command {told}")
        return tried
