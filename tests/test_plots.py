"""What the pictures promise: every point named, nothing over anything else, no name read as mathematics."""

from itertools import combinations

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from profiler.analysis.rows import Row, rows
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.views import PLOTS
from profiler.views.plots import draw, plot, theme
from tests import examples, make

CASES = {
    "usual": examples.sweep() + examples.sweep(round=2),
    "crowded": examples.sweep(tuple(range(1, 33))),
    "models": examples.sweep() + examples.sweep((2, 4, 8), model="transformer:layers=12,width=768"),
    "troubled": examples.troubled(),
    "single": [examples.point("none", segments=1, seconds=0.1)],
    "alike": [make.record(f"segments:k={number}") for number in range(2, 16)],  # fourteen points on one spot
}
ALIKE = ("frontier", "memory", "time", "samples")  # a panel for rows that differ in the strategy alone


def boxes(axes: Axes, names: set[str]) -> dict[str, Bbox]:
    canvas = axes.figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    texts = [text for text in axes.texts if text.get_text() in names]
    return {text.get_text(): Text.get_window_extent(text, canvas.get_renderer()) for text in texts}


def names(rows: tuple[Row, ...]) -> set[str]:
    return {theme.name(row) for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_label_meets_another_or_leaves_the_axes(name):
    rows = examples.table(CASES[name])
    figure = draw(rows, kind="frontier")

    for axes in figure.axes:
        found = boxes(axes, names(rows))
        frame = axes.get_window_extent()
        assert found
        for box in found.values():
            assert frame.x0 <= box.x0 < box.x1 <= frame.x1
            assert frame.y0 <= box.y0 < box.y1 <= frame.y1
        for one, other in combinations(found.values(), 2):
            assert not one.overlaps(other)


@pytest.mark.parametrize("name", ["usual", "troubled", "single", "alike"])
def test_up_to_fourteen_points_are_all_named(name):
    rows = examples.table(CASES[name])
    drawn = {
        theme.name(row) for row in rows if row.outcome == "out_of_memory" or (row.outcome == "ok" and row.step_seconds)
    }

    assert set(boxes(draw(rows, kind="frontier").axes[0], names(rows))) == drawn


def test_in_a_crowd_the_ends_of_the_frontier_are_named():
    rows = examples.table(CASES["crowded"])
    smallest = min(rows, key=lambda row: row.readings.peak_bytes or 0)
    slowest = max(rows, key=lambda row: row.step_seconds or 0)

    named = set(boxes(draw(rows, kind="frontier").axes[0], names(rows)))

    assert {"none", theme.name(smallest), theme.name(slowest)} <= named


@pytest.mark.parametrize("kind", PLOTS)
def test_a_name_is_never_read_as_mathematics(kind):
    name, model = "$\\frac$", Choice("$\\frac$")
    records = [
        *(make.record(name, case=make.case(name, model=model, batch_size=size)) for size in (8, 16)),
        *(
            make.failed(f"{name}2", "out_of_memory", "why", case=make.case(name * 2, model=model, batch_size=size))
            for size in (8, 16)
        ),
    ]

    draw(examples.table(records), kind=kind)


@pytest.mark.parametrize("kind", PLOTS)
def test_axes_name_their_units(kind):
    axes = draw(examples.table(CASES["usual"] if kind in ALIKE else examples.batches()), kind=kind).axes[0]

    labels = axes.get_xlabel() + axes.get_ylabel()
    assert ("(MiB)" in labels) == (kind not in ("time", "samples"))
    assert ("(ms)" in labels) == (kind in ("frontier", "time", "samples"))


def test_the_bars_of_a_peak_sum_to_it_and_carry_it():
    axes = draw(examples.table([make.record("none", peak=100 * make.MIB)]), kind="memory").axes[0]

    bars = [patch.get_width() for patch in axes.patches]  # type: ignore[attr-defined]
    assert sum(bars) == pytest.approx(100)
    assert any(text.get_text() == "100.0" for text in axes.texts)


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(UserError, match="jpg"):
        plot(examples.table(CASES["usual"]), kind="memory", path=tmp_path / "figure.jpg")


def test_a_picture_of_more_panels_than_can_be_read_is_refused():
    found = rows([make.record(case=make.case("none", batch_size=size + 1)) for size in range(25)])

    with pytest.raises(UserError, match="25 panels"):
        draw(found, kind="time")


def test_an_axis_that_does_not_begin_at_zero_says_so():
    close, far = ([make.record(name, peak=peak << 20, seconds=(time,) * 6) for name, peak, time in rows] for rows in (
        (("none", 100, 1.0), ("all", 98, 1.1)), (("none", 100, 1.0), ("all", 10, 0.1)),
    ))  # fmt: skip

    def labels(records):
        axes = draw(examples.table(records), kind="frontier").axes[0]
        return axes.get_xlabel(), axes.get_ylabel()

    assert labels(close) == tuple(
        f"{name}, axis does not start at 0" for name in ("peak memory (MiB)", "step time (ms)")
    )
    assert labels(far) == ("peak memory (MiB)", "step time (ms)")
