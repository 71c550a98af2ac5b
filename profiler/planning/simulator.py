"""Simulates a plan on a ledger of live bytes to find its cost; shares no code with the recurrence that it checks.

Plans from simple rules, without a solver, are simulated to compare with a solver's plan at the same budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby, takewhile
from math import fsum, hypot

import msgspec

from profiler.planning import chain as chains
from profiler.planning.chain import INNER, RECOMPUTED, Chain, Item, Plan, SaveOption, Stage, flat, segments


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one training step."""

    peak_bytes: int
    step_seconds: float
    error_seconds: float = 0.0  # half the interval of how much longer it is than with everything kept


def simulate(chain: Chain, plan: Plan) -> Cost:
    """Return the cost of a step as PyTorch runs it, with non-reentrant checkpoints that stop early.

    A checkpointed run keeps its input, runs forward without saving, and is run again when its backward comes; its last
    stage then stops at its last saved tensor, and its output is not made. An output is freed after the next stage's
    backward. An input in host memory is no longer on the device where its run's forward ends, and is there again from
    the arrival of the gradient of the output of the stage after the run; waits for copies are part of the step.

    Raises ValueError if this is no plan of this chain.
    """
    wrong = chains.fault(plan, len(chain.stages)) or _fault_of_chain(chain, plan)
    if wrong:
        raise ValueError(wrong)
    machine = _Machine(chain, plan)
    machine.step(plan.items)
    return Cost(
        peak_bytes=max(chain.floor_bytes, chain.static_bytes + machine.peak_bytes),
        step_seconds=fsum(machine.seconds),
        error_seconds=_error(machine.doubtful, chain),
    )


def slower_by(chain: Chain, plan: Plan, other: Plan) -> tuple[float, float]:
    """Return by how many seconds a plan's step is longer than another's, and half the interval of that.

    Costs that both plans have cancel, and so do their errors.
    """
    mine, theirs = (_Machine(chain, one) for one in (plan, other))
    mine.step(plan.items)
    theirs.step(other.items)
    mine.doubtful.subtract(theirs.doubtful)
    return fsum(mine.seconds) - fsum(theirs.seconds), _error(mine.doubtful, chain)


def _error(doubtful: Counter[_Doubtful], chain: Chain) -> float:
    """Return half the interval of a sum of uncertain costs.

    The errors that stages have in common under one way (its `doubts`) are added; the rest is of each kind of stage by
    itself (equal stages have equal errors). Independent errors add in squares.
    """
    together: dict[str, float] = {}
    apart = []
    for (way, added, error), times in doubtful.items():
        shared = min(error, added * chain.doubts.get(way, 0.0))
        together[way] = together.get(way, 0.0) + shared * times
        apart.append((error - shared) * times)
    return hypot(*together.values(), *apart)


def _fault_of_chain(chain: Chain, plan: Plan) -> str | None:
    for run in segments(plan.items):
        for stage in flat(run):
            if chain.stages[stage].pinned:
                return f"stage {stage + 1} is pinned, and cannot be checkpointed"
    for stage, name in plan.options:
        if name not in [option.name for option in chain.stages[stage].options]:
            return f"stage {stage + 1} has no save option '{name}'"
    ends = [tuple(flat(item))[-1] for item in plan.items if isinstance(item, tuple) and item[0] in plan.offloaded]
    if ends and not chain.host_rate:
        return "the rate of copies to host memory is not known"
    for end in ends:
        if not chains.fetches(chain, end + 1):
            return f"stage {end + 2} has no block where an input could be fetched from host memory"
    return None


_Doubtful = tuple[str, float, float]  # a way other than plainly kept, the seconds that it adds, and their error


class _Machine:
    """The live bytes of one step: outputs, saved tensors, gradients of activations, and gradients of parameters."""

    def __init__(self, chain: Chain, plan: Plan) -> None:
        self.stages = chain.stages
        self.kept: list[Stage | SaveOption] = list(chain.stages)  # the costs of each where it is kept
        for stage, name in plan.options:
            self.kept[stage] = next(option for option in chain.stages[stage].options if option.name == name)
        self.rate = chain.host_rate
        self.offloaded = plan.offloaded
        self.fetched_at: dict[int, int] = {}  # by the stage at whose gradient its fetch begins: the run's first stage
        self.landed: dict[int, float] = {}  # by the run's first stage: when its input is there again
        self.copied = 0.0  # when the last copy ends
        self.seconds: list[float] = []
        self.doubtful: Counter[_Doubtful] = Counter()
        self.live_bytes = self.peak_bytes = 0
        self.held: dict[tuple[str, int], int] = {}
        self.hold("output", -1, chain.input_bytes)

    def step(self, items: tuple[Item, ...]) -> None:
        last = len(self.stages) - 1
        for item in items:
            if isinstance(item, int) or next(flat(item)) not in self.offloaded:
                self.forward(item)
                continue
            first, *_ = stages = tuple(flat(item))  # it runs while its input is copied to the host
            ended = self.copy(first)
            self.plain_forward(stages)
            self.wait(ended)
            self.release("output", first - 1)
            self.fetched_at[stages[-1] + 1] = first
        self.release("output", last)  # the loss has run, forward and backward
        self.gradient(last)
        self.backward(items)

    def copy(self, first: int) -> float:
        """Begin to copy a run's input after all other copies; return when it ends."""
        self.copied = max(self.copied, fsum(self.seconds)) + self.stages[first - 1].output_bytes / self.rate
        return self.copied

    def wait(self, until: float) -> None:
        """Wait for a copy."""
        self.seconds.append(max(0.0, until - fsum(self.seconds)))

    def gradient(self, stage: int) -> None:
        """Hold the gradient of a stage's output; what is fetched there comes back."""
        self.hold("gradient", stage, self.stages[stage].output_bytes)
        first = self.fetched_at.get(stage)
        if first is not None:
            self.landed[first] = self.copy(first)
            self.hold("output", first - 1, self.stages[first - 1].output_bytes)
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def forward(self, item: Item, *, again: bool = False) -> None:
        if isinstance(item, int):
            self.save(item, again=again)
        else:
            self.plain_forward(tuple(flat(item)))

    def backward(self, items: tuple[Item, ...]) -> None:
        """Run the backward; that of a checkpointed run after its recompute."""
        for item in reversed(items):
            if isinstance(item, int):
                self.stage_backward(item)
                continue
            *before, last = item
            first = next(flat(item))
            if first in self.landed:
                self.wait(self.landed.pop(first))
            assert isinstance(last, int)
            for inner in before:
                self.forward(inner, again=True)
            self.stopping_forward(last)
            self.backward(item)

    def save(self, stage: int, *, again: bool = False) -> None:
        """Run a forward that saves, of a step or within a recompute."""
        costs, plain = self.stages[stage] if again else self.kept[stage], self.stages[stage]
        seconds = plain.inner_seconds if again else costs.forward_seconds
        if again:
            self.doubtful[INNER, plain.inner_seconds, plain.inner_error_seconds] += 1
        elif isinstance(costs, SaveOption):
            self.doubtful[costs.name, max(0.0, plain.added_seconds(costs)), costs.error_seconds] += 1
        self.work(seconds, costs.saved_bytes + costs.forward_extra_bytes, needs=(("output", stage - 1),))
        self.hold("saved", stage, costs.own_bytes)
        self.hold("output", stage, costs.saved_bytes - costs.own_bytes)

    def stopping_forward(self, stage: int) -> None:
        costs = self.stages[stage]
        self.doubtful[RECOMPUTED, costs.stop_seconds, costs.error_seconds] += 1
        needs = (("output", stage - 1), ("gradient", stage))
        self.work(costs.stop_seconds, costs.own_bytes + costs.forward_extra_bytes, needs=needs)
        self.hold("saved", stage, costs.own_bytes)

    def plain_forward(self, run: tuple[int, ...]) -> None:
        """Free every output once the next exists; the input of the first stage belongs to the checkpoint."""
        for stage in run:
            costs = self.stages[stage]
            at_work = costs.output_bytes + costs.plain_extra_bytes
            self.work(costs.forward_seconds, at_work, needs=(("output", stage - 1),))
            self.hold("output", stage, costs.output_bytes)
            if stage > run[0]:
                self.release("output", stage - 1)

    def stage_backward(self, stage: int) -> None:
        """Turn the output's gradient into the input's; what was saved is freed, the parameters' gradients stay."""
        costs = self.kept[stage]
        left = self.stages[stage].gradient_bytes
        needs = (("gradient", stage), ("saved", stage), ("output", stage - 1))
        self.work(costs.backward_seconds, costs.backward_extra_bytes + left, needs=needs)
        self.release("saved", stage)
        self.release("gradient", stage)
        self.hold("parameters", stage, left)
        if stage:
            self.release("output", stage - 1)
            self.gradient(stage - 1)

    def work(self, seconds: float, extra_bytes: int, *, needs: tuple[tuple[str, int], ...]) -> None:
        if any(need not in self.held for need in needs):
            raise ValueError(f"one of {needs} is not there")
        self.seconds.append(seconds)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + extra_bytes)

    def hold(self, kind: str, stage: int, nbytes: int) -> None:
        assert (kind, stage) not in self.held
        self.held[kind, stage] = nbytes
        self.live_bytes += nbytes

    def release(self, kind: str, stage: int) -> None:
        self.live_bytes -= self.held.pop((kind, stage))


PLAN = "plan"


def uniform(chain: Chain, k: int) -> Plan:
    """Return the plan of `torch.utils.checkpoint.checkpoint_sequential`: k equal segments, the last of which is kept.

    Pinned stages are not counted; a segment that contains one is cut there.
    """
    free = _free(chain)
    size = len(free) // k
    segment = {stage: place // size for place, stage in enumerate(free[: size * (k - 1)])}
    return _plan(chain, segment)


def first(chain: Chain, n: int) -> Plan:
    """Return the plan that checkpoints each of the first n stages by itself, as Megatron's `block`."""
    return _singles(chain, _free(chain)[:n])


def every(chain: Chain, j: int) -> Plan:
    """Return the plan that checkpoints every j-th stage by itself, from the first on."""
    return _singles(chain, _free(chain)[::j])


def all_stages(chain: Chain) -> Plan:
    """Return the plan that checkpoints every stage by itself, as most libraries do if checkpointing is on."""
    return _singles(chain, _free(chain))


RULES: dict[str, Callable[[Chain, int], Plan]] = {"uniform": uniform, "first": first, "every": every}
KINDS = tuple(RULES)


def best_of(chain: Chain, kind: str, budget: int) -> Way | None:
    """Return the fastest plan of one rule within a budget in bytes; None if none fits."""
    fitting = [way for way in costed(chain, kind) if way.cost.peak_bytes <= budget]
    return min(fitting, key=lambda way: (way.cost.step_seconds, way.cost.peak_bytes), default=None)


def costed(chain: Chain, kind: str) -> list[Way]:
    """Return every plan of one rule, labelled as `uniform(4)`."""
    numbers = range(1, len(_free(chain)) + 1)
    return [Way.of(chain, f"{kind}({number})", RULES[kind](chain, number)) for number in numbers]


def _free(chain: Chain) -> list[int]:
    """Return the stages that may be checkpointed."""
    return [stage for stage, costs in enumerate(chain.stages) if not costs.pinned]


def _singles(chain: Chain, stages: Sequence[int]) -> Plan:
    return _plan(chain, {stage: place for place, stage in enumerate(stages)})


def _plan(chain: Chain, segment: dict[int, int]) -> Plan:
    """Return the plan that checkpoints consecutive stages of one segment together, and keeps stages of no segment."""
    items: list[Item] = []
    for place, run in groupby(range(len(chain.stages)), key=segment.get):
        stages = tuple(run)
        items += stages if place is None else [stages]
    return Plan(items=tuple(items))


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way to checkpoint a chain, with its simulated cost."""

    label: str
    plan: Plan
    cost: Cost
    same: tuple[str, ...] = ()  # the labels of other ways with the same plan

    @classmethod
    def of(cls, chain: Chain, label: str, plan: Plan) -> Way:
        return cls(label=label, plan=plan, cost=simulate(chain, plan))

    @property
    def name(self) -> str:
        """The label, with those of equal plans: `plan = uniform(3)`."""
        return " = ".join((self.label, *self.same))

    @property
    def is_catalogue(self) -> bool:
        """Whether a strategy of the catalogue gives the same plan."""
        return self.label != PLAN or bool(self.same)


def ways(chain: Chain, plan: Plan, budget_bytes: int) -> tuple[Way, ...]:
    """Return the solver's `plan`, the fastest `uniform`, `first` and `every` that fit the budget, and `all` anyway.

    Equal plans are one way. A rule without a plan that fits is left out.
    """
    alone = Way.of(chain, "all", all_stages(chain))
    fitting = filter(None, (best_of(chain, kind, budget_bytes) for kind in KINDS))
    rules = [way for way in fitting if plan == alone.plan or way.plan != alone.plan]
    found: dict[Plan, Way] = {}
    for way in (Way.of(chain, PLAN, plan), *rules, alone):
        known = found.get(way.plan)
        found[way.plan] = msgspec.structs.replace(known, same=(*known.same, way.label)) if known else way
    return tuple(found.values())


def none(chain: Chain) -> Way:
    """Return the way that keeps everything."""
    return Way.of(chain, "none", _plan(chain, {}))


def whole_bytes(chain: Chain) -> int:
    """Return the peak without checkpointing, of which a budget may be a percentage: as traced, else by the costs."""
    return chain.traced_peak_bytes or none(chain).cost.peak_bytes


def cost_limit(chain: Chain, budget_bytes: int) -> int:
    """Return the most bytes that a plan's costs may add up to: those of `none`, if its traced step fits the budget."""
    none_fits = 0 < chain.traced_peak_bytes <= budget_bytes
    return max(budget_bytes, none(chain).cost.peak_bytes) if none_fits else budget_bytes


def largest_stage(chain: Chain) -> tuple[str, int]:
    """Return the name of the stage that needs most memory by itself, and the step's peak then.

    This is a lower bound of the peak of every plan.
    """
    behind, peaks = 0, list[tuple[int, str]]()
    for stage, before in zip(chain.stages[::-1], _before(chain)[::-1], strict=True):
        forwards = [costs.saved_bytes + costs.forward_extra_bytes for costs in stage.ways]
        # the parameter gradients of later stages are there in a kept stage's backward, and not yet in its forward
        behind += stage.gradient_bytes
        backwards = [stage.output_bytes + costs.own_bytes + costs.backward_extra_bytes + behind for costs in stage.ways]
        least = min(map(max, forwards, backwards))  # besides its input
        peaks.append((chain.static_bytes + chain.input_bytes + before + least, stage.name))
    nbytes, name = max(peaks)
    return name, max(nbytes, chain.floor_bytes)


def _before(chain: Chain) -> list[int]:
    """Return for each stage the least bytes that earlier stages hold while it runs, besides the chain's own input.

    These are what pinned stages save and, for an unpinned stage just before, its output, or what it saves if less.
    Outputs further before may wait in host memory, where the chain has a rate of copies.
    """
    kept, before = 0, [0]
    for stage in chain.stages[:-1]:
        saved, own = _least_saved(stage), min(costs.own_bytes for costs in stage.ways)
        away = chain.host_rate > 0
        there = min(saved, own + stage.output_bytes) if away else saved
        before.append(kept + (there if stage.pinned else min(stage.output_bytes, saved)))
        kept += (own if away else saved) if stage.pinned else 0
    return before


def kept_before(chain: Chain, name: str) -> int:
    """Return the least bytes that pinned stages before the named one save: no plan checkpoints them."""
    before = takewhile(lambda stage: stage.name != name, chain.stages)
    return sum(_least_saved(stage) for stage in before if stage.pinned)


def _least_saved(stage: Stage) -> int:
    return min(costs.saved_bytes for costs in stage.ways)
