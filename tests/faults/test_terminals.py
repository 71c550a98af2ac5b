"""Every command that reads, on terminals of all kinds: narrow, without colours, without Unicode (row 55)."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from profiler.cli import COMMANDS, answer
from profiler.core.record import Environment
from tests import examples, machines, make

FOREIGN = Environment(gcprof="0.1.0", python="3.11.7", system="Linux", torch="2.15.0", device_name="Gerät π")
READERS = [
    ["show"],
    ["show", "--samples"],
    ["show", "--format", "md"],
    ["list"],
    ["validate"],
    ["models"],
    ["models", "mnist-cnn"],
    ["strategies"],
    ["strategies", "segments"],
    ["reproduce"],
]
DOCUMENTS = [["show", "--format", "md"]]  # whole files in UTF-8, as wide as they are


@pytest.fixture
def results(here: Path) -> Path:
    """A partial run with everything that goes wrong, and a name and a device that ASCII cannot write."""
    case = make.case("modèle:größe=é")
    records = [*examples.troubled(), make.record("modèle:größe=é", case=case, environment=FOREIGN)]
    run = examples.run(here / "results" / "20261120T174900Z-mnist-cnn-3fa9c1", records)
    (run.folder / "übrig.txt").touch()
    return here / "results"


def environment(**more: str) -> dict[str, str]:
    dropped = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONIOENCODING", "TERM")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "PYTHONPATH": machines.python_path(), **more}


def piped(words: list[str], **more: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "profiler", *words]
    return subprocess.run(command, env=environment(**more), capture_output=True, check=False)


def on_a_terminal(words: list[str], *, columns: int, **more: str) -> str:
    """What a terminal of this width is sent on stdout."""
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "profiler", *words]
    more = {"TERM": "xterm-256color", **more}
    child = subprocess.Popen(command, env=environment(**more), stdout=writing, stderr=subprocess.DEVNULL)
    os.close(writing)
    text = b""
    try:
        while piece := os.read(reading, 65536):
            text += piece
    except OSError:  # how Linux says that nobody writes any more
        pass
    os.close(reading)
    assert child.wait() == (4 if words[0] == "validate" else 0)
    return text.decode().replace("\r\n", "\n")


def seen(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def cuttable(line: str) -> bool:
    """Whether text may break behind its indent or its label; a longer word, as the name of a run, is never cut."""
    return bool(re.search(r"(?:[, ]|:(?!\d))\s*\S", re.sub(r"^\S.*?\s{2,}", "", line).strip()))


@pytest.mark.parametrize("words", [words for words in READERS if words not in DOCUMENTS], ids=" ".join)
@pytest.mark.parametrize("columns", [40, 80])
def test_fault_55_no_line_is_wider_than_the_terminal(words: list[str], columns: int, results: Path):
    lines = seen(on_a_terminal(words, columns=columns))

    assert lines
    assert [line for line in lines if len(line) > columns and cuttable(line)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("words", [words for words in READERS if words not in DOCUMENTS], ids=" ".join)
@pytest.mark.parametrize(
    "locale",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["ascii", "C"],
)
def test_fault_55_an_ascii_terminal_gets_ascii(words: list[str], locale: dict[str, str], results: Path):
    done = piped(words, **locale)

    assert done.returncode == (4 if words[0] == "validate" else 0), done.stderr
    assert (done.stdout + done.stderr).isascii()
    assert done.stdout


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_fault_55_every_number_is_whole_at_any_width(columns: int, results: Path):
    whole = numbers(on_a_terminal(["show"], columns=300))

    found = numbers(on_a_terminal(["show"], columns=columns))

    assert len(whole) > 20
    assert found == whole


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:\.\d+)?", " ".join(seen(text))))


@pytest.mark.parametrize("command", COMMANDS)
def test_fault_55_every_help_is_ascii_and_at_most_80_columns(command: str, capsys: pytest.CaptureFixture[str]):
    assert answer([command, "--help"]) == 0

    text = capsys.readouterr().out
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 80
