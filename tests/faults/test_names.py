"""Names that would do harm where they were believed: kept as they are, and shown as text wherever they are shown."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from pathlib import Path

import pandas as pd
import pytest

from profiler import views
from profiler.cli import answer
from profiler.runs import store
from profiler.views.export import csv as csv_view
from profiler.views.export import latex, markdown
from profiler.views.plots.plot import plot
from profiler.views.sanitize import plain
from profiler.views.tables import terminal
from profiler.views.tables.terminal import Paper
from tests import examples, make
from tests.conftest import run_folder
from tests.faults.names import NAMES, records
from tests.make import MIB


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


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

    terminal.write(terminal.table(examples.table(records(text)), paper=Paper(100)), file=file)

    shown = file.getvalue()
    assert {unicodedata.category(one) for one in shown.replace("\n", "")} & {"Cc", "Cf", "Cs"} == set()
    assert "".join(plain(text).split()) in "".join(shown.split())  # broken over lines, and whole


@hostile
def test_fault_56_every_command_that_reads_shows_it_and_ends_well(here: Path, capsys, text: str):
    examples.run(here / "results" / "run", records(text))

    for words in (["show", "run"], ["show", "run", "--format", "md"], ["list"], ["compare", "run", "run"]):
        assert answer(words) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out


# --- in files


@hostile
def test_fault_56_no_csv_cell_is_a_formula_and_pandas_reads_them_back(text: str):
    written = csv_view.table(examples.table(records(text)))

    found = pd.read_csv(io.StringIO(written), dtype=str, keep_default_na=False)
    assert not any(cell.startswith(csv_view.FORMULA) for column in ("model", "strategy") for cell in found[column])
    assert [cell.removeprefix("'") for cell in found["strategy"]] == ["none", plain(text), "all"]
    assert found["model"][0] == found["detail"][2]
    assert found["peak_bytes"][0] == str(200 * MIB)


@pytest.mark.parametrize("start", "=+-@")
def test_fault_56_no_csv_cell_can_be_a_formula(start: str):
    records = [make.failed("none", "failed", f"{start}cmd|' /C calc'!A0\n")]

    line = lines_of(csv_view.table(examples.table(records)))[0]

    assert line["detail"] == f"'{start}cmd|' /C calc'!A0"


def test_fault_56_markdown_of_hostile_text_is_still_one_table():
    text = markdown.table(examples.table([make.record(NAMES["specials"])]))

    body = next(line for line in text.splitlines() if line.startswith("| a"))
    cells = body.replace("\\|", "").strip("| ").split(" | ")
    head = next(line for line in text.splitlines() if line.startswith("| strategy"))
    assert len(cells) == len(head.strip("| ").split(" | "))
    assert "\\*c\\_d\\`e\\[f\\]\\<g" in body


def test_fault_56_latex_of_hostile_text_is_escaped():
    text = latex.table(examples.table([make.record(NAMES["specials"])]))

    escaped = (
        r"\_d`e[f]\textless{}g\textgreater{}\&h\%i\$j\#k\{l\}m\textasciitilde{}n\textasciicircum{}o\textbackslash{}p"
    )
    assert escaped in text
    assert text.count(r"\begin{") == text.count(r"\end{")


# --- in pictures


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["frontier", "memory", "time", "samples"])
def test_fault_56_a_picture_shows_them_all_as_text(tmp_path: Path, kind: str):
    rows = examples.table([one for text in NAMES.values() for one in records(text)])

    path = plot(rows, kind=kind, path=tmp_path / "plot.svg")

    drawn = path.read_text(encoding="utf-8")
    assert "<script" not in drawn
    assert drawn.rstrip().endswith("</svg>")


# --- in paths


@hostile
def test_fault_56_a_run_folder_stays_where_it_belongs(text: str):
    folder = store.new_folder(Path("results"), [text])

    assert folder.parent == Path("results")
    assert re.fullmatch(r"\d{8}T\d{6}Z-[a-z0-9-]*-[0-9a-f]{6}", folder.name)
    assert len(folder.name) <= 64


@pytest.mark.parametrize("kind", views.EXPORTS)
def test_fault_56_every_export_is_one_file_in_its_place(here: Path, kind: str):
    examples.run(here / "results" / "run", [one for text in NAMES.values() for one in records(text)])

    assert answer(["export", "run", "--to", kind, "-o", "table"]) == 0

    assert run_folder(here) == here / "results" / "run"
    assert sorted(path.name for path in here.iterdir()) == ["results", "table"]
