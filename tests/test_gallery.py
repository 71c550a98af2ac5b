"""The gallery shows every kind of picture, by commands that are as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.main

from profiler.cli import ClickError, application
from profiler.runs.find import run_folder
from profiler.views import PLOTS
from profiler.views.plots.style import STYLES
from tests import gallery

OTHERS = {"timeline", "plan"}  # commands that draw besides `plot`
LARGEST = 120_000  # bytes of a picture


def parsed(words: list[str]) -> dict[str, object]:
    """The values of a command line, which is not carried out."""
    group = typer.main.get_command(application(words))
    command = group.commands[words[0]]  # type: ignore[attr-defined]
    with command.make_context(words[0], words[1:]) as context:
        return dict(context.params)


@pytest.mark.slow
def test_every_kind_is_in_it():
    drawn = {parsed(one.words).get("kind") for one in gallery.PICTURES if one.words[0] == "plot"}

    assert drawn == set(PLOTS)
    assert {one.words[0] for one in gallery.PICTURES} == {"plot", *OTHERS}


def test_every_style_is_in_it():
    assert {parsed(one.words).get("style") for one in gallery.PICTURES if one.words[0] == "plot"} == set(STYLES)


@pytest.mark.parametrize("picture", gallery.PICTURES, ids=lambda one: one.name)
def test_its_command_is_one_and_draws_what_is_shown(picture):
    values = parsed(picture.words)

    assert values["output"] == Path(f"{picture.name}.png")
    if "run" in values:
        assert (run_folder(str(values["run"])) / "manifest.json").is_file()


def test_a_flag_that_there_is_not_would_be_refused():
    words = gallery.PICTURES[0].words

    with pytest.raises(ClickError, match="No such option"):
        parsed([*words, "--colour", "red"])


@pytest.mark.parametrize("picture", gallery.PICTURES, ids=lambda one: one.name)
def test_its_picture_is_there_and_small(picture):
    path = gallery.FOLDER / f"{picture.name}.png"

    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < LARGEST


def test_no_other_picture_is_there():
    assert {path.stem for path in gallery.FOLDER.iterdir()} == {one.name for one in gallery.PICTURES}


def test_the_page_is_what_the_script_writes():
    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page()


@pytest.mark.slow
def test_a_picture_drawn_anew_has_the_same_name_and_bound():
    text = gallery.small(gallery.drawn(gallery.PICTURES[1]))

    assert text.startswith(b"\x89PNG")
    assert len(text) < LARGEST
