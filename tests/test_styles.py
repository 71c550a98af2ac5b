"""Pictures for slides and papers: sizes, type, embedded fonts, colours in grey, and nothing cropped in any style."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from profiler.analysis.rows import Row, rows
from profiler.runs import store
from profiler.views import PLOTS
from profiler.views.plots import draw, plot
from profiler.views.plots.settings import luminance
from profiler.views.plots.theme import STYLES

REFERENCE = Path(__file__).parent.parent / "results" / "reference"
RUNS = {
    "mnist": REFERENCE / "cpu" / "mnist-cnn",
    "batches": REFERENCE / "predicted-t4" / "transformer-batches",
    "depths": REFERENCE / "predicted-t4" / "cifar-resnet-depths",
}
OVER_AXES = ("heat", "growth", "throughput")
EDGE = 1.0  # pixels that antialiasing may take


def table(name: str) -> tuple[Row, ...]:
    return rows(store.load(RUNS[name]).records)


def shown(figure: Figure) -> Iterator[Text]:
    """Every text that is seen."""
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip():
            yield text


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
    box = figure.bbox
    figure.draw_without_rendering()  # an annotation has its place when it is drawn
    return [
        text.get_text()
        for text in shown(figure)
        if text not in ticks
        for extent in [Text.get_window_extent(text)]
        if extent.x0 < box.x0 - EDGE
        or extent.y0 < box.y0 - EDGE
        or extent.x1 > box.x1 + EDGE
        or extent.y1 > box.y1 + EDGE
    ]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", PLOTS)
def test_no_text_of_a_committed_run_is_cropped(kind, style):
    found = table("batches" if kind in OVER_AXES else "mnist")

    assert cropped(draw(found, kind=kind, style=STYLES[style])) == []
    if kind == "heat":
        assert cropped(draw(table("depths"), kind=kind, style=STYLES[style], over=("depth", "batch_size"))) == []


def test_a_slide_is_as_wide_and_high_as_a_screen(tmp_path):
    path = plot(table("mnist"), kind="memory", path=tmp_path / "slide.png", style=STYLES["slides"])

    high, wide = imread(path).shape[:2]
    assert (wide, high) == (1920, 1080)


def test_a_paper_is_a_pdf_with_its_fonts_embedded_as_true_type(tmp_path):
    path = plot(table("mnist"), kind="memory", path=tmp_path / "figure.pdf", style=STYLES["paper"])

    text = path.read_bytes()
    width = re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", text)
    assert width
    assert float(width[1]) == pytest.approx(3.35 * 72, abs=0.1)
    assert b"/FontFile2" in text
    assert b"/Type3" not in text


@pytest.mark.parametrize(
    ("colour", "of_white"), [("white", 1.0), ("black", 0.0), ("#7F7F7F", 0.212), ("#00FF00", 0.7152)]
)
def test_luminance_is_that_of_wcag(colour, of_white):
    assert luminance(colour) == pytest.approx(of_white, abs=0.001)


@pytest.mark.parametrize("style", STYLES)
def test_every_number_in_a_heat_map_is_read_on_its_colour(style):
    axes = draw(table("batches"), kind="heat", style=STYLES[style]).axes[0]

    checked = 0
    for text in axes.texts:
        cell = [one for one in axes.collections if one.get_paths()[0].get_extents().contains(*text.get_position())]
        if cell and re.fullmatch(r"[\d.]+", text.get_text()):
            light, dark = sorted((luminance(text.get_color()), luminance(cell[0].get_facecolor()[0])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 3.9
            checked += 1
    assert checked == 5 * 6
