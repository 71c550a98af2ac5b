"""Result files that are damaged or of other versions, and names in them that would do harm where they were believed."""

import gzip
import io
import shutil
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from profiler.cli import answer
from profiler.core.case import Choice, encode
from profiler.core.record import SCHEMA, Record
from profiler.runs import store
from profiler.runs.merge import validate
from profiler.views import export as csv_view
from profiler.views.sanitize import plain
from tests import examples, make
from tests.make import MIB

# --- damage

LINE = encode(make.record("all"))
DEEP = 1_000_000
LINES = {
    "nothing": b"",
    "zero bytes": b"\0" * 1000,
    "garbage": bytes(range(11, 256)),
    "UTF-16": LINE.decode().encode("utf-16"),
    "gzip": gzip.compress(b"\0" * 10_000_000).replace(b"\n", b" "),
    "deep lists": b"[" * DEEP,
    "deep objects": LINE[:-1] + b',"more":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "10^400": LINE.replace(b'"peak_bytes":104857600', b'"peak_bytes":1e400'),
    "400 digits": LINE.replace(b'"peak_bytes":104857600', b'"peak_bytes":1' + b"0" * 400),
    "10^300 seconds": LINE.replace(b'"step_seconds":[0.1,', b'"step_seconds":[1e300,'),
    "NaN": LINE.replace(b'"step_seconds":[0.1,', b'"step_seconds":[NaN,'),
    "another type": LINE.replace(b'"round":1', b'"round":"1"'),
}
READERS = ("show", "export", "validate", "compare")


@pytest.mark.parametrize(
    ("kind", "command"), [*((kind, "show") for kind in LINES), *(("10^400", reader) for reader in READERS[1:])]
)
def test_fault_42_every_reader_names_a_damaged_line_by_file_and_number(kind, command, here, capsys):
    for name in ("sound", "damaged"):
        examples.run(here / name, [make.record("none"), make.record("segments:k=2")])
    path = here / "damaged" / "trials.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + LINES[kind] + b"\n" + second)

    code = answer([command, "damaged", *(["sound"] if command == "compare" else [])])

    said = "".join(capsys.readouterr()).splitlines()
    assert LINES[kind] != LINE
    assert code == 4
    assert any("damaged/trials.jsonl:2: " in line for line in said)
    assert max(map(len, said)) < 300


# --- versions

RELEASED = Path(__file__).parents[1] / "records"


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "trials.jsonl").read_bytes().splitlines()


@pytest.mark.parametrize("name", sorted(path.name for path in RELEASED.iterdir()))
def test_fault_43_a_run_of_a_released_schema_opens_and_is_shown(name, tmp_path, capsys):
    folder = shutil.copytree(RELEASED / name, tmp_path / "run")

    run = store.load(folder)

    assert [msgspec.json.decode(line)["schema"] for line in lines_of(folder)] == [int(name)] * 6
    assert [record.outcome for record in run.records] == ["ok", "invalid", "ok", "skipped", "ok", "ok"]
    assert run.records[0].readings.peak_bytes == 26960
    assert answer(["show", str(folder)]) == 0
    assert [one.text for one in validate(folder).findings if one.is_damage] == []


def test_fault_43_a_newer_schema_asks_for_an_upgrade(tmp_path, capsys):
    folder = examples.run(tmp_path / "newer", [make.record("none")]).folder
    with (folder / "trials.jsonl").open("ab") as file:
        file.write(encode(make.record("all")).replace(b'"schema":1', b'"schema":99', 1) + b"\n")

    code = answer(["show", str(folder)])

    out, err = capsys.readouterr()
    assert (code, out) == (4, "")
    assert f"trials.jsonl:2: written by a newer gcprof (schema 99, this one reads {SCHEMA})" in err


def test_fault_43_unknown_fields_are_no_harm(tmp_path):
    folder = examples.run(tmp_path / "later", [make.record("none")]).folder
    for name in ("manifest.json", "trials.jsonl"):
        document = msgspec.json.decode((folder / name).read_bytes()) | {"mood": {"is": ["good"]}}
        (folder / name).write_bytes(msgspec.json.encode(document) + b"\n")

    assert store.load(folder).records == (make.record("none"),)


# --- names that a terminal, a page or a file could take for something else

NAMES = {
    "formula": "=cmd|' /C calc'!A0",
    "quoted formula": "'=1+1",
    "script": "</script><script>alert(1)</script>",
    "markup": "[/][bold red]x[/bold red]",
    "path": "../../x",
    "device": "CON",
    "lines": "two\nlines\r\tand a tab",
    "long": "ab" * 5000,
    "right-to-left": "\u202egnp.exe\u202c\u200b",
    "mathematics": r"$x$ and $\frac{$",
    "pipe": "a|b|c",
    "specials": 'a|b*c_d`e[f]<g>&h%i$j#k{l}m~n^o\\p"q',
    "escape": "\x1b]0;title\x07\x1b[31mred\x9b2J",
}
hostile = pytest.mark.parametrize("text", NAMES.values(), ids=NAMES)


def records(text: str) -> list[Record]:
    """A model of this name under a strategy of this name, which is the slower, and one that failed with these words."""
    model = Choice(text)
    none = make.record("none", case=make.case("none", model=model), peak=200 * MIB)
    named = make.record(text, case=make.case(text, model=model), seconds=(0.2, 0.2, 0.2))
    return [none, named, make.failed("all", "failed", text, case=make.case("all", model=model))]


@hostile
def test_fault_56_no_csv_cell_is_a_formula_and_pandas_reads_them_back(text):
    written = csv_view.csv_table(examples.table(records(text)))

    found = pd.read_csv(io.StringIO(written), dtype=str, keep_default_na=False)
    assert not any(cell.startswith(csv_view.FORMULA) for column in ("model", "strategy") for cell in found[column])
    assert [cell.removeprefix("'") for cell in found["strategy"]] == ["none", plain(text), "all"]
    assert found["model"][0] == found["detail"][2]
    assert found["peak_bytes"][0] == str(200 * MIB)
