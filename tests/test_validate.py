"""Every line of a run folder is looked at; what is wrong is named with its place."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from profiler.cli import answer
from profiler.core.case import Trial, encode
from profiler.core.record import PhaseBytes
from profiler.runs.validate import validate
from tests import examples, make

ROOT = Path(__file__).parents[1]
GOOD = [make.record("none"), make.record("segments:k=2"), make.failed("all", "skipped", "why")]


def found(folder: Path) -> list[tuple[str, str, bool]]:
    return [(Path(one.where).name, one.text, one.is_damage) for one in validate(folder).findings]


def damaged(folder: Path, **readings: object) -> list[tuple[str, str, bool]]:
    """What is found of a run whose second record has these readings."""
    wrong = msgspec.structs.replace(GOOD[1], readings=msgspec.structs.replace(GOOD[1].readings, **readings))
    return found(examples.run(folder / "run", [GOOD[0], wrong]).folder)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return examples.run(tmp_path / "run", GOOD).folder


def add(run: Path, text: bytes) -> None:
    with (run / "trials.jsonl").open("ab") as file:
        file.write(text)


@pytest.mark.slow
def test_a_sound_run_is_fine(run, capsys):
    assert answer(["validate", str(run)]) == 0

    out, err = capsys.readouterr()
    assert out == f"{run}: 3 records, fine\n"
    assert err == f"next: gcprof show {run}\n"


@pytest.mark.parametrize("folder", sorted((ROOT / "results" / "reference").rglob("manifest.json")), ids=str)
def test_the_committed_runs_are_fine(folder):
    assert found(folder.parent) == []


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"schema": "x"}', b"\xff\xfe", b"null"])
def test_a_line_that_cannot_be_read_is_named_and_the_others_are_read(run, text):
    add(run, text + b"\n")

    report = validate(run)

    assert [(Path(one.where).name, one.is_damage) for one in report.findings] == [("trials.jsonl:4", True)]
    assert report.num_records == 3


def test_a_newer_schema_is_damage_to_this_reader(run):
    add(run, encode(make.record()).replace(b'"schema":1', b'"schema":99', 1) + b"\n")

    ((where, text, is_damage),) = found(run)

    assert (where, is_damage) == ("trials.jsonl:4", True)
    assert "schema 99" in text


@pytest.mark.parametrize(
    ("readings", "text"),
    [
        ({"saved_bytes": -1}, "saved_bytes is -1"),
        ({"step_seconds": (0.1, -0.2)}, "step_seconds is -0.2"),
        ({"phases": {"forward": PhaseBytes(allocated=-5)}}, "phases.forward.allocated is -5"),
        ({"peak_bytes": 19 * make.MIB, "saved_bytes": None}, "the peak of 19.0 MiB is below the static 20.0 MiB"),
        (
            {"saved_bytes": 101 * make.MIB, "peak_bytes": 100 * make.MIB},
            "the peak of 100 MiB is below the saved 101 MiB",
        ),
        ({"step_seconds": ()}, "the outcome is ok, but the step has no time samples"),
        ({"step_seconds": None}, "the outcome is ok, but the step has no time samples"),
    ],
)
def test_an_impossible_number_is_damage(tmp_path, readings, text):
    assert damaged(tmp_path, **readings) == [("trials.jsonl:2", text, True)]


def test_a_record_of_no_ranks_contradicts_itself(tmp_path):
    texts = ["it has 0 of 1 ranks", "the peak is not the highest of its ranks, 0 B"]

    assert damaged(tmp_path, ranks=()) == [("trials.jsonl:2", text, True) for text in texts]


@pytest.mark.parametrize("command", ["show", "compare", "export", "plot", "report", "show --json"])
def test_a_peak_that_cannot_be_is_warned_of_where_a_run_is_read(command, here, capsys):
    assert damaged(here, peak_bytes=1)

    word, *options = command.split()
    assert answer([word, "run", *(["run"] if word == "compare" else []), *options]) == 0

    text = "numbers that cannot be: trials.jsonl:2: the peak of 1 B is below the static 20.0 MiB, and 1 more; "
    (first, *_) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert first.removeprefix("warning: ").removeprefix("run: ").startswith(text)


def test_a_peak_of_the_static_bytes_alone_is_possible(tmp_path):
    assert damaged(tmp_path, peak_bytes=20 * make.MIB, saved_bytes=None) == []


def test_a_torn_line_is_damage(run):
    add(run, b'{"schema": 1, "case"')

    assert found(run) == [("trials.jsonl:4", "the last line is torn", True)]


@pytest.mark.parametrize("name", ["manifest.json", "trials.jsonl"])
def test_a_damaged_file_is_named_and_the_other_is_still_looked_at(run, name):
    (run / name).write_text("{\n")

    findings = found(run)

    assert [where for where, _, is_damage in findings if is_damage] == [
        name if name == "manifest.json" else "trials.jsonl:1"
    ]


def test_what_is_run_only_where_a_model_has_checkpoints_of_its_own_is_not_missed(tmp_path):
    folder = tmp_path / "run"
    own = Trial(case=make.case("own"), if_own=True)
    examples.run(folder, GOOD[:1])
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["plan"].append(json.loads(encode(own)))
    (folder / "manifest.json").write_text(json.dumps(manifest))

    assert found(folder) == []
