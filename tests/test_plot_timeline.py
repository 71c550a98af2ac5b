"""What the picture of a step promises: its peak, its phases, one legend, nothing over anything else."""

import pytest
from hypothesis import given, settings
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from profiler.analysis.live_bytes import curve, peak
from profiler.core.trace_data import Allocation, Operator, Trace, live
from profiler.views.plots.timeline import draw
from tests.traced import random_traces, traced

MIB = 2**20
STRATEGIES = ("none", "segments:k=2", "all")


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return {name: traced("transformer:layers=4,width=32", name, optimizer="adamw")[0] for name in STRATEGIES}


def huge(num_operators: int = 50_000) -> Trace:
    """A long step whose peak is one operator."""
    half = num_operators // 2
    operators = [Operator("aten.run", "m", "forward" if at < half else "backward", 0, 1) for at in range(num_operators)]
    lives = [Allocation(at % 997, at, at + 400, "aten.run", "m", "forward", "saved") for at in range(1, half, 7)]
    spike = Allocation(10 * MIB, 33_333, 33_333, "aten.run", "m", "backward", "temporaries")
    marks = (("zero", 0), ("forward", 0), ("backward", half), ("optimizer", num_operators), ("end", num_operators))
    return Trace(allocations=(*lives, spike), operators=tuple(operators), marks=marks)


def highest(figure: Figure, panel: int = 0) -> float:
    """Of all that is filled, in the axis's unit."""
    return max(path.vertices[:, 1].max() for one in stacks(figure, panel) for path in one.get_paths())


def stacks(figure: Figure, panel: int = 0) -> list[PolyCollection]:
    """The filled areas, without the shades of the recomputes."""
    return [one for one in figure.axes[panel].collections if isinstance(one, PolyCollection) and one.zorder >= 1]


def texts(figure: Figure, panel: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts]


# --- thinning


@pytest.mark.slow
@pytest.mark.parametrize("num_points", [1, 10, 2000])
def test_the_peak_is_among_the_points_after_thinning(num_points):
    trace = huge()

    operators, nbytes = curve(trace, num_points=num_points)

    assert len(operators) == num_points
    at = operators.index(33_333)
    assert sum(of_category[at] for of_category in nbytes.values()) == peak(trace).nbytes


@settings(deadline=None, max_examples=60)
@given(trace=random_traces())
def test_the_points_of_any_trace_are_in_order_and_hold_what_is_live(trace):
    held = live(trace)

    operators, nbytes = curve(trace, num_points=5)

    totals = [sum(of_category[at] for of_category in nbytes.values()) for at in range(len(operators))]
    assert operators == sorted(set(operators))
    assert totals == [held[number] for number in operators]
    assert max(totals) == max(held)


# --- the picture


def test_the_peak_is_drawn_marked_and_said():
    figure = draw({"none": huge()}, title="huge")

    drawn = peak(huge()).nbytes
    (mark,) = [line for line in figure.axes[0].lines if line.get_label() == "peak"]
    assert "(MiB)" in figure.get_supylabel()
    assert highest(figure) == pytest.approx(drawn / MIB)
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([33_333], [drawn / MIB])
    assert any(text.startswith("peak 10.0 MiB: backward, m") for text in texts(figure))


def test_a_panel_for_each_strategy_in_their_order_with_the_same_axes(traces):
    figure = draw(traces, title="mine")

    assert [name for panel in range(3) for name in texts(figure, panel) if name in STRATEGIES] == list(STRATEGIES)
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}) == 1
    for panel, trace in enumerate(traces.values()):
        assert highest(figure, panel) == pytest.approx(peak(trace).nbytes / 1024)  # less than ten MiB


def test_a_recompute_is_shaded_and_a_step_without_one_is_not(traces):
    figure = draw(traces, title="mine")

    def shades(panel: int) -> int:
        collections = figure.axes[panel].collections
        return sum(len(one.get_paths()) for one in collections if isinstance(one, PolyCollection) and one.zorder < 1)

    assert [shades(panel) for panel in range(3)] == [0, 1, 4]


@pytest.mark.slow
@pytest.mark.parametrize("num_strategies", [1, 2, 12])
@pytest.mark.parametrize("name", ["none", "segments:k=8,split=balanced and so on " * 4])
def test_no_text_over_a_panel_meets_another(traces, num_strategies, name):
    figure = draw({f"{at} {name}": traces["all"] for at in range(num_strategies)}, title="a long title, " * 20)

    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    for axes in figure.axes:
        boxes = [Text.get_window_extent(text, canvas.get_renderer()) for text in axes.texts]
        assert not any(one.overlaps(other) for one in boxes for other in boxes if one is not other)
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
