"""Files that are asked for and are there already (row 38): knows nothing of what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.runs import store
from profiler.views.export import files
from tests import examples

WRITERS = [
    ["export", "run", "--to", "csv"],
    ["export", "run", "--to", "json"],
    ["plot", "run"],
    ["report", "run"],
]


@pytest.fixture
def run(here: Path) -> store.Run:
    return examples.run(here / "run", examples.sweep((2, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("command", WRITERS, ids=" ".join)
def test_fault_38_what_is_there_stays_until_force_is_given(command: list[str], run: store.Run, capsys: Any):
    target = Path("mine.png" if command[0] == "plot" else "mine")
    target.write_text("mine")

    refused = answer([*command, "-o", str(target)])
    kept = target.read_text()
    forced = answer([*command, "-o", str(target), "--force"])

    assert (refused, kept, forced) == (2, "mine", 0)
    assert "overwrite it with --force" in capsys.readouterr().err
    assert target.read_bytes() not in (b"mine", b"")


def full(path: Path, *mode: str) -> Any:
    """Opened, but it takes nothing."""
    path.touch()
    return open("/dev/full", "wb", buffering=0)


def test_fault_38_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "table.csv"
    target.write_text("mine")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match="No space left on device") as caught:
        files.write_whole(target, b"new", force=True)

    assert (caught.value.exit_code, caught.value.hint) == (74, "free some space")
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
    monkeypatch.undo()
    assert target.read_text() == "mine"


@pytest.mark.parametrize("words", ["plan mlp --budget 60%", "stages mlp", "timeline mlp"])
def test_fault_38_a_folder_that_is_not_there_is_told_before_any_work(
    here: Path, no_server: None, capsys: Any, words: str
):
    code = answer([*words.split(), "-o", "missing/file.json"])

    assert code == 74
    assert "cannot write 'missing/file.json'" in capsys.readouterr().err
