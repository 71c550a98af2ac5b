"""Names that would do harm where they were believed: kept as they are, and shown as text wherever they are shown."""

from __future__ import annotations

import io
import re
import unicodedata
from pathlib import Path

import pandas as pd
import pytest

from profiler.runs import store
from profiler.views.export import csv as csv_view
from profiler.views.sanitize import plain
from profiler.views.tables import grid
from profiler.views.tables.columns import main
from tests import examples
from tests.faults.names import NAMES, records
from tests.make import MIB

hostile = pytest.mark.parametrize("text", NAMES.values(), ids=NAMES)


# --- kept


@pytest.mark.slow
@hostile
def test_fault_56_a_name_is_stored_as_it_is(tmp_path: Path, text: str):
    run = examples.run(tmp_path / "run", records(text))

    assert store.load(run.folder).records == tuple(records(text))
    assert [trial.case.model for trial in run.manifest.plan] == [text] * 3


# --- on a screen


@hostile
def test_fault_56_a_terminal_is_sent_nothing_but_text(text: str):
    file = io.StringIO()

    grid.show(main(examples.table(records(text))), file=file, width=100)

    shown = file.getvalue()
    assert {unicodedata.category(one) for one in shown.replace("\n", "")} & {"Cc", "Cf", "Cs"} == set()
    assert "".join(plain(text).split()) in "".join(shown.split())  # broken over lines, and whole


# --- in files


@hostile
def test_fault_56_no_csv_cell_is_a_formula_and_pandas_reads_them_back(text: str):
    written = csv_view.table(examples.table(records(text)))

    found = pd.read_csv(io.StringIO(written), dtype=str, keep_default_na=False)
    assert not any(cell.startswith(csv_view.FORMULA) for column in ("model", "strategy") for cell in found[column])
    assert [cell.removeprefix("'") for cell in found["strategy"]] == ["none", plain(text), "all"]
    assert found["model"][0] == found["detail"][2]
    assert found["peak_bytes"][0] == str(200 * MIB)


# --- in pictures


# --- in paths


@hostile
def test_fault_56_a_run_folder_stays_where_it_belongs(text: str):
    folder = store.new_folder(Path("results"), [text])

    assert folder.parent == Path("results")
    assert re.fullmatch(r"\d{8}T\d{6}Z-[a-z0-9-]*-[0-9a-f]{6}", folder.name)
    assert len(folder.name) <= 64
