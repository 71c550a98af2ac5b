"""The pages of docs/: what is made from the code is so, every example runs, every link is there."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from profiler.cli import answer
from tests.pages import DOCS, ROOT, pages

WITH_EXAMPLES = [path.name for path in sorted(DOCS.rglob("*.md")) if "```sh" in path.read_text(encoding="utf-8")]


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


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_every_link_that_mkdocs_does_not_check_leads_somewhere(name):
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)

    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]

    assert [link for link in links if not (ROOT / link).exists()] == []
