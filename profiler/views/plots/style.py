"""Sizes and colors of pictures, for a page, a slide or a paper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from cycler import cycler
from matplotlib import rc_context, rcParams
from matplotlib.colors import to_rgb
from matplotlib.typing import ColorType

MADE_FOR = 11.0  # points: the type size for which all lengths in the plots are given

# Okabe and Ito (2008), distinct for all kinds of color vision
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7")
# distinct in grayscale too: lightness from 20 to 84 of 100, any two at least 11 apart
IN_GREY = ("#0A2F5C", "#E8A33A", "#2A8059", "#B4D7F1", "#92330A", "#B07FB5")


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """The style of a picture for one use. Lengths are in inches, type in points."""

    suffix: str  # of the file, if none is named
    type_points: float = MADE_FOR
    width: float | None = None  # of the whole picture; None: the usual width of the plot
    ratio: float | None = None  # of width to height
    max_columns: int = 3  # panels beside each other
    dpi: int = 200  # of a png
    pixels: int | None = None  # width of a png, which then sets its dpi
    colours: tuple[str, ...] = OKABE_ITO


STYLES = {
    "default": Style(suffix="png"),
    "slides": Style(suffix="png", type_points=16.0, width=40 / 3, ratio=16 / 9, max_columns=2, pixels=1920),
    "paper": Style(suffix="pdf", type_points=7.5, width=3.35, max_columns=1, dpi=400, colours=IN_GREY),
}


@contextmanager
def at_work(style: Style) -> Iterator[None]:
    """Context manager that sets matplotlib to a style; both drawing and saving must happen within it."""
    with rc_context(
        {
            "font.size": style.type_points,
            "axes.prop_cycle": cycler(color=style.colours),
            "pdf.fonttype": 42,  # TrueType, embedded: journals refuse matplotlib's own Type 3
            "svg.hashsalt": "gcprof",  # else the ids in a file are random
        }
    ):
        yield


def sized(usual: float) -> float:
    """Return a length, given for the type size MADE_FOR, scaled to the current style."""
    return float(usual * rcParams["font.size"] / MADE_FOR)


def luminance(colour: ColorType) -> float:
    """Return the relative luminance by WCAG 2: 0 is black, 1 is white."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return float(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2])
