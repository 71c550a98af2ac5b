"""Tables for programs: what pandas and pyarrow read back is what was there."""

import io
import sys

import pandas as pd
import pytest
from pyarrow import parquet

from profiler import views
from profiler.analysis.flat_row import COLUMNS, flat_row
from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.core.optional_deps import load_function
from profiler.views.export import csv
from tests import examples, make

CASES = {
    "troubled": examples.troubled(),
    "rounds": examples.sweep() + examples.sweep(round=2),
    "predicted": examples.sweep((2,), device="fake:cuda") + examples.sweep((2,), device="cuda:0"),
    "one": [make.record()],
}


def expected(records):
    return [flat_row(row) for row in rows(records)]


def read_parquet(folder, records):
    text = load_function(views.EXPORTS["parquet"])(examples.run(folder / "run", records))
    return parquet.read_table(io.BytesIO(text))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_pandas_reads_back_every_cell_of_the_csv(name):
    text = csv.table(rows(CASES[name]))

    found = pd.read_csv(io.StringIO(text), dtype={"case": str}).to_dict("records")

    for one, other in zip(found, expected(CASES[name]), strict=True):
        cells = {key: None if pd.isna(value) else value for key, value in one.items()}
        words = {key: ";".join(map(repr, value)) if isinstance(value, tuple) else value for key, value in other.items()}
        words["detail"] = words["detail"] and words["detail"].replace("\x1b[31m", "").replace("\n", " ").strip("\x07")
        assert cells == words


@pytest.mark.parametrize("name", CASES)
def test_parquet_holds_the_columns_of_the_csv_with_numbers_as_numbers(tmp_path, name):
    found = read_parquet(tmp_path, CASES[name]).to_pylist()

    for one, other in zip(found, expected(CASES[name]), strict=True):
        assert list(one) == list(COLUMNS)
        assert {key: value for key, value in one.items() if key != "detail"} == {
            key: list(value) if isinstance(value, tuple) else value for key, value in other.items() if key != "detail"
        }


def test_a_column_that_nothing_was_measured_of_keeps_its_kind(tmp_path):
    schema = read_parquet(tmp_path, [make.failed("none", "skipped", "why")]).schema

    kinds = {name: str(schema.field(name).type) for name in ("peak_bytes", "step_seconds", "predicted", "detail")}
    assert kinds == {"peak_bytes": "int64", "step_seconds": "double", "predicted": "bool", "detail": "string"}
    assert str(schema.field("step_seconds_samples").type) == "list<element: double>"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_run_without_records_has_its_columns_still(tmp_path, kind):
    text = load_function(views.EXPORTS[kind])(examples.run(tmp_path / "run", []))

    read = pd.read_csv if kind == "csv" else pd.read_parquet
    assert list(read(io.BytesIO(text)).columns) == list(COLUMNS)


def test_parquet_goes_to_a_file(here, capsys):
    run = examples.run(here / "run", examples.sweep((2,)))

    assert answer(["export", str(run.folder), "--to", "parquet", "-o", "table.parquet"]) == 0

    assert list(pd.read_parquet("table.parquet").strategy) == ["none", "segments:k=2"]
    assert "wrote table.parquet" in capsys.readouterr().err


def test_parquet_is_not_written_to_a_terminal(here, monkeypatch, capsys):
    run = examples.run(here / "run", examples.sweep((2,)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert answer(["export", str(run.folder), "--to", "parquet"]) == 2
    assert "name a file with -o" in capsys.readouterr().err
    assert answer(["export", str(run.folder), "--to", "csv"]) == 0


def test_where_pyarrow_is_missing_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "profiler.views.export.parquet", raising=False)

    with pytest.raises(UserError) as refused:
        load_function(views.EXPORTS["parquet"])

    assert refused.value.message == "this needs pyarrow"
    assert refused.value.hint == "pip install 'gcprof[parquet]'"
