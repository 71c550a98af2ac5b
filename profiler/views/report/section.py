"""A section of the report, which shows one group of rows: its advice in words, its tables and its pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import BytesIO
from statistics import median
from typing import Any

import msgspec
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from profiler.analysis.advice import Advice, BudgetPoint, advise, budget_frontier
from profiler.analysis.live_bytes import most_of_peak, peak_parts
from profiler.analysis.rows import TIMES, Row, foretells
from profiler.analysis.time_ratio import VARYING
from profiler.core import by_key, units
from profiler.core.errors import UserError
from profiler.core.plan_file import strategy_label
from profiler.core.record import PHASES, Environment
from profiler.core.stats import spread
from profiler.core.units import MISSING, bytes_text, few, seconds_text
from profiler.scripts.report import Variant
from profiler.views.plots import draw
from profiler.views.plots.frontier import draw_script, positions
from profiler.views.plots.steps import MEMORY, SAMPLES, draw_steps, recorded
from profiler.views.plots.theme import Style, at_work
from profiler.views.sanitize import plain, short, shortened
from profiler.views.tables import Table, of_lines
from profiler.views.tables.columns import (
    card,
    group_table,
    heading,
    is_point,
    outcome,
    peak_name,
    ratio_text,
    reasons,
    remarks,
)
from profiler.views.tables.details import samples_of
from profiler.views.tables.explanation import module_name

LONGEST_REASON, LONGEST_NOTE, LONGEST_TITLE = 300, 600, 240  # letters
NUM_STOPS = 40  # of the slider, evenly spaced, besides those at the choices

LONGEST_NAME = 60  # characters of a name within a sentence
MAX_NAMED = 2  # rivals by name; more are counted
HALF = (0.475, 0.525)

FACTS = {  # the fields of an environment that are shown, with their heads
    "device_name": "device",
    "device_bytes": "memory of the device",
    "device_uuid": "number of the device",
    "driver": "driver",
    "cuda": "CUDA",
    "torch": "torch",
    "python": "Python",
    "system": "system",
    "num_threads": "threads",
    "gcprof": "gcprof",
}
MOST_BESIDE = 4  # environments beside each other
NUM_MISSING = 3  # parameters without a gradient that are named
Pair = tuple[Row, Row]  # a prediction, and a row by which its error is known


class PageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the runs is shown, so that the page stays small and is soon made."""

    sections: int
    drawn: int  # sections with all pictures
    frontiers: int  # sections with a picture of the frontier
    rows: int  # of a section: in its table and its picture
    lines: int  # of a picture with one line a strategy
    samples: int  # of a strategy
    timelines: int  # of a section


def section(
    rows: Sequence[Row], *, pairs: Sequence[Pair], anchor: str, limits: PageLimits, number: int
) -> dict[str, Any]:
    """Return all that is shown of one group of rows; `pairs` are the predictions of the run beside other rows.

    `number` counts the sections of the page: those beyond the limits have no pictures.
    """
    advice = advise(rows)
    shown, drawn = chosen(rows, advice, limits.rows), chosen(rows, advice, limits.lines)
    traced = chosen([row for row in rows if row.readings.timeline], advice, limits.timelines)
    own, is_drawn = set(map(id, rows)), number < limits.drawn
    brief: tuple[str, ...] = (MISSING,) * 4  # the peak of none, the advised strategy, its peak, its time against none
    if (row := advice.chosen) is not None:
        none_bytes = advice.baseline.readings.peak_bytes if advice.baseline else None
        brief = bytes_text(none_bytes), name(row), _peak(row), ratio_text(row)
    return {
        "anchor": anchor,
        "title": short(heading(rows), LONGEST_TITLE),
        "evidence": rows[0].evidence,
        "sentence": sentence(advice, rows),
        "brief": brief,
        "is_drawn": is_drawn,
        "frontier": frontier(shown, anchor) if number < limits.frontiers else None,
        "memory": strategies(drawn, "memory", anchor) if is_drawn else None,
        "timelines": timelines(traced, anchor) if is_drawn else None,
        "dots": strategies(drawn, "samples", anchor) if is_drawn else None,
        "budgets": _budgets(rows, advice),
        "table": msgspec.structs.replace(group_table(shown, is_bare=True), title="Every strategy"),
        "num_left_out": len(rows) - len(shown),
        "reasons": [plain(shortened(text, LONGEST_REASON)) for text in reasons(shown)],
        "phases": _phases(drawn),
        "explanation": _explanation(drawn),
        "predictions": _predictions([pair for pair in pairs if own & set(map(id, pair))][: limits.rows]),
        "equality": _equality(drawn),
        "samples": _samples(drawn, most=limits.samples),
        "environments": _environments(rows),
        "remarks": [plain(shortened(text, LONGEST_NOTE)) for text in remarks(shown)],
    }


def chosen(rows: Sequence[Row], advice: Advice, most: int) -> list[Row]:
    """Return at most `most` rows in their order; the advised, the baseline, the lowest and the frontier come first."""
    first = (advice.baseline, advice.chosen, advice.lowest)

    def rank(at: int) -> tuple[int, int]:
        row = rows[at]
        is_first = row.case.label == "none" or any(row is top_row for top_row in first)
        return 0 if is_first else 1 if row.on_frontier else 2, at

    places = sorted(range(len(rows)), key=rank)[:most]
    return [rows[at] for at in sorted(places)]


def _budgets(rows: Sequence[Row], advice: Advice) -> dict[str, Any] | None:
    """Return the slider, which stops at every choice, at the advised peak, and evenly over the range of peaks."""
    points = budget_frontier(rows)
    if not points or advice.chosen is None:
        return None
    lowest, advised, best = points[0].budget_bytes, advice.chosen.readings.peak_bytes or 0, points[0].best
    least, most = int(0.9 * lowest), max(row.readings.peak_bytes or 0 for row in rows if row.outcome == "ok")
    even = {least + (most - least) * at // NUM_STOPS for at in range(NUM_STOPS + 1)}
    stops = sorted(even | {advised} | {point.budget_bytes for point in points})
    nothing = f"nothing {best.evidence} fits: the lowest peak is {bytes_text(lowest)}, by {name(best)}"
    choices = [
        {"case": point.best.case.id, "budget_bytes": point.budget_bytes, "said": budget(point)} for point in points
    ]
    return {"stops": stops, "start": stops.index(advised), "nothing": nothing, "choices": choices}


def _explanation(rows: Sequence[Row]) -> list[str]:
    """Return a sentence on the parts of each peak, and one on the static memory, below which none can get."""
    said = {"static": "static", "saved": "kept by the forward", "transient": "transient"}
    shown, texts = [row for row in rows if row.outcome == "ok"], []
    for row in shown:
        readings = row.readings
        if parts := peak_parts(readings):
            where = f" in the {readings.peak_phase}" if readings.peak_phase else ""
            held = [f"{bytes_text(nbytes)} {said[part]}" for part, nbytes in parts.items()]
            texts.append(f"{name(row)}: {peak_name(row)} {_peak(row)}{where}: {', '.join(held)}")
            if (timeline := readings.timeline) and timeline.modules:
                modules = [f"{module_name(plain(one))} {bytes_text(most)}" for one, most in timeline.modules.items()]
                at = f"at {timeline.operator} of {module_name(plain(timeline.module or ''))}"
                texts[-1] += f"; {at}; the most is held by {', '.join(modules)}"
    if floors := [row.static_bytes for row in shown if row.static_bytes is not None]:
        texts.append(f"no checkpointing gets below the static memory of {bytes_text(min(floors))}")
    return texts


def sentence(advice: Advice, rows: Sequence[Row]) -> str:
    """Return the advice in one sentence, which says so if it does not rest on measurements."""
    is_alone = sum(row.has_peak for row in rows) == 1
    if is_alone and advice.baseline:
        text = f"none peaks at {_peak(advice.baseline)}, and there is no other to compare with."
    else:
        text = _first(advice, rows)
        if (lowest := advice.lowest) is not None:  # that can be reached, and why it is no lower if its parts are known
            by = "" if lowest is advice.chosen else f", which {name(lowest)} reaches,"
            why = (most_of_peak(lowest.readings) or "").replace("`", "")
            text += f"; below {_peak(lowest)}{by} nothing {lowest.evidence} here helps{f': {why}' if why else ''}"
        text += "."
    return text if rows[0].evidence == "measured" else f"{rows[0].evidence.capitalize()}, not measured: {text}"


def name(row: Row) -> str:
    """Return the strategy, short enough for a sentence."""
    return short(row.case.label, LONGEST_NAME)


def budget(stair: BudgetPoint) -> str:
    """Return the best strategy from a budget upwards in words, with those whose times cannot be told from its own."""
    why = {"time": "", "flops": ", the fewest FLOPs; not timed", "peak": ", the lowest peak; not timed"}[stair.by]
    rivals = f", or {_named(stair.rivals)}: the times cannot be told apart" if stair.rivals else ""
    return f"{said(stair.best)}{why}{rivals}"


def _first(advice: Advice, rows: Sequence[Row]) -> str:
    chosen, baseline = advice.chosen, advice.baseline
    if chosen is None:
        outcomes = dict.fromkeys(outcome(row) for row in rows if row.outcome != "ok")
        why = f": {', '.join(outcomes)}" if outcomes else ""
        return f"no row has a peak that could be compared{why}"
    if baseline is None:
        none = next((row for row in rows if row.case.label == "none"), None)
        failed = "ran out of memory" if none and none.outcome == "out_of_memory" else "has no result"
        why = f"none {failed}" if none else "there is no row without checkpointing to compare with"
        best = "the fastest" if chosen.step_seconds is not None else "the lowest peak"
        time = f", {_estimated(chosen)}{seconds_text(chosen.step_seconds)} a step" if chosen.step_seconds else ""
        noisy = ", but the times are noisy" if (chosen.step_spread or 0) > VARYING else ""
        return f"{why}; {best} of what ran is {name(chosen)} ({_peak(chosen)}{time}){_rivals(advice.rivals)}{noisy}"
    if chosen is baseline:
        return f"keep none: nothing here saves 2 % of its peak of {_peak(chosen)}"
    ratio, slowness = chosen.peak_ratio or 0, chosen.time_ratio or 0
    fall = "halves the peak" if HALF[0] <= ratio <= HALF[1] else f"lowers the peak by {(1 - ratio) * 100:.0f} %"
    sizes = f" ({_peak(baseline)} to {_peak(chosen)})"
    more = f"{abs(slowness - 1) * 100:.0f} % {'more' if slowness >= 1 else 'less'} time"
    limits = chosen.time_ratio_range
    of = "at 95 %" if chosen.time and chosen.time.num_pairs else "over the rounds"
    over = f" ({units.change_range_text(limits)} % {of})" if limits and limits[0] < limits[1] else ""
    cost = {
        "missing": "at a cost in time that is not known here",
        "estimated": f"for an estimated {more}",
        "single": f"for {more}, unsure: too few steps" if slowness >= 1 else "in a time that is unsure: too few steps",
        "noisy": "in a time that is too noisy to tell",
        "same": f"in a time that cannot be told from that of none{over}",
        "sure": f"for {more}{over}",
    }[advice.certainty]
    return f"{name(chosen)} {fall}{sizes} {cost}{_rivals(advice.rivals)}"


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


def _phases(rows: Sequence[Row]) -> Table | None:
    """Return the bytes live at the points of the step that a record stores."""
    heads = "strategy", "before the forward", "forward peak", "kept for the backward", "backward peak", "optimizer peak"
    lines = []
    for row in (row for row in rows if row.readings.phases):
        watermarks = row.readings.phases or {}
        forward, backward, optimizer = (getattr(watermarks.get(phase), "allocated", None) for phase in PHASES)
        points = row.readings.start_bytes, forward, row.readings.saved_bytes, backward, optimizer
        lines.append((strategy_label(row.case.strategy), *map(bytes_text, points)))
    return _table("Live memory over the step", heads, lines, texts=1)


def prediction_pairs(rows: Iterable[Row]) -> list[Pair]:
    """Return each prediction with the rows of the same point by which its error is known."""
    known = [row for row in rows if row.prediction_error is not None]
    predicted = by_key((row.case.twin, row) for row in known if row.evidence == "predicted")
    return [
        (prediction, row)
        for row in known
        for prediction in predicted.get(row.case.twin, ())
        if row.evidence == prediction.prediction_against and foretells(prediction.case, row.case)
    ]


def _predictions(pairs: Sequence[Pair]) -> Table | None:
    """Return predictions beside what was measured or rehearsed."""
    against = " or ".join(sorted({other.evidence for _, other in pairs}))
    heads = ("strategy", "predicted peak", f"{against} peak", "peak off by", "estimated step", "measured step")
    shown = heads if any(other.step_seconds is not None for _, other in pairs) else heads[:-2]
    lines = []
    for pair in pairs:
        peaks = [bytes_text(row.readings.peak_bytes) for row in pair]
        times = [seconds_text(row.step_seconds) for row in pair]
        lines.append((strategy_label(pair[0].case.label), *peaks, units.error_text(pair[1].prediction_error), *times))
    return _table(f"Predicted and {against}", shown, [line[: len(shown)] for line in lines], texts=1)


def _equality(rows: Sequence[Row]) -> Table | None:
    """Return what the equality pass found."""
    heads = ("strategy", "against", "gradients", "loss", "buffers", "random state", "worst or missing")
    numbers = ("largest difference", "noise floor")
    lines = []
    for row, equality in ((row, row.equality) for row in rows if row.equality):
        lost = f"{equality.num_without_gradient} without gradient" if equality.num_without_gradient else MISSING
        named = f"no gradient: {few(equality.missing, NUM_MISSING)}" if equality.missing else equality.worst_parameter
        verdicts = (equality.loss_equal, equality.buffers_equal, equality.random_state_equal)
        are_equal = ["equal" if is_equal else "differ" for is_equal in verdicts]
        differences = equality.largest_difference, equality.noise_floor
        shown = [MISSING if value is None else f"{value:.2g}" for value in differences]
        strategy = strategy_label(row.case.label)
        lines.append((strategy, equality.against, row.gradients, *are_equal, named or lost, *shown))
    return _table("Equality with the step without checkpointing", (*heads, *numbers), lines, texts=len(heads))


def _samples(rows: Sequence[Row], *, most: int) -> Table | None:
    """Return the raw samples of every part of the step in seconds, up to `most`, and their spread."""
    heads = ("strategy", "part", "samples in seconds, the rounds in order", "median", "spread")
    lines = []
    for row in rows:
        for name in TIMES:
            if times := samples_of(row, name):
                more = f" and {len(times) - most:,} more" if len(times) > most else ""
                shown = " ".join(f"{value:.6g}" for value in times[:most]) + more
                figures = seconds_text(median(times)), units.spread_text(spread(times))
                lines.append((strategy_label(row.case.label), name, shown, *figures))
    return _table("Raw samples", heads, lines, texts=3)


def _environments(rows: Sequence[Row]) -> Table | None:
    """Return a column per environment, those that differ only in their start being one, and a line per known fact."""

    def known(environment: Environment, name: str) -> str:
        value = getattr(environment, name)
        if name == "device_name":
            return card(value) or MISSING
        return bytes_text(value) if name == "device_bytes" else MISSING if value is None else str(value)

    environments = [row.environment for row in rows if row.environment]
    starts = by_key((msgspec.structs.replace(one, started=None), one.started or "") for one in environments)
    distinct = list(starts)[:MOST_BESIDE]
    lines = [(head, *(known(environment, name) for environment in distinct)) for name, head in FACTS.items()]
    shown = [line for line in lines if set(line[1:]) != {MISSING}]
    shown.append(("first trial began (UTC)", *(min(starts[environment]) or MISSING for environment in distinct)))
    values = ["value"] if len(distinct) == 1 else [f"environment {at + 1}" for at in range(len(distinct))]
    return _table("Environment", ["what", *values], shown, texts=1 + MOST_BESIDE) if distinct else None


def _table(title: str, heads: Sequence[str], lines: Sequence[tuple[str, ...]], *, texts: int) -> Table | None:
    """Return a table whose columns are numbers after the first `texts`; None without a line."""
    return Table(title=title, columns=of_lines(heads, lines, numbers=heads[texts:])) if lines else None


STYLE = Style(suffix="svg", width=8.5)
STRATEGIES = {
    "memory": (MEMORY, "Peak memory of each strategy, by category"),
    "samples": (SAMPLES, "Every sample of the step time of each strategy"),
}
Picture = dict[str, Any]  # what html draws


def frontier(rows: Sequence[Row], anchor: str) -> Picture | None:
    """Return times against peaks, with a point for each strategy; None if no row has both.

    Bytes from `low` to `high` are drawn from `left` to `right`, and `bottom` to `top` is the frame: the page's script
    draws the budget there.
    """
    shown = [row for row in rows if is_point(row)]
    if not shown:
        return None
    with at_work(STYLE):
        figure = draw(rows, kind="frontier", style=STYLE, has_titles=False)
    (axes,) = figure.axes
    height = figure.get_figheight() * 72

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x, y = axes.transData.transform(point) * 72 / figure.dpi
        return round(float(x), 1), round(height - float(y), 1)

    (low, high), (first, last) = axes.get_xlim(), axes.get_ylim()
    (left, bottom), (right, top) = place((low, first)), place((high, last))
    size, _ = units.byte_unit(row.readings.peak_bytes for row in shown)
    at, _ = positions(shown)
    points = [
        {"case": row.case.id, "at": place(at[row.case]), "said": said(row), "peak_bytes": row.readings.peak_bytes}
        for row in sorted(shown, key=lambda row: (row.case.label == "none", row.on_frontier))
    ]
    ends = {"low": low * size, "high": high * size, "bottom": bottom, "top": top, "left": left, "right": right}
    made = _picture(figure, "Step time against peak memory, a point for each strategy", f"{anchor}-frontier")
    return {**made, "points": points, **ends}


def said(row: Row) -> str:
    """Return a row in words, with its change against `none`."""
    is_baseline = row.case.label == "none"
    change = f" ({units.change_text(row.peak_ratio)})" if row.peak_ratio and not is_baseline else ""
    slower = f" ({ratio_text(row)})" if row.time_ratio and not is_baseline else ""
    step = f", {_estimated(row)}step {seconds_text(row.shown_seconds)}{slower}" if row.shown_seconds is not None else ""
    noise = f", spread {units.spread_text(row.step_spread)}" if row.step_spread is not None else ""
    return f"{name(row)}: {peak_name(row)} {_peak(row)}{change}{step}{noise}"


def strategies(rows: Sequence[Row], kind: str, anchor: str) -> Picture | None:
    """Return the peaks of the strategies by category (memory), or their samples of the step; None if no row has any."""
    view, words = STRATEGIES[kind]
    shown = [row for row in rows if view.has(row) and not (kind == "samples" and row.case.has_estimated_times)]
    if not shown:
        return None
    return _picture(draw(shown, kind=kind, style=STYLE, has_titles=False), words, f"{anchor}-{kind}")


def timelines(rows: Sequence[Row], anchor: str) -> Picture | None:
    """Return the live memory over the steps of these rows; None if none was stored."""
    steps = [recorded(row, row.readings.timeline) for row in rows if row.outcome == "ok" and row.readings.timeline]
    if not steps:
        return None
    with at_work(STYLE):
        figure = draw_steps(steps, title="", along="points of the step, in their order")
    return _picture(figure, "What is live over the step, by category", f"{anchor}-timeline")


def script_frontier(variants: Sequence[Variant], anchor: str) -> Picture | None:
    """Return the extra time of each strategy of a script against its peak; None if no time is known."""
    figure = None
    with at_work(STYLE), suppress(UserError):  # too many settings for a picture
        figure = draw_script(variants, STYLE)
    words = "Extra time of a step against peak memory, a point for each strategy"
    return _picture(figure, words, anchor) if figure else None


def _picture(figure: Figure, words: str, name: str) -> Picture:
    """Return a figure for the page, whose policy allows no style attribute: its styles become plain attributes.

    Ids that are referred to begin with `name`, so that no two pictures of a page share one; the page has its own
    ground.
    """

    def attributes(style: re.Match[str]) -> str:
        pairs = [part.strip().partition(": ") for part in style[1].split(";") if part.strip()]
        return "".join(f' {name}="{value}"' for name, _, value in pairs if name != "font-family")

    for ground in (figure.patch, *(axes.patch for axes in figure.axes)):
        ground.set_visible(False)
    text = BytesIO()
    with at_work(STYLE), rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    drawing = text.getvalue().decode()
    inside = drawing[drawing.index("</style>") : drawing.rindex("</svg>")].partition("</defs>")[2]
    inside = re.sub(r' style="([^"]*)"', attributes, inside)
    inside = re.sub(r' id="(?![mp][0-9a-f]{10})[^"]*"|<!--.*?-->', "", inside)
    inside = re.sub(r'(id="|#)([mp][0-9a-f]{10})', rf"\1{name}-\2", inside)
    inside = re.sub(r"(\d+\.\d)\d+", r"\1", inside)  # more decimals cannot be seen
    inside = re.sub(r"\s*\n\s*", " ", inside).replace("> <", "><")
    inside = re.sub(r"(L [\d.]+ [\d.]+ )\1+", r"\1", inside)  # a step draws its corners twice
    width, height = (round(float(inches) * 72, 1) for inches in figure.get_size_inches())
    return {"width": width, "height": height, "svg": Markup(inside.replace("xlink:href", "href")), "said": words}
