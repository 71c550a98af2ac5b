"""Compares several runs: matching rows, each against the baseline's, and what differs between the sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations

import msgspec
from msgspec import UNSET, UnsetType

from profiler.analysis.memory_fit import SideAdvice, advise_sides
from profiler.analysis.pairing import (
    MEANING,
    QUANTITIES,
    Contrast,
    Key,
    Side,
    SideSummary,
    by_group,
    peak_of,
    peaks,
    refuse_mixed,
    seconds_of,
    times,
    unequal,
    value,
)
from profiler.analysis.rows import Row, samples
from profiler.core.case import SETTINGS, Choice
from profiler.core.record import Environment
from profiler.core.units import bytes_text

MOST_STRATEGIES = 64  # of one group, since the number of pairs is quadratic
NOTHING = "-"
WORDS = {"device_name": "device", "device_bytes": "memory", "device_uuid": "UUID", "num_threads": "threads"}
SIGNS = {"better": -1, "faster": -1, "worse": 1, "slower": 1}  # of verdicts; 0 for the others


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One row of one side, and how it compares with the baseline's; None if there is nothing to compare."""

    outcome: str
    detail: str | None = None
    predicted: bool
    evidence: str
    peak_bytes: int | None = None  # None if it is not ok
    step_seconds: float | None = None
    peak: Contrast | None = None
    time: Contrast | None = None


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """The matching rows of all sides; None for a side without one."""

    key: dict[str, str]
    cells: tuple[Cell | None, ...]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One circumstance (a setting, or a part of the environment), by side."""

    what: str
    values: tuple[str, ...]


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


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of several runs; the first side is the baseline."""

    sides: tuple[SideSummary, ...]
    differences: tuple[Difference, ...]
    same: tuple[Difference, ...]
    matches: tuple[Match, ...]
    orders: tuple[Order, ...]
    advice: tuple[SideAdvice, ...]
    remarks: tuple[str, ...]


def compare_sides(compared: Sequence[Side], *, align: Sequence[str], allowed: Sequence[str] = ()) -> Comparison:
    """Compare sides with the first. Raises UserError (exit code 4) if they differ in what is not allowed to differ."""
    refuse_mixed(compared, align=align, allowed=allowed)
    differences = list(_circumstances(compared))
    keys = dict.fromkeys(key for side in compared for key in side.points)
    return Comparison(
        sides=tuple(side.summary for side in compared),
        differences=tuple(difference for difference in differences if len(set(difference.values)) > 1),
        same=tuple(difference for difference in differences if len(set(difference.values)) == 1),
        matches=tuple(
            Match(
                key=dict(zip(align, key, strict=True)),
                cells=tuple(
                    _cell(side.points.get(key), None if side is compared[0] else compared[0].points.get(key))
                    for side in compared
                ),
            )
            for key in keys
        ),
        orders=tuple(_orders(compared, align)) if "strategy" in align else (),
        advice=advise_sides(compared, align=align),
        remarks=tuple(_remarks(compared, allowed)),
    )


def _cell(row: Row | None, baseline: Row | None) -> Cell | None:
    if row is None:
        return None
    return Cell(
        outcome=row.outcome,
        detail=row.detail,
        predicted=row.case.is_predicted,
        evidence=row.evidence,
        peak_bytes=peak_of(row),
        step_seconds=seconds_of(row),
        peak=peaks(baseline, row) if baseline else None,
        time=times(baseline, row) if baseline else None,
    )


def _circumstances(sides: Sequence[Side]) -> Iterator[Difference]:
    """Yield the circumstances of every side: all fields of the environment, the settings of its cases, the rounds.

    Several values on a side, such as two precisions, are joined in one text. A setting that has its default on every
    side is left out.
    """
    environment = [name for name in Environment.__struct_fields__ if name != "started"]  # which always differs
    settings = (name for name in (*MEANING, "verify", "warmup", "samples") if name not in ("model", "strategy"))
    readers: dict[str, Callable[[Row], str]] = {
        "how": lambda row: row.evidence,
        "rehearsed on": _sized_gpu,
        **{name: partial(_of_environment, name=name) for name in environment},
        **{name: partial(value, name=name) for name in settings},
    }
    for name, read in readers.items():
        texts = [dict.fromkeys(text for row in side.rows if (text := read(row))) for side in sides]
        values = tuple(", ".join(of_side) or NOTHING for of_side in texts)
        default = SETTINGS[name].choices[:1] if name in SETTINGS else ()
        if not set(values) <= set(default):
            yield Difference(what=WORDS.get(name, name.replace("_", " ")), values=values)
    yield Difference(what="rounds", values=tuple(str(max(len(row.rounds) for row in side.rows)) for side in sides))


def _sized_gpu(row: Row) -> str:
    """Return the device of a rehearsed GPU that was given sizes of its own; empty for any other."""
    return row.case.device if row.case.is_rehearsed and Choice(row.case.device).name != row.case.device else ""


def _of_environment(row: Row, name: str) -> str:
    field = getattr(row.environment, name) if row.environment else None
    return "" if field is None else bytes_text(field) if name.endswith("_bytes") else str(field)


def _orders(sides: Sequence[Side], align: Sequence[str]) -> Iterator[Order]:
    """Yield the order of each side against the first, by peak and time, of groups with two strategies to order."""
    baseline, *others = (by_group(side, align) for side in sides)
    for group, rows in baseline.items():
        for side, points in zip(sides[1:], others, strict=True):
            for quantity in QUANTITIES:
                order = _order(group, side.label, rows, points.get(group, {}), quantity)
                if order:
                    yield order


def _order(group: Key, label: str, baseline: Mapping[Key, Row], side: Mapping[Key, Row], quantity: str) -> Order | None:
    _, compare = QUANTITIES[quantity]
    shared = [(row, side[key]) for key, row in baseline.items() if key in side]
    every = [both for both in shared if compare(*both) is not None]
    num_same, num_close, swapped = 0, 0, []
    for first, second in combinations(every[:MOST_STRATEGIES], 2):
        contrasts = [compare(row, other) for row, other in zip(first, second, strict=True)]  # on the baseline, the side
        on_baseline, on_side = (SIGNS.get(contrast.verdict, 0) if contrast else 0 for contrast in contrasts)
        num_same += on_baseline * on_side > 0
        num_close += on_baseline * on_side == 0
        if on_baseline * on_side < 0:
            better, worse = (first, second) if on_baseline > 0 else (second, first)
            swapped.append((str(better[0].case.label), str(worse[0].case.label)))
    if len(every) < 2:
        return None
    return Order(
        group=group,
        label=label,
        quantity=quantity,
        num_same=num_same,
        num_close=num_close,
        swapped=tuple(swapped),
        num_left_out=max(0, len(every) - MOST_STRATEGIES) or UNSET,
    )


def _remarks(compared: Sequence[Side], allowed: Sequence[str]) -> Iterator[str]:
    baseline, *others = compared
    once = [side.label for side in compared if _is_of_one_round(side)]
    if once:
        text = "of one round: its intervals cover the spread within a process, not that between processes"
        yield f"{', '.join(once)}: {text}; --rounds 3 covers both"
    apart = [f"{side.label} {side.evidence}" for side in others if side.evidence != baseline.evidence]
    if apart:
        kinds = f"{baseline.label} is {baseline.evidence}, {' and '.join(apart)}"
        yield f"{kinds}: peaks of different kinds differ by their errors, and neither is better or worse"
    idle = [name for name in allowed if not any(unequal(baseline, side, name) for side in others)]
    if idle:
        yield f"--allow-different {','.join(idle)} has no effect: it does not differ"


def _is_of_one_round(side: Side) -> bool:
    timed = [samples(row) for row in side.rows if row.step_seconds and not row.case.has_estimated_times]
    return bool(timed) and all(len(rounds) == 1 for rounds in timed)
