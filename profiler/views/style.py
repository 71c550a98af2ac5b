"""How large and in which colours pictures are drawn, for a page, a slide or a paper: knows nothing of any one plot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from cycler import cycler
from matplotlib import rc_context, rcParams

USUAL = 11.0  # points of type that all lengths in the plots are made for

# Okabe and Ito (2008), told apart by all kinds of colour vision
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7")
# of rising lightness, so that they are told apart in grey as well: 14 to 88 of 100 in steps of 12 or more
IN_GREY = ("#0B3C6F", "#F2A93B", "#2E8B62", "#A9D3F2", "#8C2D04", "#C994C7")


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """What a picture is for. Inches and points."""

    suffix: str  # of the file where none is named
    type_points: float = USUAL
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
    """Draw and save within it: matplotlib asks for its settings while it does."""
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
    """A length that is made for the usual type, as long as it is in the style at work."""
    return float(usual * rcParams["font.size"] / USUAL)
