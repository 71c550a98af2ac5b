"""Help and completions: commands in groups, options in panels, three examples, what a half typed word may be."""

import re
from pathlib import Path

import pytest

from profiler.cli import COMMANDS, answer, command
from profiler.cli import options as layout
from profiler.cli.options import CHOICES
from profiler.core import device_choice
from profiler.workflows import spec
from tests import examples, make
from tests.program import gcprof


def shown(words: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert answer(words) == 0
    return capsys.readouterr().out


def proposed(typed: str) -> list[str]:
    """What bash is told for this line; the last word is half typed, or not begun behind a space."""
    number = len(typed.split()) - (not typed.endswith(" "))
    asked = {"_GCPROF_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(number)}
    return gcprof(cwd=Path(), **asked).stdout.split()


def test_runs_are_proposed_the_newest_first(here):
    oldest, newest = "20261120T174900Z-mlp-3fa9c1", "20261121T090000Z-mlp-77ab02"
    for name in (oldest, newest):
        examples.run(here / "results" / name, [make.record()])

    assert proposed("gcprof show ") == ["last", newest, oldest]
    assert proposed("gcprof merge 20261120") == [oldest]


def test_the_main_help_lists_ten_commands_and_all_of_them_when_asked(monkeypatch, capsys):
    listed = {
        flag: re.findall(r"^  ([a-z][\w-]+)  +[A-Z]", shown([flag], 80, monkeypatch, capsys), flags=re.MULTILINE)
        for flag in ("--help", "--help-all")
    }

    asked = ["run", "rehearse", "explain", "fit", "plan", "compare", "report", "show", "doctor", "runs"]
    assert sorted(listed["--help"]) == sorted(asked)
    kept = [name for group in layout.RUNS.values() for name in group]
    assert sorted(listed["--help-all"]) == sorted({*COMMANDS, "runs"} - {*kept})


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_has_at_most_twenty_options_unless_all_are_asked_for(name, monkeypatch, capsys):
    def options(flag: str) -> list[str]:
        return re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown([name, flag], 100, monkeypatch, capsys), flags=re.MULTILINE)

    short, whole = options("--help"), options("--help-all")
    lines = layout.examples(name, command(name).__doc__)

    assert len(set(lines)) == 3  # that they are taken: tests/test_pasted_lines.py
    assert len(short) <= 20
    assert {*short} <= {*whole}
    assert ("--help-all" in short) == (len(whole) > len(short))


def test_choices_are_shown_are_taken_and_are_completed(monkeypatch, capsys):
    out = shown(["run", "--help-all"], 100, monkeypatch, capsys)

    for name, choices in CHOICES.items():
        flag = f"--{name.replace('_', '-')}"
        if name in spec.Request.__struct_fields__:
            assert f"{flag} [{'|'.join(choices)}]" in out or name == "routing"
            for word in choices:
                with_ranks = {"ranks": "2"} if name == "parallel" else {}
                device = {"device": "fake:t4"} if name == "routing" else {}
                words = spec.Request(model="mlp", **{name: word}, **with_ranks, **device)
                assert spec.check(words, device_choice.any_device).trials
    assert proposed("gcprof run --verify ") == list(CHOICES["verify"])
    assert proposed("gcprof run --optimizer ad") == ["adam", "adamw"]
    assert proposed("gcprof rehearse --device rtx-4") == ["rtx-4060", "rtx-4070", "rtx-4090"]
