"""What a run is written as: csv, json, markdown, latex, and the files beside it."""

import csv
import io
from pathlib import Path

import msgspec
import pytest

from profiler import views
from profiler.core.case import decode
from profiler.core.errors import UserError
from profiler.core.optional_deps import load_function
from profiler.core.record import Record
from profiler.views.export import csv as csv_view
from profiler.views.export import files, markdown
from profiler.views.export.files import write_whole
from profiler.views.export.json import document
from profiler.views.tables.columns import main
from tests import examples, golden_files, make
from tests.make import MIB

HOSTILE = 'a|b*c_d`e[f]<g>&h%i$j#k{l}m~n^o\\p"q'


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "suffix"), [("csv", "csv"), ("markdown", "md"), ("latex", "tex")])
def test_the_export_looks_as_it_did(name: str, suffix: str):
    render = {
        "csv": csv_view.table,
        "markdown": lambda rows: markdown.markdown(main(rows)),
        "latex": lambda rows: markdown.latex(main(rows)),
    }[name]

    golden_files.compare(f"troubled.{suffix}", render(examples.table(examples.troubled())))


@pytest.mark.parametrize("kind", views.EXPORTS)
def test_every_export_of_the_table_gives_a_whole_file(kind: str, tmp_path: Path):
    run = examples.run(tmp_path / "run", examples.sweep())

    assert load_function(views.EXPORTS[kind])(run).endswith(b"PAR1" if kind == "parquet" else b"\n")


def test_a_csv_line_holds_bytes_as_integers_and_seconds_as_medians_with_their_samples():
    records = [make.record("none", peak=100 * MIB, seconds=(0.1, 0.3, 0.2))]

    line = lines_of(csv_view.table(examples.table(records)))[0]

    assert line["peak_bytes"] == str(100 * 2**20)
    assert line["step_seconds"] == "0.2"
    assert line["step_seconds_samples"] == "0.1;0.3;0.2"


def test_what_was_not_measured_is_an_empty_csv_cell_and_its_column_stays_whole_numbers():
    records = [make.record("none", peak=100 * MIB), make.failed("segments:k=2", "skipped", "why")]

    text = csv_view.table(examples.table(records))

    lines = lines_of(text)
    assert (lines[0]["peak_bytes"], lines[1]["peak_bytes"]) == ("104857600", "")
    assert lines[1]["step_seconds"] == lines[1]["step_seconds_samples"] == lines[1]["gradients"] == ""
    assert "nan" not in text.lower()


def test_the_document_holds_exactly_what_is_promised():
    records = [make.record("segments:k=8", seconds=(0.1, 0.2))]

    whole = msgspec.json.decode(document("name", records, status="partial", exit_code=130))

    assert list(whole) == ["schema", "run", "status", "exit_code", "records"]
    assert (whole["schema"], whole["run"], whole["status"], whole["exit_code"]) == (1, "name", "partial", 130)
    assert whole["records"][0]["case"]["strategy"] == "segments:k=8"
    assert whole["records"][0]["readings"]["step_seconds"] == [0.1, 0.2]


def test_the_records_of_the_document_can_be_read_back():
    records = examples.troubled()

    whole = msgspec.json.decode(document(None, records, status="failed", exit_code=1))

    assert [decode(msgspec.json.encode(record), Record) for record in whole["records"]] == records


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"mine")

    with pytest.raises(UserError) as refused:
        write_whole(path, b"yours")

    assert path.read_bytes() == b"mine"
    assert refused.value.exit_code == 2
    assert "--force" in (refused.value.hint or "")


def test_a_forced_file_is_whole_and_leaves_nothing_beside_it(tmp_path: Path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"mine")

    write_whole(path, b"yours", force=True)

    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("table.csv", b"yours")]


def test_a_file_in_a_folder_that_is_not_there_cannot_be_written(tmp_path: Path):
    with pytest.raises(UserError) as refused:
        write_whole(tmp_path / "none" / "table.csv", b"")

    assert refused.value.exit_code == 74


def test_a_folder_in_place_of_the_file_is_not_replaced(tmp_path: Path):
    with pytest.raises(UserError):
        write_whole(tmp_path, b"", force=True)

    assert not [path for path in tmp_path.parent.iterdir() if path.name.endswith(".new")]


def test_derived_files_are_written_and_written_again(tmp_path: Path):
    run = examples.run(tmp_path / "run", examples.sweep((2, 4)))

    first = [path.name for path in (*files.write_tables(run), *files.write_pictures(run))]
    files.write_tables(run)
    files.write_pictures(run)

    assert first == ["table.csv", "table.md", "frontier.png"]
    assert sorted(path.name for path in (run.folder / "derived").iterdir()) == sorted(first)


def test_without_an_ok_point_there_is_no_frontier_to_draw(tmp_path: Path):
    run = examples.run(tmp_path / "run", [make.failed("none", "out_of_memory", "96 MiB")])

    assert [path.name for path in files.write_tables(run)] == ["table.csv", "table.md"]
    assert files.write_pictures(run) == []
