"""Stored runs from Python."""

import html
import re
import subprocess
import sys

import pandas as pd
import pytest

import profiler
from profiler.analysis.rows import COLUMNS, flat_row
from tests import examples, make
from tests.program import environment

HOSTILE = "<script>alert(1)</script>&\"'"


def test_the_frame_holds_every_number_of_every_row_in_base_units(here):
    examples.run(here / "results" / "first", examples.troubled())
    run = profiler.load("first")

    frame = run.to_pandas()

    assert list(frame.columns) == list(COLUMNS)
    for (_, found), row in zip(frame.iterrows(), run.rows(), strict=True):
        values = {name: value if isinstance(value, tuple) or pd.notna(value) else None for name, value in found.items()}
        assert values == flat_row(row)
    for word in ("last", "results/first", run.folder):
        assert profiler.load(word).records == run.records


@pytest.mark.slow
def test_a_notebook_shows_every_row_with_its_reason_in_a_page_that_runs_nothing_where_there_is_no_torch(here):
    records = [*examples.troubled(), make.record(HOSTILE), make.failed("all", "failed", HOSTILE)]
    folder = examples.run(here / "results" / "first", records).folder
    code = "import sys; sys.modules['torch'] = None; import profiler; print(profiler.load(sys.argv[1])._repr_html_())"

    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, env=environment())

    assert "segments:k=3: out of memory: tried to allocate 96 MiB in the backward" in done.stdout, done.stderr
    assert "10 rows, complete" in done.stdout
    assert html.escape(HOSTILE) in done.stdout
    assert set(re.findall(r"<(\w+)", done.stdout)) <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert set(re.findall(r"<\w+ (\w+)=", done.stdout)) == {"style"}
