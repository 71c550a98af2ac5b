"""Files of every released schema open, those of a newer one are refused, and fields of later versions are kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.cli import answer
from profiler.core.case import encode
from profiler.core.record import SCHEMA
from profiler.runs import store
from profiler.runs.validate import validate
from tests import examples, make

RELEASED = Path(__file__).parents[1] / "records"
RECORDS = [make.record("none"), make.record("segments:k=2")]
LATER = {"mood": {"is": ["good"]}}  # what a later minor version may write besides


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "trials.jsonl").read_bytes().splitlines()


@pytest.mark.parametrize("name", sorted(path.name for path in RELEASED.iterdir()))
def test_fault_43_a_run_of_a_released_schema_opens_and_is_shown(name: str, tmp_path: Path, capsys: Any):
    folder = shutil.copytree(RELEASED / name, tmp_path / "run")

    run = store.load(folder)

    assert [msgspec.json.decode(line)["schema"] for line in lines_of(folder)] == [int(name)] * 6
    assert [record.outcome for record in run.records] == ["ok", "invalid", "ok", "skipped", "ok", "ok"]
    assert run.records[0].readings.peak_bytes == 26960
    assert answer(["show", str(folder)]) == 0
    assert [one.text for one in validate(folder).findings if one.is_damage] == []


# Newer ones


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A run whose last record is of a schema that is not known here; it means something else by `outcome`."""
    folder = examples.run(tmp_path / "newer", RECORDS).folder
    with (folder / "trials.jsonl").open("ab") as file:
        file.write(encode(make.record("all")).replace(b'"schema":1', b'"schema":99', 1) + b"\n")
    return folder


def test_fault_43_a_newer_schema_asks_for_an_upgrade(newer: Path, capsys: Any):
    code = answer(["show", str(newer)])

    out, err = capsys.readouterr()
    assert (code, out) == (4, "")
    assert err.splitlines() == [
        f"gcprof: {newer}/trials.jsonl:3: written by a newer gcprof (schema 99, this one reads {SCHEMA})",
        "hint: upgrade gcprof",
    ]


# Unknown fields


@pytest.fixture
def later(tmp_path: Path) -> list[Path]:
    """Two runs with fields that are not known here, in the manifest and in every record."""
    folders = []
    for number, one in enumerate(RECORDS):
        folder = examples.run(tmp_path / f"{number}", [one]).folder
        manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
        (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest | LATER))
        line = msgspec.json.decode((folder / "trials.jsonl").read_bytes())
        (folder / "trials.jsonl").write_bytes(msgspec.json.encode(line | LATER) + b"\n")
        folders.append(folder)
    return folders


def kept(folder: Path) -> list[bool]:
    """Whether each record has what a later version wrote."""
    return [msgspec.json.decode(text).get("mood") == LATER["mood"] for text in lines_of(folder)]


def test_fault_43_unknown_fields_are_no_harm(later: list[Path]):
    assert store.load(later[0]).records == (RECORDS[0],)
