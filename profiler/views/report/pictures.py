"""The pictures of a report: the plots' own, as SVG inside the page, where its style and its script act on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from profiler.analysis.rows import Row
from profiler.core.plan_file import strategy_label
from profiler.core.units import byte_unit, bytes_text, change_text, seconds_text, spread_text
from profiler.views.plots.bars import MEMORY, SAMPLES
from profiler.views.plots.frontier import positions
from profiler.views.plots.plot import draw
from profiler.views.plots.theme import Style, at_work
from profiler.views.plots.timeline import draw_steps, recorded
from profiler.views.sanitize import short
from profiler.views.tables.columns import is_point, ratio_text
from profiler.views.tables.evidence import peak_name

STYLE = Style(suffix="svg", width=8.5)
LONGEST = 80  # characters of a name in the description of a point
STRATEGIES = {
    "memory": (MEMORY, "Peak memory of each strategy, by category"),
    "samples": (SAMPLES, "Every sample of the step time of each strategy"),
}
Picture = dict[str, Any]  # what pictures.html draws


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
    size, _ = byte_unit(row.readings.peak_bytes for row in shown)
    at, _ = positions(shown)
    points = [
        {"case": row.case.id, "at": place(at[row.case]), "said": said(row), "peak_bytes": row.readings.peak_bytes}
        for row in sorted(shown, key=lambda row: (row.case.label == "none", row.on_frontier))
    ]
    ends = {"low": low * size, "high": high * size, "bottom": bottom, "top": top, "left": left, "right": right}
    return {
        **_picture(figure, "Step time against peak memory, a point for each strategy", f"{anchor}-frontier"),
        "points": points,
        **ends,
    }


def said(row: Row) -> str:
    """Return a row in words, with its change against `none`."""
    is_baseline = row.case.label == "none"
    change = f" ({change_text(row.peak_ratio)})" if row.peak_ratio and not is_baseline else ""
    slower = f" ({ratio_text(row)})" if row.time_ratio and not is_baseline else ""
    kind = "estimated step" if row.case.has_estimated_times else "step"
    noise = f", spread {spread_text(row.step_spread)}" if row.step_spread is not None else ""
    peak = f"{peak_name(row)} {bytes_text(row.readings.peak_bytes)}{change}"
    name = short(strategy_label(row.case.label), LONGEST)
    return f"{name}: {peak}, {kind} {seconds_text(row.shown_seconds)}{slower}{noise}"


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


def _picture(figure: Figure, words: str, name: str) -> Picture:
    """Return a figure for the page, whose policy allows no style attribute: its styles become plain attributes.

    Ids that are referred to begin with `name`, so that no two pictures of a page share one; the page has its own
    ground.
    """
    for ground in (figure.patch, *(axes.patch for axes in figure.axes)):
        ground.set_visible(False)
    text = BytesIO()
    with at_work(STYLE), rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    drawing = text.getvalue().decode()
    inside = drawing[drawing.index("</style>") : drawing.rindex("</svg>")].partition("</defs>")[2]
    inside = re.sub(r' style="([^"]*)"', lambda style: "".join(_attributes(style[1])), inside)
    inside = re.sub(r' id="(?![mp][0-9a-f]{10})[^"]*"|<!--.*?-->', "", inside)
    inside = re.sub(r'(id="|#)([mp][0-9a-f]{10})', rf"\1{name}-\2", inside)
    inside = re.sub(r"(\d+\.\d)\d+", r"\1", inside)  # more decimals cannot be seen
    inside = re.sub(r"\s*\n\s*", " ", inside).replace("> <", "><")
    inside = re.sub(r"(L [\d.]+ [\d.]+ )\1+", r"\1", inside)  # a step draws its corners twice
    width, height = (round(float(inches) * 72, 1) for inches in figure.get_size_inches())
    return {"width": width, "height": height, "svg": Markup(inside.replace("xlink:href", "href")), "said": words}


def _attributes(style: str) -> list[str]:
    pairs = [part.strip().partition(": ") for part in style.split(";") if part.strip()]
    return [f' {name}="{value}"' for name, _, value in pairs if name != "font-family"]
