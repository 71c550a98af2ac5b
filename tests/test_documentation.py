"""What the documentation says is so."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.analysis.rows import rows
from profiler.request import spec, sweep
from profiler.training import strategies
from profiler.views.tables.columns import remarks
from tests import make
from tests.conftest import measured

ROOT = Path(__file__).parent.parent
PARTS = re.split(r"^## (GCP\d{3}): .*\n", (ROOT / "docs" / "notes.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
NOTES = dict(zip(PARTS[1::2], PARTS[2::2], strict=True))
SOURCES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "profiler").rglob("*.py")}


LEAST = 25  # characters that are not filled in: fewer would be said by many


def texts(source: str) -> list[list[str]]:
    """Every longer text of a file, as the parts between which something is filled in."""
    found = []
    for node in ast.walk(ast.parse(source)):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        found.append([part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)])
    return [parts for parts in found if sum(map(len, parts)) >= LEAST]


def is_said(sentence: str) -> bool:
    """Whether all parts of any text of the package are in the sentence, in their order."""
    return any(_has_all(sentence, parts) for parts in TEXTS)


def _has_all(sentence: str, parts: list[str]) -> bool:
    at = 0
    for part in parts:
        found = sentence.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


TEXTS = [parts for source in SOURCES.values() for parts in texts(source)]


def example(name: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.search(rf"<!-- {name} -->\n```(?:python|diff)\n(.*?)```", text, re.DOTALL)[1]


@pytest.mark.slow
@pytest.mark.usefixtures("with_test_models")
def test_the_example_of_a_strategy_is_short_and_works_from_one_file_and_one_line(tmp_path, monkeypatch):
    (tmp_path / "second_strategy.py").write_text(example("strategy"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(strategies.TABLE, "second", "second_strategy:apply")

    record = measured("transformer", "second", passes=("equality", "memory", "time"))

    assert len(example("strategy").splitlines()) < 30
    assert record.outcome == "ok"
    assert record.equality.gradients_equal
    assert record.built.split == "6 of 12"
    assert record.readings.plain_step_seconds  # it was switched off in between
    assert record.readings.saved_bytes < measured("transformer", "none").readings.saved_bytes


def changed(root: Path, diff: str) -> list[str]:
    """The files below the root that a diff names, each changed as it says where it stands only once."""
    files = re.split(r"^\+\+\+ (.*)\n", diff, flags=re.MULTILINE)[1:]
    for name, lines in zip(files[::2], files[1::2], strict=True):
        path = root / name
        text = path.read_text(encoding="utf-8")
        pairs = [(line[:1], line[1:]) for line in lines.rstrip("\n").splitlines()]
        before = "\n".join(line for sign, line in pairs if sign != "+")
        assert text.count(before) == 1, f"{name} no longer has\n{before}"
        path.write_text(text.replace(before, "\n".join(line for _, line in pairs)), encoding="utf-8")
    return files[::2]


NEW_SWITCH = """
COMMANDS = "run", "rehearse", "predict", "explain", "timeline"
import contextlib, io, json, pathlib, types
import typer.main
from profiler.analysis import flat_row, pairing
from profiler.cli import answer, application, help as layout
from profiler.core.case import Case, Choice, decode, encode
from profiler.request import spec, sweep
from profiler.training.assemble import assemble
from profiler.views.tables.columns import setting
from profiler.workflows import consent

def steps(name):  # the norm of the gradients that the optimizer sees
    (trial,) = spec.check(sweep.read(pathlib.Path(name)), lambda word: "cpu").trials[:1]
    built = assemble(trial.case)
    built.workload.batch[0].mul_(100)
    optimizer, step = built.trainer()
    step(lambda phase: None)
    return trial.case, sum(p.grad.pow(2).sum() for p in built.workload.module.parameters()).sqrt().item()

(off, large), (on, small) = steps("off.toml"), steps("on.toml")
assert decode(encode(on), Case) == on
with contextlib.redirect_stdout(io.StringIO()) as helps:
    codes = [answer([command, "--help"]) for command in COMMANDS]
assert codes == [0] * len(COMMANDS)
groups = {command: typer.main.get_command(application([command])) for command in COMMANDS}
panels = [layout.panel_of(option) for command, group in groups.items() for option in group.commands[command].params
          if option.name == "clip_gradients"]
print(json.dumps({
    "ids": [off.id, on.id], "norms": [large, small], "key": b"clip_gradients" in encode(off),
    "column": "clip_gradients" in flat_row.COLUMNS, "compared": "clip_gradients" in pairing.ALLOWED,
    "flags": helps.getvalue().count("--clip-gradients"),
    "heading": setting([types.SimpleNamespace(case=on, notes=(), built=True)]),
    "unnamed": consent.unnamed_words([on], folder=None, named={}), "panels": panels,
}))
"""


@pytest.mark.slow
def test_the_example_of_an_option_is_two_files_and_every_view_has_it(tmp_path):
    for folder in ("profiler", "configs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    words = 'model = "mlp"\nstrategies = "none"\nrounds = 1\nsamples = 1\n'
    (tmp_path / "off.toml").write_text(words, encoding="utf-8")
    (tmp_path / "on.toml").write_text(words + "clip_gradients = true\n", encoding="utf-8")
    (mine,) = spec.check(sweep.read(tmp_path / "off.toml"), lambda word: "cpu").trials

    files = changed(tmp_path, example("option"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = {"capture_output": True, "text": True, "check": False, "cwd": tmp_path, "env": environment}
    done = subprocess.run([sys.executable, "-c", NEW_SWITCH], **words)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(files) == 2
    assert told["ids"][0] == mine.case.id != told["ids"][1]
    assert told["norms"][0] > 1.01 > told["norms"][1]
    assert told["flags"] == 5
    assert told["panels"] == ["Model"] * 5
    assert told["unnamed"] == {}
    assert "gradients clipped" in told["heading"]
    assert (told["key"], told["column"], told["compared"]) == (False, True, True)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_every_file_that_a_page_links_to_is_there(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]

    assert [link for link in links if not (ROOT / link).exists()] == []


def codes() -> set[str]:
    """Of every note that the package can give."""
    return set(re.findall(r"GCP\d{3}", "".join(SOURCES.values())))


def test_every_note_is_explained_and_no_other():
    assert set(NOTES) == codes() != set()


@pytest.mark.parametrize("code", NOTES)
def test_a_note_says_what_why_what_to_do_and_what_the_package_says(code):
    said = re.search(rf"```\nnote: {code} [^\n]*?: (?! )(.*)\n```", NOTES[code])[1]

    assert "**Why it matters.**" in NOTES[code]
    assert "**What to do.**" in NOTES[code]
    assert is_said(said), said


def test_a_table_shows_the_code_by_which_a_note_is_looked_up():
    (one,) = remarks(rows([make.record("none", seconds=(0.1, 0.2, 0.4))]))

    assert one.split()[0] in NOTES
