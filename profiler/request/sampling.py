"""Words -> when to stop sampling the time of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from profiler.core.case import FAKE
from profiler.core.errors import UserError
from profiler.core.gpu_kinds import REHEARSE
from profiler.core.stats import Sampling
from profiler.core.units import parse_percent

UNTIL = ("precision_target", "max_samples", "max_seconds")  # instead of a fixed number of samples
LEAST_STEPS = 4  # timed in every round: two pairs, so that three rounds have six, the fewest with a confidence interval
FEWEST, MOST = 6, 10_000  # samples per round: fewer than six give no confidence interval of the median
LONGEST = 100_000  # seconds of sampling per round


def of_words(words: Mapping[str, Any], device: str) -> Sampling | UnsetType:
    """Return when to stop sampling; UNSET if a fixed number is asked for, or the device has no times.

    `words` are those of a Request. Raises UserError.
    """
    given = {name: words[name] for name in UNTIL if words[name] is not None}
    is_fixed = words["samples"] is not None
    has_no_times = device.startswith((FAKE, REHEARSE))
    if given and (is_fixed or has_no_times):
        without = "--samples, which is a fixed number" if is_fixed else f"'{device}', where no step is timed"
        flag = f"--{next(iter(given)).replace('_', '-')}"
        raise UserError(f"{flag} has no effect with {without}", hint="leave one of them out")
    return UNSET if is_fixed or has_no_times else sampling(**given)


def sampling(
    *, precision_target: str | None = None, max_samples: int | None = None, max_seconds: float | None = None
) -> Sampling:
    """Return a Sampling with these values, and the defaults of the others. Raises UserError."""
    usual = Sampling()
    return Sampling(
        precision_target=_fraction(precision_target) or usual.precision_target,
        max_samples=int(_within(FEWEST, MOST, "--max-samples", max_samples) or usual.max_samples),
        max_seconds=_within(0.001, LONGEST, "--max-seconds", max_seconds) or usual.max_seconds,
    )


def _fraction(text: str | None) -> float | None:
    if text is None:
        return None
    fraction = parse_percent(text)
    if fraction is None or not 0.001 <= fraction <= 0.5:
        raise UserError(f"--precision-target: '{text}' is no precision", hint="a percentage from 0.1% to 50%, like 2%")
    return fraction


def _within(least: float, most: int, option: str, value: float | None) -> float | None:
    if value is not None and not least <= value <= most:
        raise UserError(f"{option} cannot be {value:g}", hint=f"from {least:g} to {most:,}")
    return value
