"""Compares the order of the strategies on the sides of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import msgspec
from msgspec import UNSET, UnsetType

from profiler.analysis.cross_run_ratio import Contrast
from profiler.analysis.pairing import Key, SampledRow, Side, by_group, peaks, times

Pair = tuple[SampledRow, SampledRow]  # one strategy, on the baseline and on a side
Compared = Callable[[SampledRow, SampledRow], Contrast | None]
MOST_STRATEGIES = 64  # of one group, since the number of pairs is quadratic
QUANTITIES: dict[str, Compared] = {"peak": peaks, "time": times}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """How two sides agree on the pairs of the first MOST_STRATEGIES of one group, by one quantity."""

    group: tuple[str, ...]
    label: str  # of the side that is compared with the baseline
    quantity: str
    num_same: int
    num_close: int  # equal, or too close to tell, on one of the sides
    swapped: tuple[tuple[str, str], ...]  # the first is better on the baseline, the second on this side
    num_left_out: int | UnsetType = UNSET  # strategies beyond MOST_STRATEGIES, if there are any

    @property
    def tau(self) -> float | None:
        """Kendall's tau over the pairs that both sides tell apart: 1 if all have the same order, -1 the opposite."""
        num_apart = self.num_same + len(self.swapped)
        return (self.num_same - len(self.swapped)) / num_apart if num_apart else None


def orders(sides: Sequence[Side], *, align: Sequence[str]) -> tuple[Order, ...]:
    """Return the order of each side against the first, by peak and time; empty without two strategies to order."""
    if "strategy" not in align:
        return ()
    baseline, *others = (by_group(side, align) for side in sides)
    labels = [side.label for side in sides[1:]]
    compared = [
        _order(group, label, points, side.get(group, {}), quantity)
        for group, points in baseline.items()
        for label, side in zip(labels, others, strict=True)
        for quantity in QUANTITIES
    ]
    return tuple(order for order in compared if order is not None)


def _order(
    group: Key, label: str, baseline: Mapping[Key, SampledRow], side: Mapping[Key, SampledRow], quantity: str
) -> Order | None:
    against = QUANTITIES[quantity]
    shared = [(point, side[key]) for key, point in baseline.items() if key in side]
    every = [pair for pair in shared if against(*pair) is not None]
    comparable = every[:MOST_STRATEGIES]
    pairs = [(first, second, _signs(first, second, against)) for first, second in combinations(comparable, 2)]
    if not pairs:
        return None
    return Order(
        group=group,
        label=label,
        quantity=quantity,
        num_same=sum(on_baseline * on_side > 0 for *_, (on_baseline, on_side) in pairs),
        num_close=sum(on_baseline * on_side == 0 for *_, (on_baseline, on_side) in pairs),
        swapped=tuple(
            _named(*((first, second) if on_baseline > 0 else (second, first)))
            for first, second, (on_baseline, on_side) in pairs
            if on_baseline * on_side < 0
        ),
        num_left_out=len(every) - len(comparable) or UNSET,
    )


def _named(better: Pair, worse: Pair) -> tuple[str, str]:
    return str(better[0].row.case.strategy), str(worse[0].row.case.strategy)


def _signs(first: Pair, second: Pair, against: Compared) -> tuple[int, int]:
    """Return, for the baseline and the side, 1 if the second strategy is worse than the first, -1 if better, else 0."""
    on_baseline, on_side = (
        _sign(against(first_row, second_row)) for first_row, second_row in zip(first, second, strict=True)
    )
    return on_baseline, on_side


def _sign(contrast: Contrast | None) -> int:
    assert contrast is not None, "both were measured"
    return {"better": -1, "faster": -1, "worse": 1, "slower": 1}.get(contrast.verdict, 0)
