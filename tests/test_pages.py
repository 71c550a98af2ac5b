"""The pages of docs/: what is made from the code is so, every example runs, every link is there."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.cli import answer
from tests.pages import DOCS, ROOT, pages

PAGES = sorted(path for path in DOCS.rglob("*.md"))
WITH_EXAMPLES = [path.name for path in PAGES if "```sh" in path.read_text(encoding="utf-8")]


def commands(name: str) -> list[list[str]]:
    """The words of every command that a page shows to be run in its order."""
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("gcprof ")]
    return [shlex.split(line.removeprefix("gcprof ")) for line in lines]


def python(name: str) -> list[str]:
    """The Python of a page."""
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_what_is_made_from_the_code_is_what_the_code_says(path):
    assert path.read_text(encoding="utf-8") == pages()[path], "run `just docs` and look at the difference"


def test_the_tutorial_shows_the_model_that_its_commands_take():
    assert python("tutorial.md")[0] == (DOCS / "examples" / "mine.py").read_text(encoding="utf-8")


@pytest.mark.nightly
@pytest.mark.parametrize("name", WITH_EXAMPLES)
@pytest.mark.usefixtures("shared")
def test_every_example_of_a_page_runs_in_order(name, tmp_path, monkeypatch, capfd):
    shutil.copy(DOCS / "examples" / "mine.py", tmp_path)
    monkeypatch.chdir(tmp_path)

    for words in commands(name):
        code = answer(words)
        assert code == 0, f"gcprof {shlex.join(words)}\n{capfd.readouterr().err}"

    each = "import sys\nfor block in sys.argv[1:]:\n    exec(block, {'__name__': 'example'})"
    words = [sys.executable, "-c", each, *python(name)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


READ_ON_A_CODE_HOST = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"))]


def anchors(path: Path) -> set[str]:
    """What a link into a page may name, as code hosts make it of headings, and what it sets itself."""
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | set(
        re.findall(r'<a id="([^"]+)">', text)
    )


@pytest.mark.parametrize("path", READ_ON_A_CODE_HOST, ids=lambda path: path.name)
def test_every_link_of_a_page_leads_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.split()[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]

    dead = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []
