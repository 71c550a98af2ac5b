"""The costs of a chain in whole numbers, for the recurrence: stages are numbered from 1, the loss follows the last."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from msgspec.structs import replace

from profiler.planning.chain import Chain, SaveOption, Stage, fetches
from profiler.planning.pareto import LARGEST, Whole

FINEST = 10**12  # ticks per second: whole picoseconds have the same sum in any order


class Keep:
    """One way to keep a stage: plainly or under a save option; in a recompute only plainly."""

    def __init__(self, stage: Stage, costs: Stage | SaveOption, second: int, *, in_recompute: bool = False) -> None:
        self.name = None if costs is stage else costs.name
        self.saved = costs.saved_bytes
        self.forward = costs.saved_bytes + costs.forward_extra_bytes
        self.backward = stage.output_bytes + costs.own_bytes + costs.backward_extra_bytes
        self.at_gradient = stage.output_bytes + costs.own_bytes  # when that of the output arrives
        self.freed = costs.saved_bytes - costs.own_bytes  # with the output
        self.backward_ticks = round(costs.backward_seconds * second)
        forward_seconds = stage.inner_seconds if in_recompute else costs.forward_seconds
        self.ticks = round(forward_seconds * second) + self.backward_ticks


class Costs:
    """Bytes and ticks of every stage; index 0 is the input, index n + 1 the loss."""

    def __init__(self, chain: Chain) -> None:
        stages = chain.stages
        self.num_stages = len(stages)
        self.second = second = _ticks_in_a_second(chain)
        self.output = [chain.input_bytes, *(stage.output_bytes for stage in stages), 0]
        self.keeps = [(), *(tuple(Keep(stage, way, second) for way in stage.ways) for stage in stages), ()]
        self._in_recomputes = [(), *((Keep(stage, stage, second, in_recompute=True),) for stage in stages), ()]
        self.forward_ticks = [0, *(round(stage.forward_seconds * second) for stage in stages), 0]
        self.plain_extra = [0, *(stage.plain_extra_bytes for stage in stages), 0]
        self.stop_bytes = [0, *(stage.own_bytes + stage.forward_extra_bytes for stage in stages), 0]
        self.stop_ticks = [
            0,
            *(round(stage.stop_seconds * second) + round(stage.backward_seconds * second) for stage in stages),
            0,
        ]
        kinds: dict[object, int] = {}
        self.kinds = [
            -1,
            *(kinds.setdefault(_figures(stage), len(kinds)) for stage in stages),
            -1,
        ]  # the same for equal stages
        self._forward_sums = np.array([*accumulate(self.forward_ticks)], dtype=np.int64)
        self._plain: list[Whole] = [np.empty(0, dtype=np.int64)]  # by first stage, computed on demand
        # By stage: the ticks of a copy of its output, and whether one can be fetched at its gradient
        self.copy_ticks = [round(nbytes / chain.host_rate * second) if chain.host_rate else 0 for nbytes in self.output]
        self.fetches = [False, *(fetches(chain, stage) for stage in range(len(stages))), False]
        self.pinned = [False, *(stage.pinned for stage in stages), False]
        left = [stage.gradient_bytes for stage in reversed(stages)]
        self.left = [0, *reversed([*accumulate(left)]), 0, 0]  # parameter gradients of this stage and all after it
        self.always = chain.static_bytes + chain.input_bytes
        self.floor = chain.floor_bytes
        transient = max(keep.forward + keep.backward for ways in self.keeps for keep in ways) + max(self.plain_extra)
        held = sum(max(keep.saved for keep in ways) for ways in self.keeps if ways) + sum(self.output)
        self.most = held + transient + self.left[1]  # no plan holds more
        assert self.most < LARGEST // (self.num_stages + 1)

    def ways(self, stage: int, target: int) -> tuple[Keep, ...]:
        """Return the ways to keep a stage; in a checkpointed run only the plain one.

        There PyTorch's selective checkpoint would keep its results from the first forward on.
        """
        return self.keeps[stage] if target > self.num_stages else self._in_recomputes[stage]

    def last(self, stage: int) -> tuple[int, int, int]:
        """Return bytes, ticks and choice of a segment's last stage alone; zeros for the loss."""
        if stage > self.num_stages:
            return 0, 0, 0
        behind = self.left[stage + 1]
        own = self.keeps[stage][0].backward + self.left[stage]
        return max(self.output[stage] + self.stop_bytes[stage] + behind, own), self.stop_ticks[stage], 0

    def keep_floor(self, stage: int, target: int, way: Keep) -> int:
        """Return the bytes that a kept stage needs in forward and backward, if the interval ends in `target`."""
        return max(self.output[target] + self.left[target + 1] + way.forward, way.backward + self.left[stage])

    def plain_forward(self, first: int, target: int) -> Whole:
        """Return the peak of a forward that saves nothing, from `first` to each stage before `target` or a pin."""
        while len(self._plain) <= first:
            self._plain.append(self._plain_from(len(self._plain)))
        return self._plain[first][: target - first] + (self.output[target] + self.left[target + 1])

    def _plain_from(self, first: int) -> Whole:
        last = next((stage for stage in range(first, self.num_stages + 2) if self.pinned[stage]), self.num_stages + 1)
        made, extra = self.output[first:last], self.plain_extra[first:last]
        before = [0, *made[:-1]]
        needed = [sum(three) for three in zip(before, made, extra, strict=True)] if made else []
        return np.array([*accumulate(needed, max)], dtype=np.int64)

    def forward_sums(self, first: int, number: int) -> Whole:
        """Return the ticks of the forward from `first` to each of so many stages."""
        sums: Whole = self._forward_sums[first : first + number] - self._forward_sums[first - 1]
        return sums


def _ticks_in_a_second(chain: Chain) -> int:
    """Return as many ticks per second as leave room for the slowest plan, which runs each forward once per stage."""
    number = len(chain.stages)
    ways = [way for stage in chain.stages for way in stage.ways]
    slowest = sum(number * way.forward_seconds + way.backward_seconds for way in ways)
    slowest += sum(stage.stop_seconds + stage.inner_seconds for stage in chain.stages) * number
    slowest += sum(2 * stage.output_bytes / chain.host_rate for stage in chain.stages) if chain.host_rate else 0
    second = FINEST
    while slowest * second > LARGEST / 2:
        second //= 10
    return second


def _figures(stage: Stage) -> Stage:
    """Return the stage without its name and modules, for comparing costs."""
    return replace(stage, name="", blocks=())
