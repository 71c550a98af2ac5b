"""How a run looks over two of its axes: on screens of all widths, and as a picture."""

from collections import Counter
from itertools import combinations

import pytest
from matplotlib.axes import Axes
from matplotlib.text import Text

from profiler.analysis.rows import Row
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.views.plots import draw
from profiler.views.tables import Paper, details, text
from tests import examples, golden_files, make

CASES = {
    "axes": (examples.batches(), ["batch_size"]),
    "axes-predicted": (examples.batches(device="fake:h100", limit=800 * make.MIB) + examples.batches(), ["batch_size"]),
    "axes-depth": (
        [
            record
            for depth in (2, 8)
            for record in examples.batches(model=Choice(f"cifar-resnet:depth={depth}"))
            if record.case.batch_size != 64
        ],
        ["batch_size", "depth"],
    ),
}


def printed(name: str, **how) -> str:
    records, over = CASES[name]
    return f"{text(details.over_axes(examples.table(records), over=over), Paper(**how)).plain}\n"


def legend(figure):
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def rows(name: str = "axes") -> tuple[Row, ...]:
    return examples.table(CASES[name][0])


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


# --- tables


@pytest.mark.parametrize("name", CASES)
def test_the_tables_look_as_they_did(name):
    golden_files.compare(f"{name}-80.txt", printed(name, width=80))


# --- heat


def edges(axes: Axes) -> set[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Ends of the contour."""
    found = [line for line in axes.lines if str(line.get_label()).startswith("memory of the device")]
    return {(tuple(map(float, line.get_xdata())), tuple(map(float, line.get_ydata()))) for line in found}


def test_the_contour_runs_between_what_fits_and_what_does_not():
    figure = draw(rows(), kind="heat")

    # none at 64 is out of memory; its left neighbour fits, and so does sqrt at 64 below it
    assert edges(figure.axes[0]) == {((2.5, 2.5), (-0.5, 0.5)), ((2.5, 3.5), (0.5, 0.5))}
    assert legend(figure) == ["out of memory", "memory of the device: 300 MiB"]


def test_a_predicted_contour_says_what_it_counts():
    predicted = examples.batches(device="fake:h100", limit=800 * make.MIB)  # of which CUDA itself takes 600

    figure = draw(examples.table(predicted), kind="heat")

    # of none, a batch of 16 takes 164 MiB, and one of 32 takes 228
    none = {((1.5, 1.5), (-0.5, 0.5)), ((1.5, 2.5), (0.5, 0.5)), ((2.5, 3.5), (0.5, 0.5))}
    assert edges(figure.axes[0]) == none
    assert any("counting CUDA itself and all that is reserved" in text for text in legend(figure))


def test_every_cell_has_its_peak_or_a_word():
    axes = draw(rows(), kind="heat").axes[0]

    peaks = {row.readings.peak_bytes / make.MIB for row in rows() if row.outcome == "ok"}
    assert {f"{peak:.1f}" for peak in peaks} <= set(texts(axes))
    assert Counter(texts(axes))["invalid"] == 1
    assert Counter(texts(axes))["·"] == 1  # what did not run


# --- growth


@pytest.mark.parametrize("kind", ["frontier", "throughput"])
def test_axes_that_a_kind_does_not_choose_are_refused(kind):
    with pytest.raises(UserError, match="--over has no effect"):
        draw(rows(), kind=kind, over=("batch_size",))


def test_curves_carry_how_they_grow():
    """The example's peaks are 100 MiB and 4 MiB a sample without checkpointing."""
    axes = draw(rows(), kind="growth").axes[0]

    assert "none\n100 + 4 n" in texts(axes)


def test_names_at_the_ends_keep_apart_and_inside_in_the_order_of_the_peaks():
    records = [
        make.record(f"segments:k={k}", case=make.case(f"segments:k={k}", batch_size=size), peak=size * (100 + k))
        for k in range(2, 14)
        for size in (8, 16, 32)
    ]

    axes = draw(examples.table(records), kind="growth").axes[0]

    frame = axes.get_window_extent()
    axes.figure.draw_without_rendering()  # places what leads to a point
    found = [text for text in axes.texts if text.get_text().startswith("segments")]
    names = sorted(found, key=lambda text: Text.get_window_extent(text).y0)
    boxes = [Text.get_window_extent(text) for text in names]
    assert [text.get_text().split("\n")[0] for text in names] == [f"segments:k={k}" for k in range(2, 14)]
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert frame.y0 <= box.y0 < box.y1 <= frame.y1
        assert box.x1 <= frame.x1


# --- throughput


def hollow(axes: Axes) -> int:
    found = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    return sum(len(line.get_xdata()) for line in found)


def test_predictions_that_do_not_fit_are_hollow():
    predicted = examples.table(examples.batches(device="fake:h100"))
    num_ok = sum(row.outcome == "ok" for row in predicted)

    figure = draw(predicted, kind="throughput")

    assert hollow(figure.axes[0]) == num_ok  # of 300 MiB, CUDA itself takes 600
    assert hollow(draw(rows(), kind="throughput").axes[0]) == 0
    assert any(text.startswith("hollow: does not fit") for text in legend(figure))
