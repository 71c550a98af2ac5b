"""What users write and read: numbers with their units, and names with options, `segments:k=8,split=balanced`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from profiler.core.errors import UserError

MISSING = "-"  # shown for a number that was not measured, never 0
KIB, MIB, GIB = 2**10, 2**20, 2**30
BYTE_SIZES = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
SECOND_SIZES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
BYTE_UNITS = {"b": 1}  # as users write them; `8G` is binary, as in nvidia-smi and ulimit
for power, letter in enumerate("kmgt", start=1):
    BYTE_UNITS |= {letter: 2 ** (10 * power), f"{letter}ib": 2 ** (10 * power), f"{letter}b": 10 ** (3 * power)}
NUMBER = r"\d+(?:\.\d+)?(?:e\d+)?"  # a decimal number in options, in digits 0 to 9
BYTES_HINT = "8GiB, 8G or 750MiB"
BUDGET_HINT = "8GiB, 750MiB, 60% of the peak without checkpointing, or max"

# A lever changes a whole step beside its strategy, after it; the order is that of labels, and of how they are applied.
# The function takes the Workload and the Case, and returns the changed Workload and what it did as Applied. It raises
# Unsupported where it cannot be applied.
LEVERS = {
    "chunk-loss": "profiler.training.chunked_loss:apply",
    "micro-batches": "profiler.training.memory_levers:micro_batches",
    "fused": "profiler.training.optimizers:fused",
    "no-foreach": "profiler.training.optimizers:no_foreach",
    "8bit": "profiler.training.optimizers:eight_bit",
    "bf16-state": "profiler.training.optimizers:bf16_state",
    "in-backward": "profiler.training.optimizers:in_backward",
    "offload-inputs": "profiler.training.memory_levers:inputs",
    "expandable-segments": "profiler.training.memory_levers:expandable_segments",
}
JOINT = re.compile(rf"\+(?=(?:{'|'.join(LEVERS)})(?:[:+]|$))")  # not in `selective:save=attention+matmul`


def bytes_text(count: int | None) -> str:
    """1536 -> '1.50 KiB'; three significant digits, binary units."""
    if count is None:
        return MISSING
    size, unit = next((pair for pair in BYTE_SIZES if abs(count) >= pair[0]), (1, "B"))
    return f"{count} B" if size == 1 else f"{_three_digits(count / size)} {unit}"


def seconds_text(seconds: float | None) -> str:
    """0.0123 -> '12.3 ms'; three significant digits."""
    if seconds is None:
        return MISSING
    size, unit = next((pair for pair in SECOND_SIZES if seconds >= pair[0]), (1e-9, "ns"))
    return f"{seconds * 1e9:.0f} ns" if unit == "ns" else f"{_three_digits(seconds / size)} {unit}"


def left_text(seconds: float) -> str:
    """40.3 -> '40 s left', 750 -> '12 min left': rounded, in the largest unit of which there are at least two."""
    size, unit = next(((size, unit) for size, unit in ((3600, "h"), (60, "min")) if seconds >= 2 * size), (1, "s"))
    return f"{seconds / size:.0f} {unit} left"


def byte_unit(counts: Iterable[int | None]) -> tuple[int, str]:
    """Return the size and name of the unit for a whole column: the largest of which its largest value has ten."""
    largest = max((abs(count) for count in counts if count is not None), default=0)
    return next((pair for pair in BYTE_SIZES if largest >= 10 * pair[0]), (1, "B"))


def second_unit(seconds: Iterable[float | None]) -> tuple[float, str]:
    """Return the size and name of the unit for a whole column: the largest of which its largest value has ten."""
    largest = max((second for second in seconds if second is not None), default=0.0)
    return next((pair for pair in SECOND_SIZES if largest >= 10 * pair[0]), (1e-9, "ns"))


def scaled(value: float | None, size: float) -> str:
    """Return a number in the unit of its column's heading, with one decimal, so that the points are aligned."""
    if value is None:
        return MISSING
    if size == 1 and isinstance(value, int):
        return f"{value:,}"
    return "<0.1" if 0 < value / size < 0.05 else f"{value / size:,.1f}"


def bytes_texts(counts: Sequence[int | None], *others: int | None) -> list[str]:
    """Return sizes as text in one unit, that of the largest of these and of `others`: `848.0 MiB`."""
    size, unit = byte_unit([*counts, *others])
    return [MISSING if count is None else f"{scaled(count, size)} {unit}" for count in counts]


def change_text(ratio: float | None) -> str:
    """A ratio to a baseline as a signed percentage: 0.51 -> '-49 %', 1.253 -> '+25 %'."""
    return MISSING if ratio is None else f"{_percent(ratio)} %"


def change_range_text(ratios: tuple[float, float] | None) -> str:
    """The smallest and the largest ratio to a baseline: (1.23, 1.27) -> '+23..+27'."""
    return MISSING if ratios is None else f"{_percent(ratios[0])}..{_percent(ratios[1])}"


def budget_text(nbytes: int, peak_bytes: int) -> str:
    """Return a budget beside the peak without checkpointing: `750 MiB, 60 % of the peak without checkpointing`."""
    if nbytes > peak_bytes > 0:
        return f"{bytes_text(nbytes)}; it fits as it is, at {bytes_text(peak_bytes)} without checkpointing"
    percent = f", {nbytes / peak_bytes * 100:.0f} % of the peak without checkpointing" if peak_bytes else ""
    return f"{bytes_text(nbytes)}{percent}"


def spread_text(fraction: float | None, *, digits: int = 1) -> str:
    """A relative half-width: 0.034 -> '±3.4 %'."""
    return MISSING if fraction is None else f"±{fraction * 100:.{digits}f} %"


def error_text(fraction: float | None) -> str:
    """Return the relative error of a prediction: 0.0034 -> '+0.34 %'."""
    return MISSING if fraction is None else f"{fraction * 100:+.2f} %"


def batch_text(batch_size: int | None) -> str:
    """8 -> 'batch 8'; None, if a model makes its own batch -> 'a batch of its own'."""
    return "a batch of its own" if batch_size is None else f"batch {batch_size}"


def count_text(count: int, noun: str) -> str:
    """3, 'block' -> '3 blocks'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def few(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def in_unit_text(value: float, unit: str, *, signed: bool = False) -> str:
    """Return a number with its unit, with as many digits as are worth reading: 5678.123, 'MB' -> '5,678.1 MB'."""
    magnitude = abs(value)
    digits = 0 if isinstance(value, int) else 1 if magnitude >= 100 else 2 if magnitude >= 0.1 else None
    text = f"{value:.1e}" if digits is None and value else f"{value:,.{digits or 0}f}"
    text = f"+{text}" if signed and value > 0 else text
    return f"{text} {unit}" if unit else text


def _percent(ratio: float) -> str:
    percent = (ratio - 1) * 100
    text = f"{percent:+.1f}" if abs(percent) < 9.95 else f"{percent:+.0f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:,.0f}" if magnitude >= 99.95 else f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"


def parse_bytes(word: str, *, flag: str, hint: str = BYTES_HINT, other: str = "GiB") -> int:
    """Return the bytes of `8GiB`, `8G` or `750 MB`. Raises UserError if they are not above 0 or have no unit.

    `other` is the unit that the error proposes for such a number, besides bytes.
    """
    size_text = re.fullmatch(rf"({NUMBER})\s*([a-z]*)", word.strip().lower(), flags=re.ASCII)
    number = size_text[1] if size_text else "0"
    exact = int(number) if number.isdigit() else float(number)  # beyond 2**53 a float is not exact
    value = exact * BYTE_UNITS.get(size_text[2] or "b", 0) if size_text else 0
    if not size_text or not 1 <= value < 2**63:
        raise UserError(f"{flag} cannot be '{word}'", hint=hint)
    if not size_text[2]:
        raise UserError(f"{flag} cannot be '{word}': {number} B or {number} {other}?", hint=f"write its unit: {hint}")
    return int(value)


def parse_budget(word: str, *, whole_bytes: int) -> int:
    """Return a budget in bytes; `max` and percentages are of `whole_bytes`, the peak without checkpointing.

    Raises UserError.
    """
    if word.strip().lower() == "max":
        return whole_bytes
    size = parse_memory(word, flag="--budget", hint=BUDGET_HINT)
    return int(size * whole_bytes) if isinstance(size, float) else size


def parse_memory(word: str, *, flag: str, hint: str = "11GiB, 11G, or 60% of the device's memory") -> int | float:
    """Return bytes, or for `60%` the fraction, as a float. Raises UserError."""
    if not word.strip().endswith("%"):
        return parse_bytes(word, flag=flag, hint=hint, other="%")
    fraction = parse_percent(word)
    if fraction is None or not 0 < fraction <= 1:
        raise UserError(f"{flag} cannot be '{word}'", hint=hint)
    return fraction


def parse_percent(word: str) -> float | None:
    """Return `60%`, `2.5 %` or `1e1%` as a fraction; None if the text is not a finite percentage."""
    percent = re.fullmatch(rf"({NUMBER})\s*%", word.strip().lower(), flags=re.ASCII)
    fraction = float(percent[1]) / 100 if percent else math.inf
    return fraction if math.isfinite(fraction) else None


RULE = re.compile(r"(\w+)\s*:\s*>(.*)", re.ASCII | re.DOTALL)


class Limit(NamedTuple):
    """A quantity, and the most that it may be: bytes, or a fraction; None where the quantity alone is a limit."""

    quantity: str
    most: int | float | None
    text: str  # as it was typed


def parse_limits(
    text: str, quantities: Collection[str], *, hint: str, of_memory: bool = False, alone: str | None = None
) -> tuple[Limit, ...]:
    """Return the limits of --fail-on, `peak:>2%`: percentages of a change, or `of_memory` bytes and percentages.

    The quantity `alone` is written by itself. Raises UserError.
    """
    limits: dict[str, Limit] = {}
    for word in map(str.strip, text.split(",")):
        rule, most = RULE.fullmatch(word), None
        quantity = rule[1] if rule else word.replace("_", "-")
        if rule and quantity in quantities:
            size = rule[2].strip()
            most = parse_memory(size, flag=f"--fail-on: '{word}'") if of_memory else parse_percent(size)
        if most is None and (rule or quantity != alone):
            raise UserError(f"--fail-on cannot be '{word}'", hint=hint)
        if quantity in limits:
            raise UserError(f"--fail-on gives {quantity} twice", hint=hint)
        limits[quantity] = Limit(quantity, most, word)
    return tuple(limits.values())


class Choice(str):
    """A name with options, written and read everywhere as `segments:k=8,split=balanced`.

    A name may itself contain colons (`torchvision:resnet18`): the text after the last colon is options only if it
    contains a `=`. Choices of equal text are equal; `catalogue.resolve` makes the text canonical.
    """

    __slots__ = ()

    @classmethod
    def of(cls, name: str, options: Mapping[str, object]) -> Choice:
        text = ",".join(f"{key}={as_word(value)}" for key, value in options.items())
        return cls(f"{name}:{text}" if text else name)

    @property
    def name(self) -> str:
        return self._halves()[0]

    @property
    def options(self) -> dict[str, str]:
        """The options by key. Raises UserError for an option without key or value, and for a key given twice."""
        pieces = self._halves()[1].split(",") if self._halves()[1] else []
        pairs = [piece.partition("=") for piece in pieces]
        for key, _, value in pairs:
            if not key or not value:
                message = f"'{self}' has an option without a name or a value"
                raise UserError(message, hint="write name:key=value,key=value")
        keys = [key for key, _, _ in pairs]
        if len(set(keys)) < len(keys):
            twice = next(key for key, number in Counter(keys).items() if number > 1)
            raise UserError(f"'{self}' gives {twice} twice", hint=f"{twice}=a|b measures both")
        return {key: value for key, _, value in pairs}

    @property
    def parts(self) -> tuple[Choice, ...]:
        """A strategy and its levers, `all+micro-batches:n=4+fused`, each by itself."""
        return tuple(map(Choice, JOINT.split(self)))

    def _halves(self) -> tuple[str, str]:
        name, colon, rest = self.rpartition(":")
        return (name, rest) if colon and "=" in rest else (str(self), "")


def split_choices(text: str) -> list[Choice]:
    """Return the choices in a list as users write it: `none,segments:k=8,split=balanced,all` -> three choices.

    A piece `key=value` without a name belongs to the choice before it; `k=2|4|8` gives one choice per value. Raises
    UserError for an empty item.
    """
    words: list[str] = []
    for piece in (piece.strip() for piece in text.split(",")):
        if not piece:
            raise UserError(f"'{text}' has an empty item", hint="separate items by single commas")
        if words and "=" in piece and ":" not in piece.partition("=")[0]:
            words[-1] += ("," if "=" in Choice(words[-1]).parts[-1] else ":") + piece
        else:
            words.append(piece)
    spans = (product(*map(_span, Choice(word).parts)) for word in words)
    return [Choice("+".join(parts)) for span in spans for parts in span]


def _span(choice: Choice) -> list[Choice]:
    spread: list[dict[str, str]] = [{}]
    for key, value in choice.options.items():
        spread = [{**options, key: alternative} for options in spread for alternative in value.split("|")]
    return [Choice.of(choice.name, options) for options in spread]


def as_word(value: object) -> str:
    """Return a value as users write it: a boolean as `true` or `false`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
