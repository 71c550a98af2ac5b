"""Stored runs from Python."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

import profiler
from profiler.analysis.rows import COLUMNS, flat_row
from tests import examples, make
from tests.program import environment

HOSTILE = "<script>alert(1)</script>&\"'"


@pytest.fixture
def run(here: Path):
    examples.run(here / "results" / "first", examples.troubled())
    return profiler.load("first")


class Page(HTMLParser):
    """The tags, the attributes and the cells of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.cells: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}
        if tag == "tr":
            self.cells.append([])

    def handle_data(self, text):
        if self.tags[-1] in ("td", "th"):
            self.cells[-1].append(text)


def test_a_run_is_named_by_path_by_name_or_by_last(run):
    for word in ("last", "first", "results/first", run.folder):
        assert profiler.load(word).records == run.records


def test_the_frame_holds_every_number_of_every_row_in_base_units(run):
    frame = run.to_pandas()

    assert list(frame.columns) == list(COLUMNS)
    for (_, found), row in zip(frame.iterrows(), run.rows(), strict=True):
        expected = flat_row(row)
        values = {name: value if isinstance(value, tuple) or pd.notna(value) else None for name, value in found.items()}
        assert values == expected


def test_a_notebook_shows_a_table_of_every_row_with_its_reasons(run):
    text = run._repr_html_()

    page = Page(text)
    assert [cells[0] for cells in page.cells[1:]] == [row.case.strategy for row in run.rows()]
    assert "segments:k=3: out of memory: tried to allocate 96 MiB in the backward" in text
    assert "8 rows, complete" in text


def test_the_page_brings_all_it_needs_and_runs_nothing(here):
    examples.run(here / "results" / "hostile", [make.record(HOSTILE), make.failed("all", "failed", HOSTILE)])

    page = Page(profiler.load()._repr_html_())

    assert set(page.tags) <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert page.attributes == {"style"}
    assert page.cells[1][0] == HOSTILE


@pytest.mark.slow
def test_a_run_is_loaded_and_shown_where_there_is_no_torch(run):
    code = (
        "import sys; sys.modules['torch'] = None; import profiler; run = profiler.load(sys.argv[1]);"
        "print(len(run.rows()), len(run.to_pandas()), '<table' in run._repr_html_())"
    )
    words = [sys.executable, "-c", code, str(run.folder)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment())

    assert done.stdout == f"{len(run.rows())} {len(run.rows())} True\n", done.stderr
