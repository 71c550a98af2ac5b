"""Result files that are damaged or of other versions, and names in them that would do harm where they were believed."""

import io
import shutil
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core.case import Choice, encode
from profiler.runs import store
from profiler.runs.merge import validate
from profiler.views import export as csv_view
from profiler.views.sanitize import plain
from tests import examples, make
from tests.make import MIB

LINE = encode(make.record("all"))
LINES = {
    "nothing": b"",
    "garbage": bytes(range(11, 256)),
    "deep objects": LINE[:-1] + b',"more":' + b'{"a":' * 10**6 + b"1" + b"}" * 10**6 + b"}",
    "400 digits": LINE.replace(b'"peak_bytes":104857600', b'"peak_bytes":1' + b"0" * 400),
    "10^300 seconds": LINE.replace(b'"step_seconds":[0.1,', b'"step_seconds":[1e300,'),
    "NaN": LINE.replace(b'"step_seconds":[0.1,', b'"step_seconds":[NaN,'),
    "newer schema": LINE.replace(b'"schema":1', b'"schema":99', 1),
}


@pytest.mark.parametrize(
    ("kind", "command"),
    [*((kind, "show") for kind in LINES), *(("NaN", reader) for reader in ("export", "validate", "compare"))],
)
def test_fault_42_every_reader_names_a_damaged_line_by_file_and_number(kind, command, here, capsys):
    for name in ("sound", "damaged"):
        examples.run(here / name, [make.record("none"), make.record("segments:k=2")])
    path = here / "damaged" / "trials.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + LINES[kind] + b"\n" + second)

    assert answer([command, "damaged", *(["sound"] if command == "compare" else [])]) == 4

    said = "".join(capsys.readouterr()).splitlines()
    assert LINES[kind] != LINE
    assert any("damaged/trials.jsonl:2: " in line for line in said)
    assert max(map(len, said)) < 300
    assert ("written by a newer gcprof (schema 99" in " ".join(said)) == (kind == "newer schema")


RELEASED = Path(__file__).parents[1] / "records"


@pytest.mark.parametrize("name", sorted(path.name for path in RELEASED.iterdir()))
def test_fault_43_a_run_of_a_released_schema_opens_and_is_shown(name, tmp_path, capsys):
    folder = shutil.copytree(RELEASED / name, tmp_path / "run")

    run = store.load(folder)

    lines = (folder / "trials.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["schema"] for line in lines] == [int(name)] * 6
    assert [record.outcome for record in run.records] == ["ok", "invalid", "ok", "skipped", "ok", "ok"]
    assert run.records[0].readings.peak_bytes == 26960
    assert answer(["show", str(folder)]) == 0
    assert [one.text for one in validate(folder).findings if one.is_damage] == []


def test_fault_43_unknown_fields_are_no_harm(tmp_path):
    folder = examples.run(tmp_path / "later", [make.record("none")]).folder
    for name in ("manifest.json", "trials.jsonl"):
        document = msgspec.json.decode((folder / name).read_bytes()) | {"mood": {"is": ["good"]}}
        (folder / name).write_bytes(msgspec.json.encode(document) + b"\n")

    assert store.load(folder).records == (make.record("none"),)


NAMES = {
    "formula": "=cmd|' /C calc'!A0",
    "lines": "two\nlines\r\tand a tab",
    "specials": 'a|b*c_d`e[f]<g>&h%i$j#k{l}m~n^o\\p"q',
    "escape": "\u202e\x1b]0;title\x07\x1b[31mred\x9b2J",
}


@pytest.mark.parametrize("text", NAMES.values(), ids=NAMES)
def test_fault_56_no_csv_cell_is_a_formula_and_pandas_reads_them_back(text):
    model = Choice(text)
    records = [make.record(model=model, peak=200 * MIB), make.record(text, model=model)]
    records.append(make.failed("all", "failed", text, model=model))

    found = pd.read_csv(io.StringIO(csv_view.csv_table(rows(records))), dtype=str, keep_default_na=False)
    assert not any(cell.startswith(csv_view.FORMULA) for column in ("model", "strategy") for cell in found[column])
    assert [cell.removeprefix("'") for cell in found["strategy"]] == ["none", plain(text), "all"]
    assert found["model"][0] == found["detail"][2]
    assert found["peak_bytes"][0] == str(200 * MIB)
