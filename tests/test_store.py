"""A run folder: once a record is appended it is on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from profiler.core.case import Trial
from profiler.core.errors import UserError
from profiler.core.record import Environment
from profiler.runs import store
from profiler.runs.writer import Writer
from tests import make

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
