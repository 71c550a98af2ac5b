"""How large and in which colours pictures are drawn, for a page, a slide or a paper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from cycler import cycler
from matplotlib import rc_context, rcParams
from matplotlib.colors import to_rgb
from matplotlib.typing import ColorType

MADE_FOR = 11.0  # points of type that all lengths in the plots are made for

# Okabe and Ito (2008), told apart by all kinds of colour vision
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7")
# each of another lightness, so that they are told apart in grey as well: from 20 to 84 of 100, 11 or more between two
IN_GREY = ("#0A2F5C", "#E8A33A", "#2A8059", "#B4D7F1", "#92330A", "#B07FB5")


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """What a picture is for. Inches and points."""

    suffix: str  # of the file where none is named
    type_points: float = MADE_FOR
    width: float | None = None  # of the whole picture; None: as wide as the plot likes to be
    ratio: float | None = None  # of width to height
    max_columns: int = 3  # panels beside each other
    dpi: int = 200  # of a png
    pixels: int | None = None  # its width, whatever it is in inches
    colours: tuple[str, ...] = OKABE_ITO


STYLES = {
    "default": Style(suffix="png"),
    "slides": Style(suffix="png", type_points=16.0, width=40 / 3, ratio=16 / 9, max_columns=2, pixels=1920),
    "paper": Style(suffix="pdf", type_points=7.5, width=3.35, max_columns=1, dpi=400, colours=IN_GREY),
}


@contextmanager
def at_work(style: Style) -> Iterator[None]:
    """Sets matplotlib to a style; drawing and saving both happen within it."""
    with rc_context(
        {
            "font.size": style.type_points,
            "axes.prop_cycle": cycler(color=style.colours),
            "pdf.fonttype": 42,  # TrueType, embedded: journals refuse matplotlib's own Type 3
            "svg.hashsalt": "gcprof",  # else its ids are random
        }
    ):
        yield


def sized(usual: float) -> float:
    """Returns a length, which is given for the usual type, scaled to the style at work."""
    return float(usual * rcParams["font.size"] / MADE_FOR)


def luminance(colour: ColorType) -> float:
    """Relative to white, as of WCAG 2: 0 is black."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return float(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2])
