"""Checks a comparison against limits such as `peak:>2%,time:>5%`, and finds the rows that exceed them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from profiler.analysis.comparison import Cell, Comparison
from profiler.analysis.cross_run_ratio import Contrast
from profiler.core.errors import UserError
from profiler.core.units import parse_percent

RULE = re.compile(r"\s*(\w+)\s*:\s*>(.*)", re.ASCII | re.DOTALL)
OVER = ("worse", "slower", "off")  # verdicts that confirm that a quantity is more than the baseline's
READINGS = {"peak": "peak_bytes", "time": "step_seconds"}  # fields of Cell, by quantity


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity, and the fraction by which it may exceed the baseline's."""

    quantity: str
    most: float

    def __str__(self) -> str:
        return f"{self.quantity}:>{self.most * 100:g}%"


class RuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a side, checked against a rule."""

    rule: Rule
    label: str
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


def parse(text: str) -> tuple[Rule, ...]:
    """Return the rules in a text such as `peak:>2%,time:>5%`. Raises UserError."""
    hint = "write --fail-on 'peak:>2%,time:>5%'"
    rules: dict[str, Rule] = {}
    for piece in text.split(","):
        rule = RULE.fullmatch(piece)
        most = parse_percent(rule[2]) if rule else None
        if rule is None or most is None or rule[1] not in READINGS:
            raise UserError(f"--fail-on cannot be '{piece.strip()}'", hint=hint)
        if rule[1] in rules:
            raise UserError(f"--fail-on gives {rule[1]} twice", hint=hint)
        rules[rule[1]] = Rule(quantity=rule[1], most=most)
    return tuple(rules.values())


def judge(comparison: Comparison, rules: Sequence[Rule]) -> Judgement:
    """Check every row that the baseline has, on every other side, against every rule.

    A time trips a rule if it is surely worse and its ratio of medians is over the limit; a row that is missing or no
    longer ok trips every rule. Raises UserError (exit code 4) if the baseline has nothing that a rule could judge.
    """
    results = [(rule, list(_results(rule, comparison))) for rule in rules]
    empty = next((rule for rule, held in results if not held), None)
    if empty:
        raise UserError(
            f"--fail-on {empty}: no row of the baseline has a {empty.quantity}", hint="leave it out", exit_code=4
        )
    over = [result for _, held in results for result in held if result.is_over]
    return Judgement(
        tripped=tuple(result for result in over if result.is_sure),
        unsure=tuple(result for result in over if not result.is_sure),
    )


def _results(rule: Rule, comparison: Comparison) -> Iterator[RuleResult]:
    """Yield the result of every cell whose baseline has the quantity."""
    for match in comparison.matches:
        baseline, *cells = match.cells
        if baseline is not None and getattr(baseline, READINGS[rule.quantity]) is not None:
            for side, cell in zip(comparison.sides[1:], cells, strict=True):
                contrast = getattr(cell, rule.quantity) if cell else None
                kinds = (cell.evidence, baseline.evidence) if cell and cell.evidence != baseline.evidence else None
                yield RuleResult(
                    rule=rule, label=side.label, key=match.key, contrast=contrast, reason=_reason(rule, cell),
                    evidence=kinds,
                )  # fmt: skip


def _reason(rule: Rule, cell: Cell | None) -> str | None:
    """Return why a cell cannot be compared; None if it can."""
    if cell is None:
        return "not in this run"
    if cell.outcome != "ok":
        return cell.outcome.replace("_", " ")
    return None if getattr(cell, rule.quantity) else f"has no {rule.quantity}"
