"""The commands that read, as words in and text out."""

import os
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core import catalogue
from profiler.core.case import Trial
from profiler.training import STRATEGIES, models
from tests import examples, make
from tests.commands import gcprof

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


def test_show_prints_the_table_and_only_that_to_stdout(results, capsys):
    code = answer(["show", FIRST])

    out, err = capsys.readouterr()
    assert code == 0
    assert out.startswith("mnist-cnn:channels=32, 2,800,000 parameters")
    assert "segments:k=4" in out
    assert err == f"next: gcprof plot {FIRST} --kind memory -o memory.png\n"


def test_list_shows_the_newest_run_last(results, capsys):
    assert answer(["list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [FIRST, SECOND]
    assert lines[2].endswith(" 3/3 measured")
    assert lines[3].endswith(" 4/9 measured, partial")


def test_a_damaged_run_does_not_hide_the_others(results, capsys):
    (results / FIRST / "manifest.json").write_text("{")

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["show", "--samples"],
        ["show", "--json"],
        ["list"],
        ["export", "--to", "md"],
        ["plot", "-o", "plot.png"],
        ["models"],
        ["strategies", "segments"],
        ["--help"],
    ],
)
def test_results_can_be_read_where_torch_is_not_installed(words, results):
    done = gcprof(*words, torch=False)

    assert (done.returncode, "torch is not installed" in done.stderr) == (0, False)


@pytest.mark.parametrize(
    ("word", "said"), [("lost", "'lost' has no manifest.json"), ("nowhere", "'nowhere' is not a run")]
)
def test_a_word_that_is_no_run_is_named_where_there_are_no_runs_at_all(tmp_path, monkeypatch, capsys, word, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lost").mkdir()

    assert answer(["show", word]) == 4

    assert said in capsys.readouterr().err
