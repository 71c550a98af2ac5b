"""Every file of a run folder x every kind of file that may lie there x every command: only the folder is read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler import engines
from profiler.cli import answer
from profiler.core import plan_file, safe_files
from profiler.core.errors import UserError
from profiler.runs.writer import Writer
from tests import examples, make
from tests.attack import hostile
from tests.attack.commands import READING, combinations, limited
from tests.attack.watch import PROCESSES, SOCKETS, watched

PLACES = (
    "manifest.json", "trials.jsonl", "logs", "derived", "derived/table.csv", "derived/table.md", "plans", ".writer",
    "shards", "jobs", ".base.0a1b2c-1-3fa9c1.new",
)  # fmt: skip
PRIVATE = "a-model-of-nobody's-business"


def _link(path: Path, outside: Path) -> None:
    private = outside / "private" / path.name
    path.symlink_to(private if private.exists() else outside / "secret.json")


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "link": _link,
    "hard link": lambda path, outside: os.link(outside / "secret.json", path),
    "link to a pipe": lambda path, outside: path.symlink_to(outside / "pipe"),
    "magic link": lambda path, outside: path.symlink_to("/proc/self/environ"),
    "link to nothing": lambda path, outside: path.symlink_to(outside / "nothing"),
    "link to itself": lambda path, outside: path.symlink_to(path),
    "link to a folder": lambda path, outside: path.symlink_to(outside),
    "pipe": lambda path, outside: os.mkfifo(path),
    "folder": lambda path, outside: path.mkdir(),
    "empty": lambda path, outside: path.touch(),
}
OWES = ("trials.jsonl", "empty", "resume")  # a sound run without a record, whose trial is gcprof's own: it is skipped
COMMANDS = {**READING, "resume": ("run", "--resume", "base"), "tensorboard": ("export", "base", "--to", "tensorboard")}


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    with limited():
        yield


@pytest.fixture
def folders(here: Path, no_server: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two complete runs, and outside of them a secret, a pipe, and the files of a run that is private."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    hostile.plant(here)
    examples.run(here / "outside" / "private", [make.record(case=make.case(model=PRIVATE))])
    for name in ("base", "base2"):
        examples.run(here / name, [make.record(case=make.case(model="mlp"))])
    return here


def contents(folder: Path) -> dict[str, Any]:
    """Every file below a folder, and what is in those that can be read."""
    files = [path for path in sorted(folder.rglob("*")) if not path.is_dir()]
    return {str(path): path.read_bytes() if path.is_file() else path.lstat().st_mode for path in files}


def lay(path: Path, kind: str, outside: Path) -> None:
    """Something of this kind where a file or folder of the run would be."""
    safe_files.remove(path)
    path.parent.mkdir(exist_ok=True)
    KINDS[kind](path, outside)


@pytest.mark.parametrize(("place", "kind", "command"), combinations(PLACES, KINDS, COMMANDS))
def test_nothing_outside_of_a_folder_is_read_shown_or_written(
    place: str, kind: str, command: str, folders: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    if command == "tensorboard":
        pytest.importorskip("tensorboard")
    if (place, kind, command) == OWES:
        monkeypatch.setitem(engines.TABLE, "local", "tests.fuzz:connect")
    lay(folders / "base" / place, kind, folders / "outside")
    before = contents(folders / "outside")
    capsys.readouterr()

    with watched() as seen:
        code = answer(list(COMMANDS[command]))

    out, err = capsys.readouterr()
    assert code in ((1,) if (place, kind, command) == OWES else (0, 2, 4, 74)), out + err
    assert contents(folders / "outside") == before
    assert hostile.SECRET not in out + err
    assert PRIVATE not in out + err
    assert [
        name for event, name in seen if event in (*PROCESSES, *SOCKETS) or name.startswith(str(folders / "outside"))
    ] == []


def test_twin_the_trial_that_a_run_without_records_owes_would_be_run(folders: Path, capsys: Any):
    place, kind, command = OWES
    lay(folders / "base" / place, kind, folders / "outside")

    assert answer(list(COMMANDS[command])) == 70
    assert "a server was started" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_written_into_a_regular_file_of_one_name_alone(kind: str, folders: Path):
    lay(folders / "base" / "trials.jsonl", kind, folders / "outside")
    before = contents(folders / "outside")

    if kind == "empty":
        Writer(folders / "base").close()
    else:
        with pytest.raises(UserError, match="cannot write") as caught:
            Writer(folders / "base")
        assert caught.value.exit_code == 74

    assert contents(folders / "outside") == before


def test_twin_opened_like_any_file_the_torn_end_of_another_would_be_cut_off(
    folders: Path, monkeypatch: pytest.MonkeyPatch
):
    (folders / "outside" / "secret.json").write_text('{"torn": ')
    lay(folders / "base" / "trials.jsonl", "hard link", folders / "outside")
    monkeypatch.setattr(safe_files, "opened_to_append", lambda path: os.open(path, os.O_RDWR | os.O_APPEND))

    Writer(folders / "base").close()

    assert (folders / "outside" / "secret.json").read_bytes() == b""


@pytest.mark.parametrize("kind", ["link to a pipe", "pipe", "folder", "link", "magic link"])
def test_a_plan_is_read_from_a_regular_file_alone(kind: str, folders: Path):
    lay(folders / "plan.json", kind, folders / "outside")

    with pytest.raises(UserError, match="cannot read the plan"):
        plan_file.read(folders / "plan.json")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"four")

    with pytest.raises(OSError, match="larger than"):
        safe_files.opened(tmp_path / "file", most_bytes=3)
    with safe_files.opened(tmp_path / "file", most_bytes=4) as file:
        assert file.read() == b"four"


WRITING = {
    "report": ("report", "base"),
    "csv": ("export", "base", "--to", "csv"),
    "json": ("export", "base", "--to", "json"),
    "markdown": ("export", "base", "--to", "md"),
    "plot": ("plot", "base", "--kind", "memory"),
}
NOT_REGULAR = (
    "pipe",
    "link to a pipe",
    "folder",
    "link to a folder",
    "link to nothing",
    "link to itself",
    "magic link",
)


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
@pytest.mark.parametrize("kind", NOT_REGULAR)
@pytest.mark.parametrize("command", WRITING)
def test_only_a_regular_file_is_replaced(
    command: str, kind: str, force: tuple[str, ...], folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    target = folders / "out.svg"
    KINDS[kind](target, folders / "outside")
    if kind == "magic link":
        target.unlink()
        reading, writing = os.pipe()  # as /dev/stdout is, of a command whose output is piped
        target.symlink_to(f"/proc/self/fd/{writing}")
    before = target.lstat()

    code = answer([*WRITING[command], "-o", str(target), *force])

    message, hint = capsys.readouterr().err.splitlines()[-2:]
    assert code == (74 if force else 2)
    assert "is no regular file" in message
    assert "--force" not in hint
    assert (target.lstat().st_ino, stat.S_IFMT(target.lstat().st_mode)) == (before.st_ino, stat.S_IFMT(before.st_mode))
    if kind == "magic link":
        os.close(reading)
        os.close(writing)


def test_a_manifest_in_a_link_is_told_as_one(folders: Path, capsys: Any):
    lay(folders / "base" / "manifest.json", "link", folders / "outside")

    assert answer(["show", "base"]) == 4

    assert "cannot read 'base/manifest.json'" in capsys.readouterr().err


def test_twin_read_through_the_link_it_would_be_shown(folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    lay(folders / "base" / "manifest.json", "link", folders / "outside")
    lay(folders / "base" / "trials.jsonl", "link", folders / "outside")
    monkeypatch.setattr(safe_files, "opened", lambda path, **bound: path.open("rb"))

    assert answer(["show", "base", "--json"]) == 0

    assert PRIVATE in msgspec.json.decode(capsys.readouterr().out.encode())["records"][0]["case"]["model"]
