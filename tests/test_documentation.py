"""What the documentation says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from profiler import strategies
from tests.conftest import measured

ROOT = Path(__file__).parent.parent


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


def test_every_note_that_a_record_can_carry_is_explained_in_the_readme():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "profiler").rglob("*.py"))
    codes = set(re.findall(r"GCP\d{3}", sources))
    explained = set(re.findall(r"GCP\d{3}", (ROOT / "README.md").read_text(encoding="utf-8")))

    assert codes
    assert codes == explained
