"""Files of rows: what pandas, pyarrow and other programs read back is what was there."""

import io
import sys

import pandas as pd
import pytest
from pyarrow import parquet

from profiler import views
from profiler.analysis.rows import COLUMNS, flat_row, rows
from profiler.cli import answer
from profiler.core import units
from profiler.core.errors import UserError, load_function
from profiler.core.units import GIB, KIB, MIB
from profiler.views import export
from profiler.views.tables.columns import main
from tests import examples, golden_files, make

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
    text = export.csv_table(rows(CASES[name]))

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


def test_parquet_is_not_written_to_a_terminal(here, monkeypatch, capsys):
    run = examples.run(here / "run", examples.sweep((2,)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert answer(["export", str(run.folder), "--to", "parquet"]) == 2
    assert "name a file with -o" in capsys.readouterr().err
    assert answer(["export", str(run.folder), "--to", "csv"]) == 0


def test_where_pyarrow_is_missing_it_is_named(tmp_path, monkeypatch):
    run = examples.run(tmp_path / "run", [])
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(UserError) as refused:
        export.render_parquet(run)

    assert (refused.value.message, refused.value.hint) == ("this needs pyarrow", "pip install pyarrow")


# --- test_units


@pytest.mark.slow
def test_bytes_are_shown_in_binary_units_with_three_digits():
    texts = [units.bytes_text(count) for count in (0, 1023, KIB, 1536, 100 * MIB, 3 * GIB // 2)]

    assert texts == ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "100 MiB", "1.50 GiB"]


def test_seconds_are_shown_in_the_unit_that_reads_best():
    texts = [units.seconds_text(seconds) for seconds in (2.0, 0.0123, 4.5e-6, 5e-9)]

    assert texts == ["2.00 s", "12.3 ms", "4.50 us", "5 ns"]


@pytest.mark.parametrize(
    ("largest", "unit"),
    [(0, "B"), (10 * KIB - 1, "B"), (10 * KIB, "KiB"), (10 * MIB, "MiB"), (10 * GIB - 1, "MiB"), (10 * GIB, "GiB")],
)
def test_a_column_of_bytes_takes_the_largest_unit_of_which_there_are_ten(largest, unit):
    assert units.byte_unit([1, None, largest])[1] == unit


@pytest.mark.parametrize(("largest", "unit"), [(10.0, "s"), (9.9, "ms"), (0.01, "ms"), (0.0099, "us"), (1e-6, "ns")])
def test_a_column_of_seconds_takes_the_largest_unit_of_which_there_are_ten(largest, unit):
    assert units.second_unit([None, largest / 2, largest])[1] == unit


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "0.0 %"),
        (0.51, "-49 %"),
        (1.253, "+25 %"),
        (1.034, "+3.4 %"),
        (0.9999, "0.0 %"),
        (1.0999, "+10 %"),
        (3, "+200 %"),
    ],
)
def test_a_ratio_is_shown_as_a_signed_percentage(ratio, text):
    assert units.change_text(ratio) == text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "suffix"), [("csv", "csv"), ("markdown", "md"), ("latex", "tex")])
def test_the_export_looks_as_it_did(name, suffix):
    render = {
        "csv": export.csv_table,
        "markdown": lambda rows: export.markdown(main(rows)),
        "latex": lambda rows: export.latex(main(rows)),
    }[name]

    golden_files.compare(f"troubled.{suffix}", render(examples.table(examples.troubled())))
