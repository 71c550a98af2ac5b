"""The screen of every command at 80 columns, with its colours: `cat tests/golden/screens/show-80.txt`."""

import io
import re
import shlex
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from msgspec.structs import replace

from profiler.cli import COMMANDS, answer
from profiler.core import device_choice
from profiler.views.tables import columns
from profiler.views.tables.progress import Follow
from tests import examples, golden_files, make

CODES = re.compile(r"\x1b\[[\d;]*m")
LINK = re.compile(r"\x1b\]8;;(file://[^\x1b]*)?\x1b\\")  # of a terminal (OSC 8); that without an address ends it
PASTED = re.compile(r"(next: |  )?gcprof ")  # in one piece, however wide it is
SMALL = "transformer:layers=4,width=64"
SCREENS = {  # command -> its words: of a committed run, of a small model that is predicted, or what else runs nothing
    "run": "transformer --strategies all --device fake:t4 --dry-run",
    "rehearse": "--help",
    "predict": f"{SMALL} --strategies sqrt,all --device t4 -o run",
    "explain": f"{SMALL} --strategies all --device t4",
    "timeline": f"{SMALL} --strategies none,all --device t4 -o timeline.svg",
    "plan": f"{SMALL} --budget 90% --device t4",
    "stages": f"{SMALL} --device t4",
    "fit": "--help",
    "show": "ref:cpu/mnist-cnn",
    "compare": "ref:predicted-t4/mnist-cnn ref:predicted-h100/mnist-cnn",
    "plot": "ref:cpu/mnist-cnn -o frontier.svg",
    "export": "ref:cpu/mnist-cnn --to csv -o table.csv",
    "report": "ref:cpu/mnist-cnn",
    "list": "--ref",
    "tag": "3fa9c1 baseline",
    "rm": "--yes 3fa9c1",
    "merge": "3fa9c1 77ab02 -o results/whole",
    "validate": "3fa9c1 77ab02",
    "models": "",
    "strategies": "",
    "blocks": "mlp",
    "reproduce": "",
    "doctor": "--help",
    "note": "GCP012",
}


@pytest.fixture
def reader(here: Path, shared: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with two runs, and a torch whose version stays."""
    for name in ("20261120T174900Z-mlp-3fa9c1", "20261120T174901Z-mlp-77ab02"):
        examples.run(here / "results" / name, [make.record("none"), make.record("all")])
    fixed = {"torch": examples.ENVIRONMENT.torch}
    for module, name in ((columns, "environment_of"), (device_choice, "environment")):
        found = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *words, found=found: (one := found(*words)) and replace(one, **fixed))


def screen(name: str, width: int, monkeypatch: pytest.MonkeyPatch, *, color: str = "always") -> str:
    """What a command shows on a terminal of so many columns, its asides among it."""
    kept = io.BytesIO()
    file = io.TextIOWrapper(kept, encoding="utf-8", write_through=True)
    monkeypatch.setattr(file, "isatty", lambda: True)
    for variable, value in (("COLUMNS", str(width)), ("TERM", "xterm-256color"), ("COLORTERM", "")):
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "stdout", file)
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(Follow, "__enter__", lambda self: self)  # what turns while it works is gone in the end
    assert answer([name, *shlex.split(SCREENS[name]), "--color", color]) == 0
    text = re.sub(r"(?<=built_in.py:)\d{3}", "100", kept.getvalue().decode())  # lines of the model that move
    return re.sub(r"\d{8}T\d{6}Z-plan-transformer-[0-9a-f]{6}", "20261120T174902Z-plan-42ab19", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_screen_looks_as_it_did(name, reader, monkeypatch):
    text = LINK.sub("", screen(name, 80, monkeypatch))

    golden_files.compare(f"screens/{name}-80.txt", text)
    shown = CODES.sub("", text).splitlines()
    assert [line for line in shown if len(line) > 80 and not PASTED.match(line)] == []
    assert [line for line in shown if line != line.rstrip()] == []


@pytest.mark.parametrize(("color", "links"), [("always", True), ("never", False)])
def test_the_codes_of_notes_are_links_to_their_lines_of_the_page(color, links, reader: None, monkeypatch):
    text = screen("show", 80, monkeypatch, color=color)

    linked = {text[link.end() :][:6]: urlsplit(link[1]) for link in LINK.finditer(text) if link[1]}
    assert [*linked] == (re.findall(r"GCP\d{3}", text) if links else [])
    for code, address in linked.items():
        lines = Path(unquote(address.path)).read_text().splitlines()
        assert lines[int(address.fragment) - 1].startswith(f"## {code}: ")
