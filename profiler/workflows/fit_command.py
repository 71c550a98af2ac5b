"""Finds what makes a user's command fit a memory, by levers and plans: each row is the whole command, rehearsed.

What is decided by is what the process that reserves most has reserved, in any phase, and CUDA's context.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from profiler.core import gpu_specs, plan_file, roofline
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile
from profiler.core.units import bytes_text
from profiler.planning import candidates
from profiler.planning import chain as chains
from profiler.planning.chain import Chain
from profiler.planning.plan import plan_file_of
from profiler.planning.solver import Point
from profiler.scripts.launch import Asked, Ended
from profiler.scripts.report import NOT_MET, Variant, phase_text
from profiler.training.levers import label as label_of
from profiler.workflows.fit_search import ALL, EXPANDABLE, FUSED, IN_BACKWARD, LOSS, NO_FOREACH, NONE, PLAN, Levers
from profiler.workflows.plan_command import (
    ANY,
    GATE,
    Say,
    peak_in,
    rehearsed,
    rehearsed_whole,
    traced_chain,
)
from profiler.workflows.plan_fitting import TriedPlan, fit_plan, frontiers, offloading

KERNELS = (FUSED, NO_FOREACH)  # the latter where the optimizer has no fused kernels
LEAST = 0.01  # of a peak: what takes less off it is tried where nothing else fits
RAN = ("ok", "out_of_memory")


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """The whole command under a label, rehearsed."""

    label: str  # a plan by its name alone
    variant: Variant
    plan: PlanFile | None = None

    @property
    def needed_bytes(self) -> int | None:
        """What its largest process takes of a GPU, with CUDA's context; None where it ran out of memory."""
        if self.variant.outcome != "ok":
            return None
        return (self.variant.largest.reserved_bytes or 0) + self.variant.context_bytes

    @property
    def step_seconds(self) -> float:
        """The estimated seconds of a step of its slowest process, endless where they are not known."""
        known = [process.estimated_seconds for process in self.variant.processes]
        return max((float("inf") if one is None else one for one in known), default=float("inf"))

    def fits(self, limit_bytes: int) -> bool:
        return self.needed_bytes is not None and self.needed_bytes <= limit_bytes


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """All ways that were rehearsed, and the one to take."""

    limit_bytes: int
    ways: tuple[Way, ...]  # the command as it is first
    left_out: dict[str, str]  # by lever, why
    chosen: Way | None
    num_rehearsed: int  # whole commands

    @property
    def least(self) -> Way:
        """The way that needs least."""
        return min(self.ways, key=lambda way: way.needed_bytes or ANY)

    @property
    def exit_code(self) -> int:
        return 0 if self.chosen else GATE


def fit(asked: Asked, limit: int | float, say: Say = lambda text: None) -> Fitted:
    """Find what makes the whole command fit so many bytes of each GPU's memory, or such a part of it.

    Raises UserError where the command fails as it is, or never calls a model in training.
    """
    assert asked.gpus, "a command is rehearsed on a GPU by name"
    memory_bytes = asked.gpus.bytes or gpu_specs.find(asked.gpus.name).memory_bytes
    limit_bytes = limit if isinstance(limit, int) else int(limit * memory_bytes)
    if limit_bytes > memory_bytes:
        say(f"note: {bytes_text(limit_bytes)} are more than {asked.gpus.name} has: {bytes_text(memory_bytes)}")
    say(f"{NONE}: rehearsing the command as it is")
    end, whole, asked = rehearsed_whole(asked, say)
    search = _Search(asked, limit_bytes, say)
    search.keep(NONE, end, whole)
    chosen = search.run()
    return Fitted(
        limit_bytes=limit_bytes,
        ways=tuple(search.ways.values()),
        left_out=search.left_out,
        chosen=chosen,
        num_rehearsed=search.num_rehearsed,
    )


class _Refused(Exception):
    """The command did not run to its end under a plan."""


class _Unmet(Exception):
    """The command trains no model that can be changed."""


class _Search:
    """Rehearses a command with combinations of levers, each as it is and, where none fits so, under its plans."""

    def __init__(self, asked: Asked, limit_bytes: int, say: Say) -> None:
        self._asked, self._limit, self._say = asked, limit_bytes, say
        self._ends: dict[str, Ended] = {}
        self._tried: dict[tuple[Levers, Point], TriedPlan] = {}
        self.ways: dict[str, Way] = {}  # by label; of plans the one that fits, or needs least
        self.left_out: dict[str, str] = {}
        self.num_rehearsed = 1

    def run(self) -> Way | None:
        """Return the way to take: as it is, else of the first tier of which any fits the one estimated fastest."""
        whole = self.ways[NONE]
        if whole.variant.context_bytes >= self._limit:
            self.left_out["all levers"] = f"CUDA itself takes {bytes_text(whole.variant.context_bytes)}: see --context"
            return None
        if whole.fits(self._limit):
            return whole
        try:
            return self._changed()
        except _Unmet as error:
            self.left_out["plans and levers"] = str(error)
            return None

    def _changed(self) -> Way | None:
        for tier in self._tiers(self._kernels()):
            if way := self._of_tier(tier) or self._of_tier(self._torn(tier)):
                return way
        return None

    def _of_tier(self, tier: list[Levers]) -> Way | None:
        """Return the first that fits without a plan, else of the planned ones that which is estimated fastest."""
        plain = (self._as_it_is(chosen) for chosen in tier)
        if fitting := next((way for way in plain if way and way.fits(self._limit)), None):
            return fitting
        planned = [way for chosen in tier for way in [self._planned(chosen)] if way]
        return min(planned, key=lambda way: (way.step_seconds, len(way.label)), default=None)

    def _torn(self, tier: list[Levers]) -> list[Levers]:
        """Return those of which only what is reserved is too large, with segments that grow."""

        def is_torn(label: str) -> bool:
            if label not in self.ways:
                return False
            variant = self.ways[label].variant
            return (variant.largest.peak_bytes or ANY) + variant.context_bytes <= self._limit

        return [(*chosen, EXPANDABLE) for chosen in tier if any(is_torn(label_of(one, chosen)) for one in (NONE, PLAN))]

    def _tiers(self, kernels: Levers) -> Iterator[list[Levers]]:
        """Yield combinations of levers, those that cost least first."""
        loss = (LOSS, *kernels)
        helps = self._helps(loss, kernels)
        yield [kernels, loss] if helps else [kernels]
        if not helps and self._as_it_is(loss):
            self.left_out.pop(LOSS, None)
            yield [loss]
        yield [(*(loss if self._as_it_is(loss) else kernels), IN_BACKWARD)]

    def _kernels(self) -> Levers:
        """Return the lever of the optimizer's kernels, if its step alone takes too much."""
        variant = self.ways[NONE].variant
        if (before := _optimizer_bytes(variant)) + variant.context_bytes <= self._limit:
            self.left_out[KERNELS[0]] = "the optimizer's step fits without it"
            return ()
        for lever in KERNELS:
            way = self._as_it_is((lever,))
            if way and _optimizer_bytes(way.variant) < before:
                return (lever,)
            if way:
                self.left_out[lever] = "the optimizer's step takes as much with it"
        return ()

    def _helps(self, chosen: Levers, without: Levers) -> bool:
        """Whether a way takes off the peak of training, or of the rest, so much that it is worth its time."""
        way, plain = self._as_it_is(chosen), self._as_it_is(without)
        if way is None or plain is None:
            return False
        pairs = [(_peak(plain.variant, part), _peak(way.variant, part)) for part in (True, False)]
        if any(before - after > LEAST * before for before, after in pairs):
            return True
        self.left_out[LOSS] = f"it takes less than {LEAST * 100:.0f} % off any peak"
        return False

    def _as_it_is(self, chosen: Levers, strategy: str = NONE) -> Way | None:
        """Return the command with these levers, rehearsed once; None where one cannot be applied."""
        label = label_of(strategy, chosen)
        if label not in self.ways and label not in self._ends:
            end, variant = self._rehearsed(label)
            self._ends[label] = end
            if variant.outcome in RAN:
                self.keep(label, end, variant)
                self._tell(label)
            else:
                self._leave_out(label, chosen, variant)
        return self.ways.get(label)

    def _leave_out(self, label: str, chosen: Levers, variant: Variant) -> None:
        """Note why a label was left out: by its lever that refused, if the reason names it."""
        why = variant.detail or next((one.detail for one in variant.processes if one.detail), None) or variant.outcome
        if why == NOT_MET:
            raise _Unmet(why)
        named = next((lever for lever in chosen if f"{lever.name}: " in why), None)
        self.left_out[named or label] = why.partition(f"{named.name}: ")[2] if named else why
        self._say(f"{label}: left out: {why}")

    def _planned(self, chosen: Levers) -> Way | None:
        """Return the command under the fastest plan with these levers that fits; None if none does."""
        plain, name = self._as_it_is(chosen), " with ".join(["plans", *chosen])
        if plain is None:
            return None
        other = peak_in(plain.variant, of_plan=False)
        if other and (other[1].peak_bytes or 0) + plain.variant.context_bytes > self._limit:
            at = f" ({other[1].line})" if other[1].line else ""
            takes = f"{phase_text(other[1])} takes {bytes_text(other[1].peak_bytes or 0)}{at}"
            self.left_out[name] = f"{takes}, which no plan changes"
            return None
        self._say(f"{plain.label}: tracing a step of its model")
        try:
            given = msgspec.structs.replace(self._asked, strategy=plain.label)
            _, chain = traced_chain(given, self._ends[plain.label], stdout=subprocess.DEVNULL)
            if way := self._fastest(chosen, chain):
                return way
        except (UserError, _Refused) as error:
            if isinstance(error, UserError) and error.exit_code > 2:
                raise  # it was interrupted
            self.left_out[name] = str(error)
        every = self._as_it_is(chosen, ALL)  # is sometimes less torn than the plans that the costs prefer
        return every if every and every.fits(self._limit) else None

    def _fastest(self, chosen: Levers, chain: Chain) -> Way | None:
        """Return the command under its fastest plan that fits, with offload where no other does."""
        assert self._asked.gpus
        plain, costs = self.ways[label_of(NONE, chosen)], candidates.none(chain).cost
        beyond = max(plain.variant.context_bytes, (plain.needed_bytes or 0) - costs.peak_bytes)
        sure = chains.with_sure_options(chain)
        rate = roofline.host_rate(gpu_specs.find(self._asked.gpus.name))
        run = partial(self._try, chosen, chain)
        for points in frontiers(sure):
            if fit_plan(run, points, self._limit, beyond=beyond):
                return self.ways[label_of(PLAN, chosen)]
        away = offloading(msgspec.structs.replace(sure, host_rate=rate), self._limit - beyond)
        return self.ways[label_of(PLAN, chosen)] if away and fit_plan(run, away, self._limit, beyond=beyond) else None

    def _try(self, chosen: Levers, chain: Chain, point: Point) -> TriedPlan:
        """Rehearse the command under a plan, once."""
        if (chosen, point) in self._tried:
            return self._tried[chosen, point]
        plan = plan_file_of(chain, point.plan)
        if not plan.segments:
            return TriedPlan(point=point, needed_bytes=self.ways[label_of(NONE, chosen)].needed_bytes)
        with tempfile.TemporaryDirectory(prefix="gcprof-fit-") as folder:
            path = Path(folder) / plan_file.USUAL
            plan_file.write(plan, path)
            _, variant = self._rehearsed(label_of(str(Choice.of(PLAN, {"file": path})), chosen))
        if variant.outcome not in RAN:
            raise _Refused(variant.detail or variant.outcome)
        label = label_of(PLAN, chosen)
        way, before = Way(label=label, variant=variant, plan=plan), self.ways.get(label)
        if before is None or way.fits(self._limit) or (way.needed_bytes or ANY) < (before.needed_bytes or ANY):
            self.ways[label] = way
        self._tell(label, way)
        tried = TriedPlan(point=point, needed_bytes=way.needed_bytes, has_room=variant.outcome == "ok")
        self._tried[chosen, point] = tried
        return tried

    def keep(self, label: str, end: Ended, variant: Variant) -> None:
        """Keep the command as it was rehearsed under a label."""
        self._ends[label], self.ways[label] = end, Way(label=label, variant=variant)

    def _rehearsed(self, label: str) -> tuple[Ended, Variant]:
        self.num_rehearsed += 1
        return rehearsed(self._asked, label, stdout=subprocess.DEVNULL)

    def _tell(self, label: str, way: Way | None = None) -> None:
        needed = (way or self.ways[label]).needed_bytes
        self._say(f"{label}: {'runs out of memory' if needed is None else f'needs {bytes_text(needed)}'}")


def _peak(variant: Variant, of_plan: bool) -> int:
    phase = peak_in(variant, of_plan=of_plan)
    return phase[1].peak_bytes or 0 if phase else 0


def _optimizer_bytes(variant: Variant) -> int:
    """Return the most bytes that a step of an optimizer takes, with all that is there."""
    phases = (phase for process in variant.processes for phase in process.phases if phase.name == "optimizer")
    return max((phase.peak_bytes or 0 for phase in phases), default=0)
