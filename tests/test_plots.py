"""What the pictures promise: every point named, nothing over anything else or cropped, sizes, fonts and colours."""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from profiler.analysis.live_bytes import curve
from profiler.analysis.rows import Row, rows
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.trace_data import Trace, live
from profiler.core.units import bytes_text
from profiler.runs import store
from profiler.views import PLOTS
from profiler.views.plots import draw, plot, theme
from profiler.views.plots.steps import draw_traces
from profiler.views.plots.theme import STYLES
from tests import examples, make
from tests.make import MIB
from tests.traced import random_traces, traced

CASES = {
    "usual": examples.sweep() + examples.sweep(round=2),
    "crowded": examples.sweep(tuple(range(1, 33))),
    "troubled": examples.troubled(),
    "alike": [make.record(f"segments:k={number}") for number in range(2, 16)],  # fourteen points on one spot
}
ALIKE = ("frontier", "memory", "time", "samples")  # a panel for rows that differ in the strategy alone
REFERENCE = Path(__file__).parent.parent / "results" / "reference"
EDGE = 1.0  # pixels that antialiasing may take


def reference(name: str) -> tuple[Row, ...]:
    return rows(store.load(REFERENCE / name).records)


def batches(**how) -> tuple[Row, ...]:
    return rows(examples.batches(**how))


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def box(text: Text) -> Bbox:
    return Text.get_window_extent(text)


def lie_apart(boxes: list[Bbox], frame: Bbox) -> bool:
    within = [frame.x0 <= box.x0 < box.x1 <= frame.x1 and frame.y0 <= box.y0 < box.y1 <= frame.y1 for box in boxes]
    return all(within) and not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize("name", CASES)
def test_the_names_of_up_to_fourteen_points_and_of_the_ends_of_a_crowd_are_all_there_and_keep_apart(name):
    table = rows(CASES[name])
    drawn = [row for row in table if row.outcome == "out_of_memory" or (row.outcome == "ok" and row.step_seconds)]
    if name == "crowded":
        smallest = min(table, key=lambda row: row.readings.peak_bytes or 0)
        drawn = [table[0], smallest, max(table, key=lambda row: row.step_seconds or 0)]

    (axes,) = draw(table, kind="frontier").axes

    every = {theme.name(row) for row in table}
    named = {text.get_text(): box(text) for text in axes.texts if text.get_text() in every}
    assert {theme.name(row) for row in drawn} <= set(named)
    assert name == "crowded" or len(named) == len(drawn)
    assert lie_apart([*named.values()], axes.get_window_extent())


@pytest.mark.parametrize("kind", PLOTS)
def test_a_name_is_never_read_as_mathematics(kind):
    name = "$\\frac$"
    cases = [make.case(name * times, model=Choice(name), batch_size=size) for size in (8, 16) for times in (1, 2)]
    failed = [make.failed(name, "out_of_memory", "why", case=case) for case in cases[1::2]]

    draw(rows([*(make.record(case=case) for case in cases[::2]), *failed]), kind=kind)


@pytest.mark.parametrize("kind", PLOTS)
def test_axes_name_their_units(kind):
    axes = draw(rows(CASES["usual"]) if kind in ALIKE else batches(), kind=kind).axes[0]

    labels = axes.get_xlabel() + axes.get_ylabel()
    assert ("(MiB)" in labels) == (kind not in ("time", "samples"))
    assert ("(ms)" in labels) == (kind in ("frontier", "time", "samples"))


def test_the_bars_of_a_peak_sum_to_it_and_carry_it():
    axes = draw(rows([make.record("none", peak=100 * MIB)]), kind="memory").axes[0]

    assert sum(patch.get_width() for patch in axes.patches) == pytest.approx(100)  # type: ignore[attr-defined]
    assert "100.0" in texts(axes)


def test_an_axis_that_does_not_begin_at_zero_says_so():
    def labels(peak: int, seconds: float) -> list[bool]:
        records = [make.record("none", seconds=(1.0,) * 6), make.record("all", peak=peak * MIB, seconds=(seconds,) * 6)]
        axes = draw(rows(records), kind="frontier").axes[0]
        return ["axis does not start at 0" in label for label in (axes.get_xlabel(), axes.get_ylabel())]

    assert labels(98, 1.1) == [True, True]
    assert labels(10, 0.1) == [False, False]


# the ends of each line of the contour: a column ends at its number and a half, and the rows are none, sqrt, all
FITS = {((2.5, 2.5), (-0.5, 0.5)), ((2.5, 3.5), (0.5, 0.5))}  # none at 64 is out of memory; sqrt at 64 below it is not
NEEDED = {((1.5, 1.5), (-0.5, 0.5)), ((1.5, 2.5), (0.5, 0.5)), ((2.5, 3.5), (0.5, 0.5))}  # at 16 164 MiB, at 32 228


@pytest.mark.parametrize(
    ("table", "expected", "words"),
    [
        (batches(), FITS, "memory of the device: 300 MiB"),
        (batches(device="fake:h100", limit=800 * MIB), NEEDED, "counting CUDA itself and all that is reserved"),  # 600
    ],
)
def test_the_contour_runs_between_what_fits_and_what_does_not(table, expected, words):
    figure = draw(table, kind="heat")

    edges = [line for line in figure.axes[0].lines if str(line.get_label()).startswith("memory of the device")]
    assert {(tuple(line.get_xdata()), tuple(line.get_ydata())) for line in edges} == expected
    assert any(words in text.get_text() for one in figure.legends for text in one.get_texts())


def test_every_cell_has_its_peak_or_a_word_and_a_curve_how_it_grows():
    cells, growth = Counter(texts(draw(batches(), kind="heat").axes[0])), draw(batches(), kind="growth").axes[0]

    assert {f"{row.readings.peak_bytes / MIB:.1f}" for row in batches() if row.outcome == "ok"} <= set(cells)
    assert (cells["invalid"], cells["·"]) == (1, 1)  # the latter did not run
    assert growth.get_legend().get_texts()[0].get_text() == "none: 100 + 4 n"  # MiB without it, and 4 a sample


STRATEGIES = ("none", "segments:k=2", "all")


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return {name: traced("transformer:layers=4,width=32", name, optimizer="adamw")[0] for name in STRATEGIES}


def filled(axes: Axes, *, shades: bool = False) -> list:
    """The filled areas of a panel, or the shades of its recomputes."""
    areas = [one for one in axes.collections if isinstance(one, PolyCollection) and (one.zorder < 1) == shades]
    return [path for area in areas for path in area.get_paths()]


@settings(deadline=None, max_examples=60)
@given(trace=random_traces())
def test_the_points_of_any_trace_are_in_order_and_hold_what_is_live(trace):
    held = live(trace)

    operators, nbytes = curve(trace, num_points=5)

    totals = [sum(of_category[at] for of_category in nbytes.values()) for at in range(len(operators))]
    assert operators == sorted(set(operators))
    assert totals == [held[number] for number in operators]
    assert max(totals) == max(held)


def test_a_panel_for_each_strategy_in_their_order_has_its_recomputes_shaded_and_its_peak_drawn_marked_and_said(traces):
    figure = draw_traces(traces, title="mine")

    assert "(KiB)" in figure.get_supylabel()
    assert [name for axes in figure.axes for name in texts(axes) if name in STRATEGIES] == list(STRATEGIES)
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}) == 1
    assert [len(filled(axes, shades=True)) for axes in figure.axes] == [0, 1, 4]
    for axes, trace in zip(figure.axes, traces.values(), strict=True):
        (mark,) = [line for line in axes.lines if line.get_label() == "peak"]
        held = live(trace)
        assert max(path.vertices[:, 1].max() for path in filled(axes)) * 1024 == pytest.approx(max(held))
        assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([held.index(max(held))], [max(held) / 1024])
        assert any(text.startswith(f"peak {bytes_text(max(held))}: ") for text in texts(axes))


def cropped(figure: Figure) -> list[str]:
    """Texts that reach over the edge of the picture; ticks outside the limits are not drawn at all."""
    ticks = {
        label
        for axes in figure.axes
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim()))
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not min(limits) <= tick.get_loc() <= max(limits)
        for label in (tick.label1, tick.label2)
    }
    frame = figure.bbox.padded(EDGE)
    figure.draw_without_rendering()  # an annotation has its place when it is drawn
    seen = [one for one in figure.findobj(Text) if one.get_visible() and one.get_text().strip() and one not in ticks]
    return [one.get_text() for one in seen if not lie_apart([box(one)], frame)]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", PLOTS)
def test_no_text_of_a_committed_run_is_cropped(kind, style):
    found = reference("cpu/mnist-cnn" if kind in ALIKE else "predicted-t4/transformer-batches")

    assert cropped(draw(found, kind=kind, style=STYLES[style])) == []
    if kind == "heat":
        depths = reference("predicted-t4/cifar-resnet-depths")
        assert cropped(draw(depths, kind=kind, style=STYLES[style], over=("depth", "batch_size"))) == []


def test_a_slide_fills_a_screen_a_paper_is_a_column_wide_with_true_type_and_another_suffix_is_refused(tmp_path):
    def written(name: str, style: str) -> Path:
        return plot(reference("cpu/mnist-cnn"), kind="memory", path=tmp_path / name, style=STYLES[style])

    paper = written("figure.pdf", "paper").read_bytes()

    assert imread(written("slide.png", "slides")).shape[:2] == (1080, 1920)
    assert float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", paper)[1]) == pytest.approx(3.35 * 72, abs=0.1)
    assert b"/FontFile2" in paper
    assert b"/Type3" not in paper
    with pytest.raises(UserError, match="jpg"):
        written("slide.jpg", "slides")
