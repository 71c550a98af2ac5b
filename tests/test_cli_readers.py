"""The commands that read, as words in and text out."""

import os
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core import catalogue
from profiler.core.case import Trial
from profiler.training import STRATEGIES, models
from tests import examples, make

FIRST, SECOND = "20261120T174900Z-mnist-cnn-3fa9c1", "20261121T090000Z-mnist-cnn-77ab02"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs, the second one partial; the commands run in it."""
    monkeypatch.chdir(tmp_path)
    examples.run(tmp_path / "results" / FIRST, examples.sweep((2, 4)))
    examples.run(tmp_path / "results" / SECOND, examples.troubled(), more=(Trial(case=make.case("segments:k=7")),))
    for name, time in ((FIRST, 1_000_000_000), (SECOND, 2_000_000_000)):
        os.utime(tmp_path / "results" / name / "manifest.json", (time, time))
    return tmp_path / "results"


def test_list_shows_the_newest_run_last(results, capsys):
    assert answer(["list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [FIRST, SECOND]
    assert lines[2].endswith(" 3/3 measured")
    assert lines[3].endswith(" 4/9 measured, partial")
    (results / FIRST / "manifest.json").write_text("{")  # a damaged run does not hide the others
    assert answer(["list"]) == 0
    out = capsys.readouterr().out
    assert "unreadable" in out
    assert "4/9" in out


@pytest.mark.parametrize(("command", "table"), [("models", models.TABLE), ("strategies", STRATEGIES)])
def test_every_name_is_listed_and_the_hidden_ones_only_where_asked_for(command, table, capsys):
    def names(*words: str) -> set[str]:
        assert answer([command, *words]) == 0
        return {line.split()[0] for line in capsys.readouterr().out.splitlines() if line} & everything

    everything = {entry.name for entry in catalogue.entries(table, hidden=True)}
    assert names() == {name for name in everything if not name.startswith("_")}
    assert names("--all") == everything


@pytest.mark.parametrize(("word", "said"), [("lost", "has no manifest.json"), ("nowhere", "is not a run")])
def test_a_word_that_is_no_run_is_named_where_there_are_no_runs_at_all(here, capsys, word, said):
    (here / "lost").mkdir()

    assert answer(["show", word]) == 4

    assert said in capsys.readouterr().err
