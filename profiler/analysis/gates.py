"""Checks compared runs against limits such as `peak:>2%,time:>5%`, and finds the rows that exceed them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from profiler.analysis.pairing import QUANTITIES, Contrast, Key, Side, refuse_mixed
from profiler.analysis.rows import Row
from profiler.core.errors import UserError
from profiler.core.units import few, parse_percent

RULE = re.compile(r"\s*(\w+)\s*:\s*>(.*)", re.ASCII | re.DOTALL)
OVER = ("worse", "slower", "off")  # verdicts that confirm that a quantity is more than the baseline's
MOST_NAMED = 3  # rows


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity, and the fraction by which it may exceed the baseline's."""

    quantity: str
    most: float

    def __str__(self) -> str:
        return f"{self.quantity}:>{self.most * 100:g}%"

    def reads(self, row: Row) -> bool:
        """Whether a row has the quantity."""
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


def parse(text: str) -> tuple[Rule, ...]:
    """Return the rules in a text such as `peak:>2%,time:>5%`. Raises UserError."""
    hint = "write --fail-on 'peak:>2%,time:>5%'"
    rules: dict[str, Rule] = {}
    for piece in text.split(","):
        rule = RULE.fullmatch(piece)
        most = parse_percent(rule[2]) if rule else None
        if rule is None or most is None or rule[1] not in QUANTITIES:
            raise UserError(f"--fail-on cannot be '{piece.strip()}'", hint=hint)
        if rule[1] in rules:
            raise UserError(f"--fail-on gives {rule[1]} twice", hint=hint)
        rules[rule[1]] = Rule(quantity=rule[1], most=most)
    return tuple(rules.values())


class _Pair(NamedTuple):
    """A side of the baseline run, and the side that is judged against it: None if the run has none on its device."""

    baseline: Side
    side: Side | None
    label: str  # as in RuleResult


def judge(
    sides: Sequence[Side], rules: Sequence[Rule], *, align: Sequence[str], allowed: Sequence[str] = ()
) -> Judgement:
    """Check every row that the baseline run has, in every other run on the same device, against every rule.

    A time trips a rule if it is surely worse and its ratio of medians is over the limit; a row that is missing or no
    longer ok trips every rule. Where the baseline run has one device and another run does not have it, all of that
    run's are judged; where there is one run, its other devices. Raises UserError (exit code 4) if sides that are judged
    cannot be compared, or the baseline has nothing that a rule could judge.
    """
    pairs = list(_pairs(sides))
    for pair in pairs:
        if pair.side:
            refuse_mixed((pair.baseline, pair.side), align=align, allowed=allowed)
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
        remarks=tuple(_remarks(sides, pairs, rules)),
    )


def _pairs(sides: Sequence[Side]) -> Iterator[_Pair]:
    """Yield what is judged against what: the sides of each other run, by device, against those of the first."""
    runs = [[side for side in sides if side.number == number] for number in range(sides[-1].number + 1)]
    baselines, *others = runs if len(runs) > 1 else (runs[0][:1], runs[0][1:])
    for run in others:
        for baseline in baselines:
            same = [side for side in run if side.device == baseline.device]
            judged = same or (run if len(baselines) == 1 else ())
            yield from (_Pair(baseline, side, side.label) for side in judged)
            if not judged:
                yield _Pair(baseline, None, run[0].run)


def _results(rule: Rule, pair: _Pair, align: Sequence[str]) -> Iterator[RuleResult]:
    """Yield the result of every row whose baseline has the quantity."""
    for key, before in pair.baseline.points.items():
        if not rule.reads(before):
            continue
        after, reason = pair.side.points.get(key) if pair.side else None, None
        if after is None:
            reason = "not in this run"
        elif not rule.reads(after):
            reason = f"has no {rule.quantity}" if after.outcome == "ok" else after.outcome.replace("_", " ")
        yield RuleResult(
            rule=rule,
            label=pair.label,
            against=pair.baseline.label,
            key=dict(zip(align, key, strict=True)),
            contrast=QUANTITIES[rule.quantity][1](before, after) if after else None,
            reason=reason,
            evidence=(after.evidence, before.evidence) if after and after.evidence != before.evidence else None,
        )


def _remarks(sides: Sequence[Side], pairs: Sequence[_Pair], rules: Sequence[Rule]) -> Iterator[str]:
    """Yield what a gate passes over: sides and rows without a baseline, and rows whose gradients nobody compared."""
    named = {pair.baseline.label for pair in pairs} | {pair.label for pair in pairs}
    for side in sides:
        if side.label not in named:
            yield f"{side.label} on {side.device}: not judged, since the baseline has no rows on it"
    for pair in pairs:
        before, after = pair.baseline.points, pair.side.points if pair.side else {}
        for rule in rules:
            bare = [key for key, row in before.items() if not rule.reads(row)]
            yield from _told(bare, f"no {rule.quantity} in {pair.baseline.label}, so not judged")
        yield from _told([key for key in after if key not in before], f"not in {pair.baseline.label}, so not judged")
        unchecked = [key for key, row in after.items() if row.gradients == "not checked"]
        yield from _told(unchecked, f"gradients not compared in {pair.label}")


def _told(keys: Sequence[Key], what: str) -> Iterator[str]:
    if keys:
        yield f"{what}: {few([', '.join(key) for key in keys], MOST_NAMED)}"
