"""What --help shows: commands in groups, options in panels, three examples, at the terminal's width."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer.main

from profiler.cli import COMMANDS, answer, application, command
from profiler.cli import help as layout
from tests.commands import modules_after


def shown(words: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert answer(words) == 0
    return capsys.readouterr().out


def test_every_command_is_in_one_group():
    grouped = [name for group in (layout.GROUPS | layout.RUNS).values() for name in group]

    assert sorted(grouped) == sorted([*COMMANDS, "runs"])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_are_in_panels_and_every_one_is_there_once(name: str, monkeypatch: Any, capsys: Any):
    out = shown([name, "--help"], 100, monkeypatch, capsys)

    group: Any = typer.main.get_command(application([name]))
    options = [one for one in group.commands[name].params if one.param_type_name == "option" and not one.hidden]
    panels = dict(re.findall(r"^([A-Z][\w ]+):\n((?:  .*\n)+)", out, flags=re.MULTILINE))
    for option in options:
        line = rf"^  (?:-\w, )?{re.escape(max(option.opts, key=len))}(?= |$)"
        holding = [panel for panel, text in panels.items() if re.search(line, text, flags=re.MULTILINE)]
        assert holding == [layout.panel_of(option)]


@pytest.mark.parametrize("name", ["run", "rehearse", "predict", "explain", "timeline", "plan", "stages", "max-batch"])
def test_where_there_are_many_options_each_has_a_panel_of_its_kind(name: str):
    group: Any = typer.main.get_command(application([name]))

    options = [one for one in group.commands[name].params if one.param_type_name == "option"]

    assert [option.name for option in options if layout.panel_of(option) == layout.OTHER] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_three_examples_a_command_that_it_takes(name: str, monkeypatch: Any, capsys: Any):
    lines = layout.examples(name, command(name).__doc__)
    out = shown([name, "--help"], 60, monkeypatch, capsys)

    assert len(set(lines)) == 3
    group: Any = typer.main.get_command(application([name]))
    for line in lines:
        program, first, *words = shlex.split(line.replace("gcprof runs ", "gcprof "))
        assert (program, first) == ("gcprof", name)
        group.commands[name].make_context(name, words)  # raises for an option that it does not have
        assert f"\n  {line}\n" in out  # in one piece, to be pasted


def test_help_is_as_wide_as_the_terminal_up_to_120_columns(monkeypatch: Any, capsys: Any):
    def widest(columns: int) -> int:
        out = shown(["run", "--help"], columns, monkeypatch, capsys)
        return max(map(len, out.partition("Examples:")[0].splitlines()))

    assert widest(60) <= 60
    assert 80 < widest(120) <= 120
    assert widest(300) <= 120


def test_help_loads_neither_torch_nor_rich():
    loaded = modules_after(["run", "--help"])

    assert "profiler.cli.help" in loaded
    assert {"torch", "rich"} & loaded == set()
