"""Compares several runs, each row with the baseline's, and checks them against limits such as `peak:>2%,time:>5%`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, product
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from profiler.analysis import pairing
from profiler.analysis.advice import SideAdvice, advise_sides
from profiler.analysis.pairing import QUANTITIES, Contrast, Side, peaks, refuse_mixed
from profiler.analysis.rows import Row, samples
from profiler.core.case import SETTINGS, Choice
from profiler.core.errors import UserError
from profiler.core.record import Environment
from profiler.core.units import bytes_text, few, parse_limits

MOST_STRATEGIES = 64  # of one group, since the number of pairs is quadratic
NOTHING = "-"
WORDS = {"device_name": "device", "device_bytes": "memory", "device_uuid": "UUID", "num_threads": "threads"}
SIGNS = {"better": -1, "faster": -1, "worse": 1, "slower": 1}  # of verdicts; 0 for the others
OVER = ("worse", "slower", "off")  # verdicts that confirm that a quantity is more than the baseline's
MOST_NAMED = 3  # rows


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

    sides: tuple[pairing.SideSummary, ...]
    differences: tuple[Difference, ...]
    same: tuple[Difference, ...]
    matches: tuple[Match, ...]
    orders: tuple[Order, ...]
    advice: tuple[SideAdvice, ...]
    remarks: tuple[str, ...]


def compare_sides(compared: Sequence[Side], *, align: Sequence[str], allowed: Sequence[str] = ()) -> Comparison:
    """Compare sides with the first. Raises UserError (exit code 4) if they differ in what is not allowed to differ."""
    refuse_mixed(compared, align=align, allowed=allowed)
    baseline = compared[0]
    differences = list(_circumstances(compared))

    def cell(side: Side, key: pairing.Key) -> Cell | None:
        row, before = side.points.get(key), baseline.points.get(key) if side is not baseline else None
        if row is None:
            return None
        return Cell(
            outcome=row.outcome,
            detail=row.detail,
            predicted=row.case.is_predicted,
            evidence=row.evidence,
            peak_bytes=pairing.peak_of(row),
            step_seconds=pairing.seconds_of(row),
            peak=peaks(before, row) if before else None,
            time=pairing.times(before, row) if before else None,
        )

    return Comparison(
        sides=tuple(side.summary for side in compared),
        differences=tuple(difference for difference in differences if len(set(difference.values)) > 1),
        same=tuple(difference for difference in differences if len(set(difference.values)) == 1),
        matches=tuple(
            Match(key=dict(zip(align, key, strict=True)), cells=tuple(cell(side, key) for side in compared))
            for key in dict.fromkeys(key for side in compared for key in side.points)
        ),
        orders=tuple(_orders(compared, align)) if "strategy" in align else (),
        advice=advise_sides(compared, align=align),
        remarks=tuple(_remarks(compared, allowed)),
    )


def _circumstances(sides: Sequence[Side]) -> Iterator[Difference]:
    """Yield the circumstances of every side: its environment, the settings that are no default, and the rounds."""

    def of_environment(row: Row, name: str) -> str:
        field = getattr(row.environment, name) if row.environment else None
        return "" if field is None else bytes_text(field) if name.endswith("_bytes") else str(field)

    def sized_gpu(row: Row) -> str:
        device = row.case.device
        return device if row.case.is_rehearsed and Choice(device).name != device else ""

    environment = [name for name in Environment.__struct_fields__ if name != "started"]  # which always differs
    settings = (name for name in (*pairing.MEANING, "verify", "warmup", "samples") if name not in ("model", "strategy"))
    readers: dict[str, Callable[[Row], str]] = {
        "how": lambda row: row.evidence,
        "rehearsed on": sized_gpu,
        **{name: partial(of_environment, name=name) for name in environment},
        **{name: partial(pairing.value, name=name) for name in settings},
    }
    for name, read in readers.items():
        texts = [dict.fromkeys(text for row in side.rows if (text := read(row))) for side in sides]
        values = tuple(", ".join(of_side) or NOTHING for of_side in texts)
        default = SETTINGS[name].choices[:1] if name in SETTINGS else ()
        if not set(values) <= set(default):
            yield Difference(what=WORDS.get(name, name.replace("_", " ")), values=values)
    yield Difference(what="rounds", values=tuple(str(max(len(row.rounds) for row in side.rows)) for side in sides))


def _orders(sides: Sequence[Side], align: Sequence[str]) -> Iterator[Order]:
    """Yield the order of each side against the first, by peak and time, of groups with two strategies to order."""
    baseline, *others = (pairing.by_group(side, align) for side in sides)
    for group, rows in baseline.items():
        for side, points in zip(sides[1:], others, strict=True):
            shared = [(row, points[group][key]) for key, row in rows.items() if key in points.get(group, {})]
            for quantity, (_, compare) in QUANTITIES.items():
                every = [both for both in shared if compare(*both) is not None]
                if len(every) > 1:
                    yield Order(
                        group=group,
                        label=side.label,
                        quantity=quantity,
                        num_left_out=max(0, len(every) - MOST_STRATEGIES) or UNSET,
                        **_agreement(every[:MOST_STRATEGIES], compare),
                    )


def _agreement(shared: Sequence[tuple[Row, Row]], compare: Callable[[Row, Row], Contrast | None]) -> dict[str, Any]:
    """Return the fields of an order that count its pairs; each row of the baseline is given with that of the side."""
    num_same, num_close, swapped = 0, 0, []
    for first, second in combinations(shared, 2):
        contrasts = [compare(row, other) for row, other in zip(first, second, strict=True)]  # on the baseline, the side
        on_baseline, on_side = (SIGNS.get(contrast.verdict, 0) if contrast else 0 for contrast in contrasts)
        num_same += on_baseline * on_side > 0
        num_close += on_baseline * on_side == 0
        if on_baseline * on_side < 0:
            better, worse = (first, second) if on_baseline > 0 else (second, first)
            swapped.append((str(better[0].case.label), str(worse[0].case.label)))
    return {"num_same": num_same, "num_close": num_close, "swapped": tuple(swapped)}


def _remarks(compared: Sequence[Side], allowed: Sequence[str]) -> Iterator[str]:
    baseline, *others = compared
    timed = {side.label: [row for row in side.rows if row.step_seconds] for side in compared}
    rounds = {
        label: [samples(row) for row in of_side if not row.case.has_estimated_times] for label, of_side in timed.items()
    }
    once = [label for label, of_side in rounds.items() if of_side and all(len(of_row) == 1 for of_row in of_side)]
    if once:
        text = "of one round: its intervals cover the spread within a process, not that between processes"
        yield f"{', '.join(once)}: {text}; --rounds 3 covers both"
    apart = [f"{side.label} {side.evidence}" for side in others if side.evidence != baseline.evidence]
    if apart:
        kinds = f"{baseline.label} is {baseline.evidence}, {' and '.join(apart)}"
        yield f"{kinds}: peaks of different kinds differ by their errors, and neither is better or worse"
    idle = [name for name in allowed if not any(pairing.unequal(baseline, side, name) for side in others)]
    if idle:
        yield f"--allow-different {','.join(idle)} has no effect: it does not differ"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity, and the fraction by which it may exceed the baseline's."""

    quantity: str
    most: float

    def __str__(self) -> str:
        return f"{self.quantity}:>{self.most * 100:g}%"

    def reads(self, row: Row) -> bool:
        return QUANTITIES[self.quantity][0](row) is not None


class RuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a side, checked against a rule."""

    rule: Rule
    label: str  # of the side; the run's name if it has no rows on the baseline's device
    against: str  # the label of the baseline's side
    key: dict[str, str]
    contrast: Contrast | None = None
    reason: str | None = None  # why there is no contrast
    evidence: tuple[str, str] | None = None  # the row's and the baseline's, if they are of two kinds

    @property
    def is_over(self) -> bool:
        """Whether the row is over the limit, or can no longer be compared."""
        if self.contrast is None or self.contrast.ratio is None:
            return self.contrast is None or self.contrast.verdict in OVER
        return self.contrast.ratio > 1 + self.rule.most and self.contrast.verdict != "same"

    @property
    def is_sure(self) -> bool:
        """Whether the excess is not chance: by its verdict, or because the whole interval is over the limit."""
        contrast = self.contrast
        is_whole = contrast is not None and contrast.low is not None and contrast.low > 1 + self.rule.most
        return contrast is None or contrast.verdict in OVER or is_whole


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The results over a limit: those that trip it, and those that are too noisy to be sure."""

    tripped: tuple[RuleResult, ...]
    unsure: tuple[RuleResult, ...]
    remarks: tuple[str, ...] = ()  # what no rule could judge, and rows whose gradients nobody compared


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Return the rules in a text such as `peak:>2%,time:>5%`. Raises UserError."""
    limits = parse_limits(text, QUANTITIES, hint="write --fail-on 'peak:>2%,time:>5%'")
    return tuple(Rule(quantity=limit.quantity, most=limit.most or 0.0) for limit in limits)


_Pair = tuple[Side, Side | None, str]  # of the baseline run; what is judged against it, if it has any; RuleResult.label


def judge(
    sides: Sequence[Side], rules: Sequence[Rule], *, align: Sequence[str], allowed: Sequence[str] = ()
) -> Judgement:
    """Check every row that the baseline run has, in every other run on the same device, against every rule.

    A time trips a rule if it is surely worse and its ratio of medians is over the limit; a row that is missing or no
    longer ok trips every rule. Where the baseline run has one device and another run does not have it, all of that
    run's are judged; where there is one run, its other devices. Raises UserError (exit code 4) if sides that are judged
    cannot be compared, or the baseline has nothing that a rule could judge.
    """
    runs = [[side for side in sides if side.number == number] for number in range(sides[-1].number + 1)]
    baselines, *others = runs if len(runs) > 1 else (runs[0][:1], runs[0][1:])
    pairs: list[_Pair] = []  # the sides of each other run, by device, against those of the first
    for run, baseline in product(others, baselines):
        same = [side for side in run if side.device == baseline.device]
        judged = same or (run if len(baselines) == 1 else ())
        pairs += [(baseline, side, side.label) for side in judged] or [(baseline, None, run[0].run)]
    for baseline, side, _ in pairs:
        if side:
            refuse_mixed((baseline, side), align=align, allowed=allowed)
    over: list[RuleResult] = []
    for rule in rules:
        results = [result for pair in pairs for result in _results(rule, pair, align)]
        if not results:
            message = f"--fail-on {rule}: no row of the baseline has a {rule.quantity}"
            raise UserError(message, hint="leave it out", exit_code=4)
        over += [result for result in results if result.is_over]
    return Judgement(
        tripped=tuple(result for result in over if result.is_sure),
        unsure=tuple(result for result in over if not result.is_sure),
        remarks=tuple(_passed_over(sides, pairs, rules)),
    )


def _results(rule: Rule, pair: _Pair, align: Sequence[str]) -> Iterator[RuleResult]:
    """Yield the result of every row whose baseline has the quantity."""
    baseline, side, label = pair
    for key, before in baseline.points.items():
        if not rule.reads(before):
            continue
        after, reason = side.points.get(key) if side else None, None
        if after is None:
            reason = "not in this run"
        elif not rule.reads(after):
            reason = f"has no {rule.quantity}" if after.outcome == "ok" else after.outcome.replace("_", " ")
        yield RuleResult(
            rule=rule,
            label=label,
            against=baseline.label,
            key=dict(zip(align, key, strict=True)),
            contrast=QUANTITIES[rule.quantity][1](before, after) if after else None,
            reason=reason,
            evidence=(after.evidence, before.evidence) if after and after.evidence != before.evidence else None,
        )


def _passed_over(sides: Sequence[Side], pairs: Sequence[_Pair], rules: Sequence[Rule]) -> Iterator[str]:
    """Yield what a gate passes over: sides and rows without a baseline, and rows whose gradients nobody compared."""
    named = {baseline.label for baseline, *_ in pairs} | {label for *_, label in pairs}
    for side in sides:
        if side.label not in named:
            yield f"{side.label} on {side.device}: not judged, since the baseline has no rows on it"
    for baseline, judged, label in pairs:
        before, after = baseline.points, judged.points if judged else {}
        passed_over = {
            f"no {rule.quantity} in {baseline.label}, so not judged": [
                key for key, row in before.items() if not rule.reads(row)
            ]
            for rule in rules
        }
        passed_over[f"not in {baseline.label}, so not judged"] = [key for key in after if key not in before]
        unchecked = [key for key, row in after.items() if row.gradients == "not checked"]
        passed_over[f"gradients not compared in {label}"] = unchecked
        for what, keys in passed_over.items():
            if keys:
                yield f"{what}: {few([', '.join(key) for key in keys], MOST_NAMED)}"
