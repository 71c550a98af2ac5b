"""Run folders: what is appended is read back; what users keep is found, given words, and removed."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core.case import Trial
from profiler.core.errors import UserError
from profiler.core.record import Environment
from profiler.runs import store
from profiler.runs.find import read_tags, run_folder
from profiler.runs.store import Writer
from tests import examples, make

FIRST, SECOND = "20261120T174900Z-mlp-3fa9c1", "20261121T090000Z-mlp-77ab02"


@pytest.fixture
def results(here: Path) -> Path:
    for name in (FIRST, SECOND):
        examples.run(here / "results" / name, [make.record()])
    return here / "results"


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["3fa9c1", "20261120", "0Z-mlp-3f"])
def test_a_run_is_found_by_any_part_of_its_name_that_no_other_has(part: str, results: Path):
    assert run_folder(part) == Path("results") / FIRST


def test_tags_stand_in_the_list_and_change_nothing_that_was_measured(results: Path, capsys: pytest.CaptureFixture[str]):
    before = {path: path.read_bytes() for path in (results / FIRST).rglob("*") if path.is_file()}
    assert answer(["list"]) == 0
    assert "tags" not in capsys.readouterr().out

    assert answer(["tag", "3fa9c1", "baseline", "v1.0"]) == 0
    assert answer(["tag", "3fa9c1", "baseline"]) == 0  # twice is once

    capsys.readouterr()
    assert answer(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [run["tags"] for run in listed] == [["baseline", "v1.0"], []]
    assert answer(["list"]) == 0
    head, _, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "tags"
    assert first.split()[-2:] == ["baseline,", "v1.0"]
    assert {path: path.read_bytes() for path in before} == before
    assert answer(["validate", FIRST]) == 0


@pytest.mark.parametrize("word", ["", "a b", "a,b", "\x1b[31m", "x" * 41, "-"])
def test_what_is_no_word_is_no_tag(word: str, results: Path):
    assert answer(["tag", FIRST, "--", word]) == 2
    assert read_tags(results / FIRST) == ()


def test_a_link_in_place_of_the_tags_is_neither_read_nor_written_through(results: Path, here: Path):
    own = here / "own.json"
    own.write_text('["secret"]')
    (results / FIRST / "tags.json").symlink_to(own)
    assert read_tags(results / FIRST) == ()

    assert answer(["tag", FIRST, "mine"]) == 0

    assert own.read_text() == '["secret"]'
    assert read_tags(results / FIRST) == ("mine",)


@pytest.mark.parametrize("said", ["y\n", "Yes\n"])
def test_rm_asks_and_removes_where_the_answer_is_yes(
    said: str, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    typed(monkeypatch, said)

    assert answer(["rm", "3fa9c1"]) == 0

    assert [path.name for path in results.iterdir()] == [SECOND]
    err = capsys.readouterr().err
    assert err.startswith(f"remove results/{FIRST} (")
    assert err.endswith(f"removed results/{FIRST}\n")


@pytest.mark.parametrize("said", ["", "\n", "n\n", "yesterday\n"])
def test_rm_keeps_the_run_where_the_answer_is_anything_else(
    said: str, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    typed(monkeypatch, said)

    assert answer(["rm", FIRST]) == 2

    assert "is kept" in capsys.readouterr().err
    assert (results / FIRST / "trials.jsonl").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("below", ["", "shards/1"])
def test_rm_never_removes_what_is_being_written(below: str, results: Path, capsys: pytest.CaptureFixture[str]):
    folder = results / FIRST / below
    if below:
        examples.run(folder, [make.record()])
    writer = Writer(folder)
    try:
        assert answer(["rm", "--yes", FIRST]) == 2
        assert "another gcprof is writing to" in capsys.readouterr().err
        assert (folder / "trials.jsonl").is_file()
    finally:
        writer.close()

    assert answer(["rm", "--yes", FIRST]) == 0
    assert not (results / FIRST).exists()


HERE = Environment(gcprof="0.1.0", python="3.11.7", system="Linux x86_64")


def new_run(folder: Path, *strategies: str) -> Path:
    plan = tuple(Trial(case=make.case(strategy)) for strategy in strategies)
    store.create(folder, plan=plan, command="gcprof run", environment=HERE, sources={})
    return folder


def filled(folder: Path) -> Path:
    new_run(folder, "none", "segments:k=2", "segments:k=4")
    writer = Writer(folder)
    for strategy in ("none", "segments:k=2", "segments:k=4"):
        writer.append(make.record(strategy))
    writer.close()
    return folder


def test_what_is_appended_is_read_back(tmp_path):
    run = store.load(filled(tmp_path / "run"))

    assert [record.case.strategy for record in run.records] == ["none", "segments:k=2", "segments:k=4"]
    assert run.records[0] == make.record("none")
    assert run.warnings == ()


def test_a_torn_last_line_is_cut_off_before_more_is_written(tmp_path):
    folder = filled(tmp_path / "run")
    with (folder / "trials.jsonl").open("ab") as file:
        file.write(b'{"schema": 1, "case"')

    writer = Writer(folder)
    writer.append(make.record("segments:k=8"))
    writer.close()

    assert [record.case.strategy for record in store.load(folder).records][-1] == "segments:k=8"
    assert len(store.load(folder).records) == 4


@pytest.mark.parametrize("text", [b"garbage", b"\xff\xfe{", b"[1"])
def test_an_end_that_is_no_torn_record_is_refused_and_kept(tmp_path, text):
    folder = filled(tmp_path / "run")
    with (folder / "trials.jsonl").open("ab") as file:
        file.write(text)
    before = (folder / "trials.jsonl").read_bytes()

    with pytest.raises(UserError, match="damaged") as caught:
        Writer(folder)

    assert caught.value.exit_code == 4
    assert (folder / "trials.jsonl").read_bytes() == before


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"schema": "x"}', b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_damaged_line_is_named_by_file_and_number(tmp_path, text):
    folder = filled(tmp_path / "run")
    with (folder / "trials.jsonl").open("ab") as file:
        file.write(text + b"\n")

    with pytest.raises(UserError, match=r"trials.jsonl:4") as caught:
        store.load(folder)

    assert caught.value.exit_code == 4


def test_a_disk_that_takes_a_little_at_a_time_gets_the_whole_record(tmp_path, monkeypatch):
    folder = new_run(tmp_path / "run", "none")
    writer = Writer(folder)
    write = os.write

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, text: write(file, text[:100]))
        writer.append(make.record())
    writer.close()

    assert store.load(folder).records == (make.record(),)
