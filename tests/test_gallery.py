"""The gallery shows every kind of picture, by commands that are as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.main

from profiler.cli import application
from profiler.runs.find import run_folder
from tests import gallery


def parsed(words: list[str]) -> dict[str, object]:
    """The values of a command line, which is not carried out."""
    group = typer.main.get_command(application(words))
    command = group.commands[words[0]]  # type: ignore[attr-defined]
    with command.make_context(words[0], words[1:]) as context:
        return dict(context.params)


@pytest.mark.parametrize("picture", gallery.PICTURES, ids=lambda one: one.name)
def test_its_command_is_one_and_draws_what_is_shown(picture):
    values = parsed(picture.words)

    assert values["output"] == Path(f"{picture.name}.png")
    if "run" in values:
        assert (run_folder(str(values["run"])) / "manifest.json").is_file()


def test_the_page_is_what_the_script_writes():
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page()
