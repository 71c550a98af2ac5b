"""What a terminal would obey, in every text of a run, against every document that is printed."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from profiler.cli import answer
from profiler.runs import store
from profiler.views.sanitize import escaped
from tests import examples, make
from tests.attack import hostile

OBEYED = "a\x9b31mb\x85c\u2028d\u2029e\u202ef\u2066g\u200fh\U000e0041i\x7fj\x1b]0;t\x07k\ufeffl"
COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of our own tables
COMMANDS = (
    ("show", "base", "--json"),
    ("show", "base", "--format", "md"),
    ("show", "base"),
    ("list", "--json", "--folder", "."),
    ("list", "--folder", "."),
    ("validate", "base", "--json"),
    ("compare", "base", "base2", "--format", "json"),
    ("compare", "base", "base2", "--format", "csv"),
    ("compare", "base", "base2", "--format", "md"),
    ("export", "base", "--to", "json"),
    ("export", "base", "--to", "csv"),
    ("export", "base", "--to", "md"),
    ("export", "base", "--to", "latex"),
)


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def obeyed(here: Path) -> Path:
    """Two runs that hold such characters wherever a text is free."""
    for name in ("base", "base2"):
        case = make.case(model=f"mlp{OBEYED}", blocks=OBEYED, precision=OBEYED)
        records = [make.record(case=case, detail=OBEYED), make.failed("all", "crashed", OBEYED)]
        folder = examples.run(here / name, records).folder
        environment = msgspec.structs.replace(examples.ENVIRONMENT, device_name=OBEYED)
        hostile.forge(folder, command=OBEYED, environment=environment)
    return here


def printed(words: tuple[str, ...], stream: type[io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch) -> str:
    stdout = stream(io.BytesIO(), encoding="utf-8", newline="")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert answer(list(words)) in (0, 4)
    assert isinstance(stdout.buffer, io.BytesIO)
    return stdout.buffer.getvalue().decode()


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_character_that_a_terminal_obeys_is_printed_there(
    words: tuple[str, ...], obeyed: Path, monkeypatch: pytest.MonkeyPatch
):
    told = COLOURS.sub("", printed(words, Terminal, monkeypatch))

    assert [character for character in told if not character.isprintable() and character not in "\n\t"] == []
    if "json" in " ".join(words):
        assert json.loads(told) == json.loads(printed(words, io.TextIOWrapper, monkeypatch))


def test_twin_what_is_printed_into_a_pipe_is_the_document_itself(obeyed: Path, monkeypatch: pytest.MonkeyPatch):
    assert "\u202e" in printed(("show", "base", "--json"), io.TextIOWrapper, monkeypatch)


def test_what_is_escaped_is_the_same_in_json():
    text = msgspec.json.encode([OBEYED, "é 中 😀"]).decode()

    assert json.loads(escaped(text)) == [OBEYED, "é 中 😀"]
    assert "é 中 😀" in escaped(text)


def test_runs_of_such_texts_can_be_loaded(obeyed: Path):
    assert store.load(obeyed / "base").manifest.command == OBEYED
