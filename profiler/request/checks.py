"""Words -> whole numbers, when to stop sampling, and what a model takes. Knows nothing of torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType

from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.devices import parse
from profiler.core.errors import UserError, refuse_idle
from profiler.core.stats import Sampling
from profiler.core.units import parse_percent
from profiler.training import models

LARGEST = 1_000_000  # segments; more than any chain has modules


class Numbers(NamedTuple):
    """What the numbers of an axis are, for messages about a wrong word, and their largest value."""

    noun: str
    example: str
    most: int


SIZES = Numbers("a batch size", "64 or 8,16,32, up to 1,000,000,000", 10**9)
RANKS = Numbers("a number of ranks", "4 or 8,64,512, up to 65,536", 65_536)
MICRO_BATCHES = Numbers("a number of micro-batches", "4 or 1,2,4, up to 10,000", 10_000)


def whole(text: str, *, option: str, kind: Numbers) -> list[int]:
    """`8,16,32` as numbers from 1. Raises UserError that names the option and the bad word."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not _is_within(word, kind.most):
            raise UserError(f"{option}: '{word}' is not {kind.noun}", hint=f"whole numbers from 1, like {kind.example}")
    return [int(word) for word in words]


def segment_counts(text: str) -> list[int]:
    """`1,2,4`, `1..32` or `1..32:x2` as numbers. Raises UserError that names the bad item."""
    return [count for item in text.split(",") for count in _counts(item.strip())]


def _counts(item: str) -> list[int]:
    span = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})(?::x(\d{1,9}))?", item, flags=re.ASCII)
    if not span:
        return [_segment_count(item, item)]
    first, last = _segment_count(span[1], item), _segment_count(span[2], item)
    factor = int(span[3]) if span[3] else None
    if last < first or factor in (0, 1) or (factor is None and last - first >= 1000):
        message = f"--segments: '{item}' is not a range"
        raise UserError(message, hint="write first..last, up to 1000 long, or first..last:x2")
    counts = list(range(first, last + 1)) if factor is None else [first]
    while factor and counts[-1] * factor <= last:
        counts.append(counts[-1] * factor)
    return counts


def _segment_count(word: str, item: str) -> int:
    if not _is_within(word, LARGEST):
        message = f"--segments: '{item}' is not a number of segments"
        raise UserError(message, hint=f"whole numbers from 1 to {LARGEST}, like 1,2,4 or 1..32 or 1..32:x2")
    return int(word)


def _is_within(word: str, most: int) -> bool:
    return bool(re.fullmatch(r"\d{1,9}", word, flags=re.ASCII)) and 1 <= int(word) <= most


UNTIL = ("precision_target", "max_samples", "max_seconds")  # instead of a fixed number of samples
LEAST_STEPS = 4  # timed in every round: two pairs, so that three rounds have six, the fewest with a confidence interval
FEWEST, MOST = 6, 10_000  # samples per round: fewer than six give no confidence interval of the median
LONGEST = 100_000  # seconds of sampling per round


def sampling_of(words: Mapping[str, Any], device: str) -> Sampling | UnsetType:
    """Return when to stop sampling; UNSET if a fixed number is asked for, or the device has no times.

    `words` are those of a Request. Raises UserError.
    """
    given = {name: words[name] for name in UNTIL if words[name] is not None}
    is_fixed = words["samples"] is not None
    has_no_times = bool(parse(device).prefix)
    if given and (is_fixed or has_no_times):
        without = "--samples, which is a fixed number" if is_fixed else f"'{device}', where no step is timed"
        refuse_idle({f"--{name.replace('_', '-')}": True for name in given}, f"with {without}")
    return UNSET if is_fixed or has_no_times else sampling(**given)


def sampling(
    *, precision_target: str | None = None, max_samples: int | None = None, max_seconds: float | None = None
) -> Sampling:
    """Return a Sampling with these values, and the defaults of the others. Raises UserError."""
    usual = Sampling()
    target = usual.precision_target if precision_target is None else parse_percent(precision_target)
    if target is None or not 0.001 <= target <= 0.5:
        message = f"--precision-target: '{precision_target}' is no precision"
        raise UserError(message, hint="a percentage from 0.1% to 50%, like 2%")
    return Sampling(
        precision_target=target,
        max_samples=int(_within(FEWEST, MOST, "--max-samples", max_samples) or usual.max_samples),
        max_seconds=_within(0.001, LONGEST, "--max-seconds", max_seconds) or usual.max_seconds,
    )


def _within(least: float, most: int, option: str, value: float | None) -> float | None:
    if value is not None and not least <= value <= most:
        raise UserError(f"{option} cannot be {value:g}", hint=f"from {least:g} to {most:,}")
    return value


def batch_size(model: Choice) -> int | None:
    """Return the model's default batch size; None if it has none."""
    default = catalogue.read(model.name, models.TABLE).parameters.get("batch_size")
    return int(default) if default is not None and default.isdecimal() else None


def check_batch_size(text: str | None, chosen: list[Choice]) -> None:
    """Raises UserError where a batch size was given, and a chosen model makes a batch of its own size."""
    for model in chosen if text is not None else []:
        if "batch_size" not in catalogue.read(model.name, models.TABLE).parameters:
            hint = "give its function a parameter batch_size, or leave it out"
            raise UserError(f"--batch-size has no effect on '{model}', which makes its own batch", hint=hint)


def optimizer_text(case: Case) -> str:
    """Return the optimizer for a title that is written before the model is built: a user's model may bring its own."""
    return f"{case.optimizer}{'' if catalogue.listed(case.model.name, models.TABLE) else ' or its own'}"


def smaller(model: Choice, remarks: list[str]) -> Choice:
    """Return the model with its smaller defaults for a CPU, for options that were not given."""
    without_gpu = models.WITHOUT_GPU.get(model.name, {})
    options = {key: value for key, value in without_gpu.items() if key not in model.options}
    chosen = catalogue.resolve(Choice.of(model.name, {**model.options, **options}), models.TABLE)
    if options:
        defaults = {option.name: option.default for option in catalogue.read(model.name, models.TABLE).options}
        full = Choice.of(model.name, {**model.options, **{key: defaults[key] for key in options}})
        remarks.append(f"{chosen} stands in for the full-size {model} on a CPU; for that, say {full}")
    return chosen


def check_data(directory: str | None, chosen: list[Choice]) -> None:
    """Raises UserError for a folder without MNIST's files, and for a chosen model that reads no files."""
    if directory is None:
        return
    if not directory or not Path(directory).is_dir():
        raise UserError(f"--data: '{directory}' is not a folder", hint="name the folder that holds the IDX files")
    for model in chosen:
        if "data_directory" not in catalogue.read(model.name, models.TABLE).parameters:
            message = f"--data has no effect on '{model}', which makes its own batch"
            raise UserError(message, hint="leave it out for this model")
    if not any((Path(directory) / below / name).is_file() for below, name in models.DATA_FILES):
        names = " or ".join(str(Path(below) / name) for below, name in models.DATA_FILES)
        raise UserError(f"--data: '{directory}' holds no MNIST files", hint=f"it should have {names}")
