"""The advice of a report in one sentence, and the texts for each budget."""

from __future__ import annotations

from collections.abc import Sequence

from profiler.analysis.advice import Advice, BudgetPoint, Limit
from profiler.analysis.rows import Row
from profiler.analysis.timing_doubts import NOISY
from profiler.core.units import bytes_text, change_range_text, few, seconds_text
from profiler.views.sanitize import short
from profiler.views.tables.columns import NOISE, ratio_text
from profiler.views.tables.evidence import outcome

LONGEST = 60  # characters of a name within a sentence
MAX_NAMED = 2  # rivals by name; more are counted
HALF = (0.475, 0.525)
REASONS = {
    "optimizer": "the peak is then in the optimizer's step, which holds no activations",
    "static": "{size} of that peak is static, which no checkpointing lowers",
    "transient": "{size} of that peak is transient, in the {phase}",
    "saved": "{size} of that peak is what the forward still keeps for the backward",
}


def sentence(advice: Advice, rows: Sequence[Row]) -> str:
    """Return the advice in one sentence, which says so if it does not rest on measurements."""
    text = f"{_first(advice, rows)}{_below(advice, rows)}."
    return text if rows[0].evidence == "measured" else f"{rows[0].evidence.capitalize()}, not measured: {text}"


def name(row: Row) -> str:
    """Return the strategy, short enough for a sentence."""
    return short(row.case.strategy, LONGEST)


def budget(stair: BudgetPoint) -> str:
    """Return the best strategy from a budget upwards in words, with those whose times cannot be told from its own."""
    row = stair.best
    peak = f"peak {bytes_text(row.readings.peak_bytes)}"
    time = [f"{_estimated(row)}step {seconds_text(row.step_seconds)}"] if row.step_seconds is not None else []
    change = [_change(row)] if row.time_ratio and row.case.strategy != "none" else []
    why = {"time": [], "flops": ["least is computed; no times"], "peak": ["the lowest peak; no times"]}[stair.by]
    rivals = f", or {_named(stair.rivals)}: the times cannot be told apart" if stair.rivals else ""
    return f"{name(row)} ({', '.join([peak, *time, *change, *why])}){rivals}"


def _change(row: Row) -> str:
    ratio = ratio_text(row)
    return f"a time {NOISE}" if ratio == NOISE else f"{ratio} time"


def no_budget(stair: BudgetPoint) -> str:
    """Return the text for every budget below the lowest peak."""
    lowest = f"the lowest peak is {bytes_text(stair.budget_bytes)}, by {name(stair.best)}"
    return f"nothing {stair.best.evidence} fits: {lowest}"


def _first(advice: Advice, rows: Sequence[Row]) -> str:
    chosen, baseline = advice.chosen, advice.baseline
    if chosen is None:
        outcomes = dict.fromkeys(outcome(row) for row in rows if row.outcome != "ok")
        why = f": {', '.join(outcomes)}" if outcomes else ""
        return f"no row has a peak that could be compared{why}"
    if baseline is None:
        return _without_baseline(chosen, advice, rows)
    if chosen is baseline:
        verdict = f"keep none: nothing here saves 2 % of its peak of {_peak(chosen)}"
        return f"none peaks at {_peak(chosen)}, and there is no other to compare with" if _is_alone(rows) else verdict
    ratio = chosen.peak_ratio or 0
    fall = "halves the peak" if HALF[0] <= ratio <= HALF[1] else f"lowers the peak by {(1 - ratio) * 100:.0f} %"
    sizes = f" ({_peak(baseline)} to {_peak(chosen)})"
    return f"{name(chosen)} {fall}{sizes} {_time(chosen, advice.certainty)}{_rivals(advice.rivals)}"


def _without_baseline(chosen: Row, advice: Advice, rows: Sequence[Row]) -> str:
    none = next((row for row in rows if row.case.strategy == "none"), None)
    failed = "ran out of memory" if none and none.outcome == "out_of_memory" else "has no result"
    why = f"none {failed}" if none else "there is no row without checkpointing to compare with"
    best = "the fastest" if chosen.step_seconds is not None else "the lowest peak"
    time = f", {_estimated(chosen)}{seconds_text(chosen.step_seconds)} a step" if chosen.step_seconds else ""
    noisy = ", but the times are noisy" if (chosen.step_spread or 0) > NOISY else ""
    return f"{why}; {best} of what ran is {name(chosen)} ({_peak(chosen)}{time}){_rivals(advice.rivals)}{noisy}"


def _is_alone(rows: Sequence[Row]) -> bool:
    return sum(row.outcome == "ok" and row.readings.peak_bytes is not None for row in rows) == 1


def _time(row: Row, certainty: str) -> str:
    """Return what the lower peak costs in time, in words."""
    ratio = row.time_ratio or 0
    more = f"{abs(ratio - 1) * 100:.0f} % {'more' if ratio >= 1 else 'less'} time"
    limits = row.time_ratio_range
    of = "at 95 %" if row.time and row.time.num_pairs else "over the rounds"
    over = f" ({change_range_text(limits)} % {of})" if limits and limits[0] < limits[1] else ""
    return {
        "missing": "at a cost in time that is not known here",
        "estimated": f"for an estimated {more}",
        "single": f"for {more}, of too few steps to be sure",
        "noisy": "in a time that is too noisy to tell",
        "same": f"in a time that cannot be told from that of none{over}",
        "sure": f"for {more}{over}",
    }[certainty]


def _below(advice: Advice, rows: Sequence[Row]) -> str:
    """Return the lowest peak that can be reached, and why it is no lower if its parts are known, in words."""
    lowest, limit = advice.lowest, advice.limit
    if lowest is None or (_is_alone(rows) and advice.baseline):
        return ""
    kind = lowest.evidence
    by = "" if lowest is advice.chosen else f", which {name(lowest)} reaches,"
    return f"; below {_peak(lowest)}{by} nothing {kind} here helps{_because(limit) if limit else ''}"


def _because(limit: Limit) -> str:
    text = REASONS[limit.kind].format(size=bytes_text(limit.nbytes), phase=limit.phase or "step")
    is_same = limit.kind == "transient" and limit.num_alike > 2
    alike = f" and {limit.num_alike} strategies peak alike"
    return f", because {text}{alike if is_same else ''}"


def _rivals(rivals: Sequence[Row]) -> str:
    if not rivals:
        return ""
    verb = "is" if len(rivals) == 1 else "are"
    return f", and {_named(rivals)} {verb} as fast as far as can be told"


def _named(rows: Sequence[Row]) -> str:
    names = [name(row) for row in rows]
    return few(names, MAX_NAMED) if len(names) > MAX_NAMED else " and ".join(names)


def _peak(row: Row) -> str:
    return bytes_text(row.readings.peak_bytes)


def _estimated(row: Row) -> str:
    return "estimated " if row.case.has_estimated_times else ""
