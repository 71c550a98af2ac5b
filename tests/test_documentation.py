"""What the documentation says is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from profiler.analysis.rows import rows
from profiler.training import strategies
from profiler.views.tables.columns import remarks
from tests import make
from tests.conftest import measured

ROOT = Path(__file__).parent.parent
NOTES = ROOT / "docs" / "notes"
PAGES = sorted(NOTES.glob("GCP*.md"))
HEADINGS = ["What it means", "Why it matters", "What to do", "Example"]
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
    return re.search(rf"<!-- {name} -->\n```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.mark.usefixtures("with_test_models")
def test_the_example_of_a_strategy_is_short_and_works_from_one_file_and_one_line(tmp_path, monkeypatch):
    (tmp_path / "second_strategy.py").write_text(example("strategy"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(strategies.TABLE, "second", "second_strategy:apply")

    record = measured("transformer", "second", passes=("equality", "memory"))

    assert len(example("strategy").splitlines()) < 30
    assert record.outcome == "ok"
    assert record.equality.gradients_equal
    assert record.built.split == "6 of 12"
    assert record.readings.saved_bytes < measured("transformer", "none").readings.saved_bytes


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_every_file_that_a_page_links_to_is_there(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]

    assert [link for link in links if not (ROOT / link).exists()] == []


def codes() -> set[str]:
    """Of every note that the package can give."""
    return set(re.findall(r"GCP\d{3}", "".join(SOURCES.values())))


def test_every_note_has_a_page_and_every_page_a_note():
    pages = {path.stem for path in NOTES.glob("GCP*.md")}
    index = (NOTES / "README.md").read_text(encoding="utf-8")

    assert pages == codes() != set()
    assert set(re.findall(r"\[(GCP\d{3})\]\(\1\.md\)", index)) == pages


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_page_of_a_note_says_what_why_and_what_to_do(path):
    text = path.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]

    assert re.match(rf"# {path.stem}: \S", text)
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == HEADINGS
    assert all(len(part.split()) >= 8 for part in re.split(r"^#+ .*", text, flags=re.MULTILINE)[2:])
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_example_of_a_note_is_what_the_package_says(path):
    said = re.search(rf"```\nnote: {path.stem} [^\n]*?: (?! )(.*)\n```", path.read_text(encoding="utf-8"))[1]

    assert is_said(said), said


def test_an_example_that_nobody_says_would_be_seen():
    assert not is_said("the times are fine, and the machine is a quiet one")


def test_a_table_shows_the_code_by_which_a_note_is_looked_up():
    (one,) = remarks(rows([make.record("none", seconds=(0.1, 0.2, 0.4))]))

    assert (NOTES / f"{one.split()[0]}.md").is_file()
