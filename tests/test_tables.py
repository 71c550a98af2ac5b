"""Files of rows: what pandas, pyarrow and other programs read back is what was there."""

import io
import sys
from typing import Any

import pandas as pd
import pytest
from pyarrow import parquet

from profiler import views
from profiler.analysis.rows import COLUMNS, flat_row, rows
from profiler.cli import answer
from profiler.core import units
from profiler.core.errors import load_function
from profiler.core.units import GIB, KIB, MIB
from profiler.views import export
from profiler.views.tables.columns import main
from tests import examples, golden_files, make

CASES = {
    "troubled": examples.troubled(),
    "rounds": examples.sweep() + examples.sweep(round=2),
    "predicted": examples.sweep((2,), device="fake:cuda") + examples.sweep((2,), device="cuda:0"),
}


def read_parquet(folder, records):
    text = load_function(views.EXPORTS["parquet"])(examples.run(folder / "run", records))
    return parquet.read_table(io.BytesIO(text))


@pytest.mark.parametrize("name", CASES)
def test_pandas_reads_back_every_cell_of_the_csv_and_pyarrow_every_number_of_the_parquet(tmp_path, name):
    table = rows(CASES[name])

    from_csv = pd.read_csv(io.StringIO(export.csv_table(table)), dtype={"case": str}).to_dict("records")
    from_parquet = read_parquet(tmp_path, CASES[name]).to_pylist()

    for csv_row, parquet_row, row in zip(from_csv, from_parquet, map(flat_row, table), strict=True):
        detail = row.pop("detail")
        plain = detail and detail.replace("\x1b[31m", "").replace("\n", " ").strip("\x07")
        words = {key: ";".join(map(repr, value)) if isinstance(value, tuple) else value for key, value in row.items()}
        assert {key: None if pd.isna(value) else value for key, value in csv_row.items()} == {**words, "detail": plain}
        assert list(parquet_row) == list(COLUMNS)
        assert {**parquet_row, "detail": plain} == {
            **{key: list(value) if isinstance(value, tuple) else value for key, value in row.items()}, "detail": plain,
        }  # fmt: skip


def test_a_column_of_nothing_keeps_its_kind_and_a_run_without_records_its_columns(tmp_path):
    schema = read_parquet(tmp_path, [make.failed("none", "skipped", "why")]).schema
    empty = examples.run(tmp_path / "empty", [])

    names = ("peak_bytes", "step_seconds", "predicted", "detail", "step_seconds_samples")
    kinds = [str(schema.field(name).type) for name in names]
    assert kinds == ["int64", "double", "bool", "string", "list<element: double>"]
    for kind, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        assert list(read(io.BytesIO(load_function(views.EXPORTS[kind])(empty))).columns) == list(COLUMNS)


def test_parquet_is_not_written_to_a_terminal_and_a_missing_pyarrow_is_named(here, monkeypatch, capsys):
    run = str(examples.run(here / "run", examples.sweep((2,))).folder)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    codes = [answer(["export", run, "--to", kind]) for kind in ("csv", "parquet")]
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    codes.append(answer(["export", run, "--to", "parquet", "-o", "run.parquet"]))

    said = capsys.readouterr().err
    assert (codes, "name a file with -o" in said, "pip install pyarrow" in said) == ([0, 2, 2], True, True)


@pytest.mark.parametrize(("name", "suffix"), [("csv", "csv"), ("markdown", "md"), ("latex", "tex")])
def test_the_export_looks_as_it_did(name, suffix):
    table = rows(examples.troubled())

    text = export.csv_table(table) if name == "csv" else getattr(export, name)(main(table))

    golden_files.compare(f"troubled.{suffix}", text)


SHOWN: dict[Any, dict[Any, str]] = {  # in three digits; a column has the largest unit of which there are ten
    units.bytes_text: {0: "0 B", 1023: "1023 B", KIB: "1.00 KiB", 100 * MIB: "100 MiB", 3 * GIB // 2: "1.50 GiB"},
    units.seconds_text: {2.0: "2.00 s", 0.0123: "12.3 ms", 4.5e-6: "4.50 us", 5e-9: "5 ns"},
    units.change_text: {0.9999: "0.0 %", 0.51: "-49 %", 1.034: "+3.4 %", 1.0999: "+10 %", 3: "+200 %"},
    lambda most: units.byte_unit([1, None, most])[1]: {0: "B", 10 * KIB - 1: "B", 10 * KIB: "KiB", 10 * GIB: "GiB"},
    lambda most: units.second_unit([None, most])[1]: {10.0: "s", 9.9: "ms", 0.01: "ms", 0.0099: "us", 1e-6: "ns"},
}  # fmt: skip


@pytest.mark.parametrize("way", SHOWN)
def test_bytes_seconds_and_ratios_are_shown_in_units_that_read_best(way):
    assert {value: way(value) for value in SHOWN[way]} == SHOWN[way]
