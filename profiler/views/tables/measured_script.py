"""What a command took on the device that is here: phases of each strategy, then time and gradients beside `none`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from profiler.analysis import time_ratio
from profiler.analysis.time_ratio import TimeRatio
from profiler.core.script import Gradients
from profiler.core.stats import num_warmup, num_warmup_pairs, pair_ratios, ratio_of_pairs
from profiler.core.units import byte_unit, bytes_text, change_range_text, change_text, count_text, scaled, seconds_text
from profiler.scripts.report import Variant
from profiler.views.tables import script
from profiler.views.tables.grid import Table, of_lines
from profiler.views.tables.script import peak_text

Rounds = Sequence[Sequence[float]]


def tables(variants: Sequence[Variant]) -> list[Table]:
    """Return of each strategy its sentence and its phases, then one row for each."""
    tables = []
    for variant in variants:
        if variant.processes or variant.outcome != "ok":
            tables.append(Table(above=(sentence(variant, variants[0]),)))
        tables += script.phases(variant)
    if any(variant.processes for variant in variants):
        tables.append(_summary(variants))
    return tables


def sentence(variant: Variant, plain: Variant) -> str:
    """Return where the peak is, how long a step takes against `none`, and whether the gradients are its."""
    more = [f"{name} {value}" for name, value in variant.words.items() if name not in ("strategy", "device")]
    room = f" ({bytes_text(variant.gpu_bytes)})" if variant.gpu_bytes else ""
    device = "this CPU" if variant.words["device"] == "cpu" else f"{variant.words['device']}{room}"
    called = f"{', '.join((variant.words['strategy'], *more))} on {device}"
    if variant.outcome != "ok":
        why = variant.detail or next((process.detail for process in variant.processes if process.detail), None)
        return f"{called}: {variant.outcome.replace('_', ' ')}{f': {why}' if why else ''}"
    parts = [peak_text(variant.largest.peak)] if variant.processes else []
    ratio = ratio_to(variant.seconds, plain.seconds) if variant is not plain else None
    if ratio:
        parts.append(f"time of a step {ratio_text(ratio)} against none")
    elif variant is plain and (seconds := step_seconds(variant.seconds)) is not None:
        parts.append(f"a step takes {seconds_text(seconds)} here")
    if variant.equality:
        parts.append(f"gradients {equality_text(variant.equality, is_plain=variant is plain)}")
    return f"{called}{', in what ran' if variant.is_cut else ''}: {'; '.join(parts)}"


def step_seconds(rounds: Rounds) -> float | None:
    """Return the median of all steps after warm-up."""
    steady = [second for seconds in rounds for second in seconds[num_warmup(seconds) :]]
    return median(steady) if steady else None


def ratio_to(rounds: Rounds, plain: Rounds) -> TimeRatio | None:
    """Return the ratio of the steps' times, and its range over the rounds; a round's is that of pairs of equal steps.

    What the script does between two steps, such as an evaluation, then stands on both sides of a pair.
    """
    ratios = []
    for seconds, others in zip(rounds, plain, strict=False):
        settled = num_warmup_pairs(seconds, others)
        if pairs := pair_ratios(seconds[settled:], others[settled:]):
            ratios.append(ratio_of_pairs(pairs)[0])
    return time_ratio.of_rounds(ratios) if ratios else None


def ratio_text(ratio: TimeRatio) -> str:
    limits = f" ({change_range_text(ratio.interval)})" if ratio.interval else " (unsure: one round)"
    return f"{change_text(ratio.ratio)}{limits}"


def equality_text(equality: Gradients, *, is_plain: bool) -> str:
    """Return the verdict in words."""
    if equality.verdict == "equal":
        return "repeat to the bit" if is_plain else "equal none's to the bit"
    if equality.verdict in ("not comparable", "unverified"):
        return f"{equality.verdict}: {equality.detail}"
    share = f"{equality.num_differing} of {equality.num_gradients}"
    size = "" if equality.largest_difference is None else f" by up to {equality.largest_difference:.1e}"
    where = f": {share}{size}, first {equality.parameter} in step {equality.step}" if equality.parameter else ""
    more = f"; {equality.detail}" if equality.detail else ""
    word = "differ within rounding" if equality.verdict == "equal within rounding" else "differ"
    return f"{word}{where}{more}"


def _summary(variants: Sequence[Variant]) -> Table:
    plain = variants[0]
    size, unit = byte_unit(process.peak_bytes for variant in variants for process in variant.processes)
    rounds = max(len(variant.seconds) for variant in variants)
    title = f"all strategies, {count_text(rounds, 'round')}" if rounds else "all strategies"
    timed = ("step", "time") if rounds else ()
    lines = []
    for variant in variants:
        peak = max((process.peak_bytes or 0 for process in variant.processes), default=None)
        ratio = ratio_to(variant.seconds, plain.seconds) if variant is not plain else None
        times = (seconds_text(step_seconds(variant.seconds)), ratio_text(ratio) if ratio else "")[: len(timed)]
        text = scaled(peak, size) if variant.outcome == "ok" and peak is not None else ""
        lines.append((variant.words["strategy"], text, *times, _verdict(variant, is_plain=variant is plain)))
    figures = (f"peak {unit}", *timed)
    columns = of_lines(("strategy", *figures, "gradients"), lines, numbers=figures)
    below = "times are of this CPU; those of another device are not known by them"
    return Table(title=title, columns=columns, below=(below,) if plain.gpu_bytes is None and rounds else ())


def _verdict(variant: Variant, *, is_plain: bool) -> str:
    if variant.outcome != "ok":
        return variant.outcome.replace("_", " ")
    equality = variant.equality
    if equality is None:
        return ""
    return ("repeat" if is_plain else "equal") if equality.verdict == "equal" else equality.verdict
