"""What a terminal with colours shows besides the words: savings, failures, and what nothing beats."""

from __future__ import annotations

import io
import re

import pytest

from profiler.views.tables.columns import main
from profiler.views.tables.grid import show
from tests import examples, make

CODES = re.compile(r"\x1b\[[\d;]*m")
GREEN, BOLD = "\x1b[32m", "\x1b[1m"


def printed(color: str, *, width: int | None = None) -> str:
    rows = examples.table(
        [
            make.record("none", peak=100 << 20, seconds=(0.1,) * 6),
            make.record("all", peak=60 << 20, seconds=(0.2,) * 6),
            make.failed("sqrt", "out_of_memory", "CUDA out of memory"),
            make.failed("offload", "skipped", "not here"),
        ]
    )
    file = io.StringIO()
    show(main(rows), file=file, width=width, color=color)
    return file.getvalue()


def line(text: str, strategy: str) -> str:
    return next(one for one in text.splitlines() if CODES.sub("", one).startswith(strategy))


@pytest.mark.slow
def test_a_saving_is_green_and_a_failure_red_and_nothing_else_is():
    text = printed("always")

    assert re.findall(r"\x1b\[32m(.*?)\x1b\[0m", text) == ["-40 %"]
    assert re.findall(r"\x1b\[31m(.*?)\x1b\[0m", text) == ["out of memory"]


def test_what_nothing_beats_is_bold():
    text = printed("always")

    assert line(text, "all").startswith(f"{BOLD}all")
    assert not line(text, "sqrt").startswith(BOLD)


@pytest.mark.parametrize("width", [None, 120, 80, 40])
def test_colours_change_no_word_at_any_width(width: int | None):
    assert CODES.sub("", printed("always", width=width)) == printed("never", width=width)
