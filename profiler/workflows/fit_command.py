"""Finds what makes a user's command fit a memory, by levers and plans, or a budget, by a plan of checkpoints alone.

Each row is the whole command, rehearsed. What has to fit is what the process that reserves most has reserved, in any
phase, and CUDA's context; of a budget, the most that a process has allocated.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from functools import cache, partial
from math import inf
from typing import Any

import msgspec

from profiler.core import gpu_specs
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile
from profiler.core.record import Phase
from profiler.core.units import bytes_text, parse_budget
from profiler.planning import plan_code, simulator
from profiler.planning.chain import Chain, plan_file_of
from profiler.planning.solver import Point
from profiler.scripts import launch
from profiler.scripts.report import NOT_MET, WITHIN, Asked, Ended, Variant, phase_text, phases_of
from profiler.training import label_of
from profiler.workflows import fit_search
from profiler.workflows.fit_search import ALL, LOSS, NONE, PLAN, Levers
from profiler.workflows.plan_fitting import TriedPlan, fastest, written
from profiler.workflows.planner import ANY, GATE
from profiler.workflows.stages import context_alone, limit_of

KERNELS = (fit_search.FUSED, fit_search.NO_FOREACH)  # the latter where the optimizer has no fused kernels
LEAST = 0.01  # of a peak: what takes less off it is tried where nothing else fits
RAN = ("ok", "out_of_memory")
PLANNED = ("forward", "backward")  # phases whose memory a plan changes
NO_GPU = 3  # the exit code
NO_STEP = "no step of its optimizer ended the trace; try more --batches or --steps"
NO_PROCESS = "no process of the command used a GPU"
Say = Callable[[str], None]


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """The whole command under a label, rehearsed."""

    variant: Variant
    end: Ended
    needed_bytes: int | None = None  # of what has to fit; None where it ran out of memory
    plan: PlanFile | None = None

    @property
    def label(self) -> str:
        """The strategy with its levers; a plan by its name alone."""
        return self.variant.words["strategy"]

    @property
    def changed(self) -> list[dict[str, Any]]:
        """What code needs of each model that was changed."""
        rows = [row for row in self.end.rows if row["kind"] == "applied" and row.get("code")]
        return [{"module": row["module"], **row["code"]} for row in rows]

    @property
    def step_seconds(self) -> float:
        """The estimated seconds of a step of its slowest process, endless where they are not known."""
        return self.variant.estimated_seconds or inf

    @property
    def has_run(self) -> bool:
        """Whether it ran to its end, or out of memory."""
        return self.variant.outcome in RAN and bool(self.variant.processes)

    @property
    def need(self) -> str:
        return "runs out of memory" if self.needed_bytes is None else f"needs {bytes_text(self.needed_bytes)}"

    def fits(self, limit_bytes: int) -> bool:
        return self.needed_bytes is not None and self.needed_bytes <= limit_bytes


def fit(asked: Asked, limit: int | float, say: Say = lambda text: None) -> Search:
    """Find what makes the whole command fit so many bytes of each GPU's memory, or such a part of it.

    Raises UserError where the command fails as it is, or never calls a model in training.
    """
    assert asked.gpus, "a command is rehearsed on a GPU by name"
    limit_bytes = limit_of(limit, memory_bytes(asked.gpus), of=asked.gpus.name, say=say)
    search = Search(asked, lambda needed: limit_bytes, say, has_levers=True)
    search.chosen = search.with_levers()
    return search


def plan(asked: Asked, budget: str, *, levels: int | None = None, say: Say = lambda text: None) -> Search:
    """Find the fastest plan under which the whole command takes at most the budget of allocated memory.

    A percentage is of the command's own peak. Raises UserError where the command fails, or has no model to plan for.
    """
    search = Search(
        asked, lambda needed: parse_budget(budget, whole_bytes=needed), say, has_levers=False, levels=levels
    )
    fits = search.has_room and search.ways[0].fits(search.limit_bytes)
    search.chosen = search.ways[0] if fits else search.planned()
    return search


def memory_bytes(gpus: gpu_specs.Device) -> int:
    """Return the bytes of each of these GPUs."""
    return gpus.bytes or gpu_specs.find(gpus.name).memory_bytes


def code(way: Way, kind: str) -> str:
    """Return code to paste into the script, of one of the kinds of lever_code. Raises UserError."""
    changed = [one for place, one in enumerate(way.changed) if one not in way.changed[:place]]  # once for all ranks
    models = [one for one in changed if one["heads"] or one["plan"] or way.plan]
    if len(models) > 1:
        message = "--emit: several models of the command were changed, and code is for one"
        raise UserError(message, hint="gcprof rehearse --module NAME --strategies LABEL -- COMMAND changes one")
    made = (models or changed)[0]
    plan = way.plan or (made["plan"] and msgspec.convert(made["plan"], PlanFile))
    heads, optimizer = dict.fromkeys(made["heads"], ""), made["optimizer"]
    levers = Choice(way.label).parts[1:]
    step = plan_code.Way(
        label=way.label, levers=levers, plan=plan, heads=heads, has_loss=True, optimizer=optimizer,
        has_batchnorm=made["has_batchnorm"], module=made["module"] if models else None,
    )  # fmt: skip
    return plan_code.emit_way(step, kind)


class _Unmet(Exception):
    """The command trains no model that can be changed."""


class _Refused(UserError):
    """The command did not run to its end."""

    def __init__(self, way: Way) -> None:
        message = f"the command {': '.join(filter(None, (way.variant.outcome.replace('_', ' '), way.variant.why)))}"
        hint = "gcprof rehearse -- COMMAND shows where"
        super().__init__(message, hint=hint, exit_code=way.end.exit_code or 1)


class Search:
    """Rehearses a command with combinations of levers, each as it is and, where none fits so, under its plans."""

    def __init__(
        self, asked: Asked, limit: Callable[[int], int], say: Say, *, has_levers: bool, levels: int | None = None
    ) -> None:
        """Rehearse the command as it is; without a limit of memory if these GPUs have too little.

        `limit` returns what has to fit, from what it needs. Without levers that is what is allocated on these GPUs, and
        plans have `levels`. Raises UserError.
        """
        assert asked.gpus
        self._asked, self._say, self._gpu = asked, say, asked.gpus.name
        self._has_levers, self._levels = has_levers, levels
        self._context = asked.gpus.context_bytes or 0 if has_levers else 0
        self.has_room = True  # of these GPUs, for the command as it is
        self.has_spare = True  # else what is chosen runs only where its GPUs have no more than the limit
        self.num_rehearsed = 1  # whole commands
        self.module = ""  # the class of the model that was planned for last
        self.others: tuple[str, ...] = ()  # those of smaller models beside it, which plans leave as they are
        self.left_out: dict[str, str] = {}  # by lever, why
        self.floors: dict[Levers, int] = {}  # by levers with which no plan fits: what none needs less than
        self.chosen: Way | None = None
        say(f"{NONE}: rehearsing the command as it is")
        whole = self._rehearsed(NONE, stdout=2)
        self._roomy = asked
        if whole.variant.outcome == "out_of_memory":
            say("out of memory: once more without a limit of memory, to see what it needs")
            self.has_room, self._asked, self._roomy = False, launch.unlimited(asked), launch.unlimited(asked)
            whole = self._rehearsed(NONE, stdout=2)
            self._asked = self._roomy if has_levers else asked
        if not whole.variant.processes and whole.variant.outcome == "ok":
            why = f": {whole.end.no_device[0]}" if whole.end.no_device else ""
            message = f"{NO_PROCESS}{why}"
            raise UserError(message, hint="gcprof rehearse -- COMMAND", exit_code=NO_GPU)
        if whole.variant.outcome != "ok":
            raise _Refused(whole)
        self.limit_bytes = limit(whole.needed_bytes or 0)
        # By label, the command as it is first; of plans what fits, or needs least; None where a lever cannot be applied
        self._ways: dict[str, Way | None] = {NONE: whole}

    @property
    def ways(self) -> tuple[Way, ...]:
        """All ways that were rehearsed; the command as it is comes first."""
        return tuple(filter(None, self._ways.values()))

    @property
    def least(self) -> Way:
        """The way that needs least."""
        return min(self.ways, key=lambda way: way.needed_bytes or ANY)

    @property
    def exit_code(self) -> int:
        return 0 if self.chosen else GATE

    def with_levers(self) -> Way | None:
        """Return the way to take: as it is, else of the first tier of which any fits the one estimated fastest."""
        whole = self.ways[0]
        if why := context_alone(self._context, self.limit_bytes):
            self.left_out |= why
            return None
        if whole.fits(self.limit_bytes):
            return whole
        try:
            for tier in self._tiers(self._kernels()):
                if way := self._of_tier(tier) or self._of_tier(self._torn(tier)):
                    return way
        except _Unmet as error:
            self.left_out["plans and levers"] = str(error)
        return self._without_spare()

    def _without_spare(self) -> Way | None:
        """Return the fastest way that runs on GPUs of no more memory; None if that which needs least does not.

        There PyTorch gives back what it has cached, and cuDNN takes smaller workspaces.
        """
        assert self._asked.gpus
        gpus = msgspec.structs.replace(self._asked.gpus, bytes=self.limit_bytes)
        self._asked, self.has_spare = msgspec.structs.replace(self._asked, gpus=gpus), False
        ran = {self.least.label: self._again(self.least)}
        if not ran[self.least.label].fits(self.limit_bytes):
            return None
        for way in sorted(self.ways, key=lambda way: (way.step_seconds, len(way.label))):
            again = ran.get(way.label) or self._again(way)
            if again.fits(self.limit_bytes):
                self._ways[way.label] = again
                self.left_out = {name: why for name, why in self.left_out.items() if not name.startswith("plans")}
                return again
        return None

    def _again(self, way: Way) -> Way:
        again = self._rehearsed(way.label, way.plan)
        self.num_rehearsed += 1
        self._say(f"{way.label}, on a GPU of {bytes_text(self.limit_bytes)}: {again.need}")
        return again

    def _of_tier(self, tier: list[Levers]) -> Way | None:
        """Return the first that fits without a plan, else of the planned ones that which is estimated fastest."""
        plain = (self._as_it_is(chosen) for chosen in tier)
        if fitting := next((way for way in plain if way and way.fits(self.limit_bytes)), None):
            return fitting
        planned = [way for chosen in tier for way in [self._planned_or_every(chosen)] if way]
        return min(planned, key=lambda way: (way.step_seconds, len(way.label)), default=None)

    def _torn(self, tier: list[Levers]) -> list[Levers]:
        """Return those of which only what is reserved is too large, with segments that grow."""
        labels = {chosen: [label_of(one, chosen) for one in (NONE, PLAN, ALL)] for chosen in tier}
        peaks = {way.label: way.variant.largest.peak_bytes or ANY for way in self.ways}
        room = self.limit_bytes - self._context
        return [
            (*chosen, fit_search.EXPANDABLE)
            for chosen in tier
            if any(peaks.get(one, ANY) <= room for one in labels[chosen])
        ]

    def _tiers(self, kernels: Levers) -> Iterator[list[Levers]]:
        """Yield combinations of levers, those that cost least first."""
        loss = (LOSS, *kernels)
        helps = self._helps(loss, kernels)
        yield [kernels, loss] if helps else [kernels]
        if not helps and self._as_it_is(loss):
            self.left_out.pop(LOSS, None)
            yield [loss]
        for back in (fit_search.IN_BACKWARD, fit_search.EACH_IN_BACKWARD):
            yield [(*(loss if self._as_it_is(loss) else kernels), back)]

    def _kernels(self) -> Levers:
        """Return the lever of the optimizer's kernels, if its step alone takes too much."""
        before = _peak(self.ways[0].variant, ("optimizer",))
        if before + self._context <= self.limit_bytes:
            self.left_out[KERNELS[0]] = "the optimizer's step fits without it"
            return ()
        for lever in KERNELS:
            way = self._as_it_is((lever,))
            if way and _peak(way.variant, ("optimizer",)) < before:
                return (lever,)
            if way:
                self.left_out[lever] = "the optimizer's step takes as much with it"
        return ()

    def _helps(self, chosen: Levers, without: Levers) -> bool:
        """Whether a way takes off the peak of training, or of the rest, so much that it is worth its time."""
        way, plain = self._as_it_is(chosen), self._as_it_is(without)
        if way is None or plain is None:
            return False
        for rest in (False, True):
            before, after = (_peak(one.variant, PLANNED, others=rest) for one in (plain, way))
            if before - after > LEAST * before:
                return True
        self.left_out[LOSS] = f"it takes less than {LEAST * 100:.0f} % off any peak"
        return False

    def _as_it_is(self, chosen: Levers, strategy: str = NONE) -> Way | None:
        """Return the command with these levers, rehearsed once; None where one cannot be applied."""
        label = label_of(strategy, chosen)
        if label not in self._ways:
            way = self._rehearsed(label)
            self.num_rehearsed += 1
            self._ways[label] = way if way.has_run else None
            if way.has_run:
                self._say(f"{label}: {way.need}")
            elif (why := way.variant.why or (way.variant.outcome if way.variant.processes else NO_PROCESS)) == NOT_MET:
                raise _Unmet(why)
            else:  # by its lever that refused, if the reason names it
                named = next((lever for lever in chosen if f"{lever.name}: " in why), None)
                self.left_out[named or label] = why.partition(f"{named.name}: ")[2] if named else why
                self._say(f"{label}: left out: {why}")
        return self._ways[label]

    def _planned_or_every(self, chosen: Levers) -> Way | None:
        """Return the command under its fastest plan that fits; else under `all`, which is sometimes less torn."""
        plain = self._as_it_is(chosen)
        if plain is None or not self._can_be_planned(plain, chosen):
            return None
        try:
            if way := self.planned(chosen):
                return way
        except UserError as error:
            if error.exit_code > 2 and not isinstance(error, _Refused):
                raise  # it was interrupted
            self.left_out[_plans(chosen)] = error.message
        every = self._as_it_is(chosen, ALL)
        return every if every and every.fits(self.limit_bytes) else None

    def _can_be_planned(self, plain: Way, chosen: Levers) -> bool:
        """Whether what no plan changes fits; else `left_out` says which phase does not."""
        phase = max(_unplanned(plain.end), key=lambda one: one.peak_bytes or 0, default=None)
        if phase is None or (phase.peak_bytes or 0) + self._context <= self.limit_bytes:
            return True
        at = f" ({phase.line})" if phase.line else ""
        takes = f"{phase_text(phase)} takes {bytes_text(phase.peak_bytes or 0)}{at}"
        self.left_out[_plans(chosen)] = f"{takes}, which no plan changes"
        return False

    def planned(self, chosen: Levers = ()) -> Way | None:
        """Return the command under its fastest plan that fits; None, and why in `left_out`, if none does.

        Raises UserError where there is no model to plan for, and where the command fails under a plan.
        """
        plain, label = self._as_it_is(chosen), label_of(PLAN, chosen)
        assert plain, "plans are of what was rehearsed"
        if not _phases(plain.variant, PLANNED):
            raise UserError(NOT_MET, hint="gcprof rehearse -- COMMAND shows its phases")
        if not self._can_be_planned(plain, chosen):
            return None
        self._say(f"{plain.label}: tracing a step of its model")
        self.module, chain, floor_bytes = self._traced_chain(plain)
        beyond = max(self._context, (plain.needed_bytes or 0) - simulator.none(chain).cost.peak_bytes)
        run = cache(partial(self._try, chosen, chain))
        gpu = self._gpu if self._has_levers else None
        _, found = fastest(run, chain, self.limit_bytes, gpu=gpu, levels=self._levels, beyond=beyond)
        smallest = self._ways.get(label) or plain
        if found:
            return smallest
        stage, _ = simulator.largest_stage(chain)
        self.floors[chosen] = floor_bytes + self._context
        why = f"the smallest plan that was rehearsed {smallest.need}; no plan needs less than "
        why += f"{bytes_text(self.floors[chosen])}, as its trace proves ('{stage}' sets the smallest peak of all plans)"
        self.left_out[_plans(chosen)] = why
        return None

    def _try(self, chosen: Levers, chain: Chain, point: Point) -> TriedPlan:
        """Rehearse the command under a plan. Raises _Refused."""
        plan, label = plan_file_of(chain, point.plan, chosen), label_of(PLAN, chosen)
        plain = self._as_it_is(chosen)
        if plain and not plan.segments:
            has_room = self._has_levers or self.has_room
            return TriedPlan(point=point, needed_bytes=plain.needed_bytes, has_room=has_room)
        way = self._rehearsed(label, plan)
        if not way.has_run:
            raise _Refused(way)
        self.num_rehearsed += 1
        before = self._ways.get(label)
        if before is None or way.fits(self.limit_bytes) or (way.needed_bytes or ANY) < (before.needed_bytes or ANY):
            self._ways[label] = way
        self._say(f"{label}: {way.need}")
        return TriedPlan(point=point, needed_bytes=way.needed_bytes, has_room=way.variant.outcome == "ok")

    def _rehearsed(self, label: str, plan: PlanFile | None = None, stdout: int = subprocess.DEVNULL) -> Way:
        """Rehearse the whole command. Raises UserError if it was interrupted, or its Python lacks what it needs."""
        with written(plan) if plan else nullcontext() as path:
            strategy = label_of(str(Choice.of(PLAN, {"file": path})), Choice(label).parts[1:]) if plan else label
            asked = msgspec.structs.replace(self._asked, strategy=strategy)
            end = _ended(asked, stdout)
        variant = Variant.of(end, asked, {})
        variant, needed = msgspec.structs.replace(variant, words={**variant.words, "strategy": str(label)}), None
        if variant.outcome == "ok" and variant.processes:
            peak, reserved = max(one.peak_bytes or 0 for one in variant.processes), variant.largest.reserved_bytes or 0
            needed = reserved + self._context if self._has_levers else peak
        return Way(variant=variant, end=end, needed_bytes=needed, plan=plan)

    def _traced_chain(self, plain: Way) -> tuple[str, Chain, int]:
        """Rehearse the command up to its largest step after the first, with the levers of its label alone.

        Returns the model's class, its chain, and the bytes that no plan gets below. Raises UserError if there is none.
        """
        rows = [row for row in plain.end.rows if row["kind"] == "phase" and row["phase"] in PLANNED]
        later = [row for row in rows if row["step"]] or rows  # the first only if it is alone
        largest = max(later, key=lambda row: max((device[0] for device in row["devices"].values()), default=0))
        asked = msgspec.structs.replace(self._roomy, strategy=plain.label, chain_step=int(largest["step"]))
        traced = _ended(asked)
        made = [row for row in traced.rows if row["kind"] == "chain"]
        applied = [row for row in traced.rows if row["kind"] == "applied" and "module" in row]
        chains = [
            (row["module"], msgspec.convert(row["chain"], Chain), int(row["floor_bytes"]))
            for row in made
            if row["chain"]
        ]
        if chains:
            found = max(chains, key=lambda one: one[1].traced_peak_bytes)
            names = (row["module"] for row in applied if row["why"] is None)
            self.others = tuple(dict.fromkeys(name for name in names if name != found[0]))
            return found
        refused = [f"{row['module']}: {row['why']}" for row in (*made, *applied) if row["why"]]
        detail = next((process.detail for process in traced.processes if process.detail), None)
        unended = [f"{row['module']}: {NO_STEP}" for row in applied]
        why = "; ".join(dict.fromkeys(refused)) or detail or "; ".join(unended[:1]) or NOT_MET
        hint = "gcprof rehearse --strategies all -- COMMAND"
        raise UserError(f"there is no model to plan for: {why}", hint=hint)


def _plans(chosen: Levers) -> str:
    return " with ".join(["plans", *chosen])


def _phases(variant: Variant, names: Collection[str], *, others: bool = False) -> list[Phase]:
    """Return the phases of these names, or all others."""
    return [phase for one in variant.processes for phase in one.phases if (phase.name in names) is not others]


def _unplanned(end: Ended) -> Iterator[Phase]:
    """Yield the phases that no plan changes."""
    for rows in end.lines.values():
        kept, before = [], ""  # not those between a forward and its backward, in which activations are live
        for row in (row for row in rows if row["kind"] == "phase"):
            before = before if before == "forward" and row["phase"] in WITHIN else row["phase"]
            kept += [] if before in PLANNED else [row]
        yield from phases_of(kept)


def _peak(variant: Variant, names: Collection[str], *, others: bool = False) -> int:
    return max((phase.peak_bytes or 0 for phase in _phases(variant, names, others=others)), default=0)


def _ended(asked: Asked, stdout: int = subprocess.DEVNULL) -> Ended:
    end = launch.run(asked, stdout=stdout)
    if end.interrupted:
        raise UserError("interrupted: there is no plan", exit_code=end.exit_code)
    return end
