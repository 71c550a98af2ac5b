"""Run folders: what is appended is read back; what users keep is found, given words, and removed."""

import io
import json
import sys
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core import safe_files
from profiler.core.errors import UserError
from profiler.core.record import PhaseBytes, RankBytes
from profiler.runs import read_tags, store
from profiler.runs.merge import validate
from profiler.runs.store import Writer
from tests import examples, make

FIRST, SECOND = "20261120T174900Z-mlp-3fa9c1", "20261121T090000Z-mlp-77ab02"


@pytest.fixture
def results(here: Path) -> Path:
    for name in (FIRST, SECOND):
        examples.run(here / "results" / name, [make.record()])
    return here / "results"


def test_a_damaged_run_does_not_hide_the_others_and_a_word_that_is_no_run_is_named(results, capsys):
    (results / FIRST / "manifest.json").write_text("{")

    assert answer(["list"]) == 0
    out = capsys.readouterr().out
    assert "unreadable" in out
    assert SECOND in out
    assert answer(["show", "nowhere"]) == 4
    assert "is not a run" in capsys.readouterr().err


def test_tags_stand_in_the_list_and_change_nothing_that_was_measured(results, capsys):
    before = {path: path.read_bytes() for path in (results / FIRST).rglob("*") if path.is_file()}

    assert answer(["tag", "3fa9c1", "baseline", "v1.0"]) == 0
    assert answer(["tag", "0Z-mlp-3f", "baseline"]) == 0  # found by any part of its name; twice is once

    capsys.readouterr()
    assert answer(["list", "--json"]) == 0
    assert [run["tags"] for run in json.loads(capsys.readouterr().out)] == [["baseline", "v1.0"], []]
    assert {path: path.read_bytes() for path in before} == before
    assert answer(["validate", FIRST]) == 0


def test_what_is_no_word_is_no_tag_and_a_link_is_neither_read_nor_written_through(results, here):
    own = here / "own.json"
    own.write_text('["secret"]')
    (results / FIRST / "tags.json").symlink_to(own)
    for word in ("", "a,b", "\x1b[31m"):
        assert answer(["tag", FIRST, "--", word]) == 2
    assert read_tags(results / FIRST) == ()

    assert answer(["tag", FIRST, "mine"]) == 0

    assert own.read_text() == '["secret"]'
    assert read_tags(results / FIRST) == ("mine",)


@pytest.mark.parametrize(("said", "code"), [("Yes\n", 0), ("", 2), ("yesterday\n", 2)])
def test_rm_asks_and_removes_the_run_where_the_answer_is_yes_alone(said, code, results, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))

    assert answer(["rm", "3fa9c1"]) == code

    err = capsys.readouterr().err
    assert err.startswith(f"remove results/{FIRST} (")
    assert (results / FIRST).exists() == bool(code) == ("is kept" in err)
    assert (results / SECOND).exists()


def test_rm_never_removes_what_is_being_written(results, capsys):
    folder = examples.run(results / FIRST / "shards" / "1", [make.record()]).folder
    writer = Writer(folder)
    try:
        assert answer(["rm", "--yes", FIRST]) == 2
        assert "another gcprof is writing to" in capsys.readouterr().err
        assert (folder / "trials.jsonl").is_file()
    finally:
        writer.close()

    assert answer(["rm", "--yes", FIRST]) == 0
    assert not (results / FIRST).exists()


def ended_by(folder: Path, text: bytes) -> Path:
    """A run of one record, behind which this stands."""
    examples.run(folder, [make.record()])
    with (folder / "trials.jsonl").open("ab") as file:
        file.write(text)
    return folder


def test_a_torn_last_line_is_damage_and_is_cut_off_before_more_is_written(tmp_path):
    folder = ended_by(tmp_path / "run", b'{"schema": 1, "case"')
    assert found(folder) == [("trials.jsonl:2", "the last line is torn", True)]
    safe_files.beside(folder / "trials.jsonl").write_text("half")  # what a killed process was making

    writer = Writer(folder)
    writer.append(make.record("segments:k=8"))
    writer.close()

    assert store.load(folder).records == (make.record(), make.record("segments:k=8"))
    assert [path.name for path in folder.rglob(".*")] == []


@pytest.mark.parametrize("text", [b"garbage", b"\xff\xfe{"])
def test_an_end_that_is_no_torn_record_is_refused_and_kept(tmp_path, text):
    folder = ended_by(tmp_path / "run", text)
    before = (folder / "trials.jsonl").read_bytes()

    with pytest.raises(UserError, match="damaged", check=lambda error: error.exit_code == 4):
        Writer(folder)

    assert (folder / "trials.jsonl").read_bytes() == before


def found(folder: Path) -> list[tuple[str, str, bool]]:
    """What is wrong with the lines of a run folder, named with its place."""
    return [(Path(one.where).name, one.text, one.is_damage) for one in validate(folder).findings]


def damaged(folder: Path, **readings: object) -> list[tuple[str, str, bool]]:
    """What is found of a run whose second record has these readings."""
    return found(examples.run(folder / "run", [make.record(), make.record("segments:k=2", **readings)]).folder)


FINE, RANK = (RankBytes(static_bytes={}, saved_bytes=mib * make.MIB, peak_bytes=100 * make.MIB) for mib in (1, 101))


@pytest.mark.parametrize(
    ("readings", "texts"),
    [
        ({"saved_bytes": -1}, ["saved_bytes is -1"]),
        ({"phases": {"forward": PhaseBytes(allocated=-5)}}, ["phases.forward.allocated is -5"]),
        ({"peak_bytes": 19 * make.MIB, "saved_bytes": None}, ["the peak of 19.0 MiB is below the static 20.0 MiB"]),
        ({"peak_bytes": 20 * make.MIB, "saved_bytes": None}, []),  # of the static bytes alone
        ({"saved_bytes": 101 * make.MIB}, ["the peak of 100 MiB is below the saved 101 MiB"]),
        ({"step_seconds": ()}, ["the outcome is ok, but the step has no time samples"]),
        ({"ranks": (FINE,)}, []),
        ({"ranks": (FINE, RANK)}, ["it has 2 of 1 ranks", "rank 1's peak of 100 MiB is below the saved 101 MiB"]),
        ({"ranks": ()}, ["it has 0 of 1 ranks", "the peak is not the highest of its ranks, 0 B"]),
    ],
)
def test_an_impossible_number_is_damage(tmp_path, readings, texts):
    assert damaged(tmp_path, **readings) == [("trials.jsonl:2", text, True) for text in texts]


@pytest.mark.parametrize("command", ["show", "compare", "show --json"])
def test_a_peak_that_cannot_be_is_warned_of_where_a_run_is_read(command, here, capsys):
    assert damaged(here, peak_bytes=1)

    word, *options = command.split()
    assert answer([word, "run", *(["run"] if word == "compare" else []), *options]) == 0

    text = "numbers that cannot be: trials.jsonl:2: the peak of 1 B is below the static 20.0 MiB, and 1 more; "
    (first, *_) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert first.removeprefix("warning: ").removeprefix("run: ").startswith(text)
