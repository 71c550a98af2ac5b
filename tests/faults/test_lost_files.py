"""Files of a run that somebody removes, replaces or cuts while it goes on: it stops, and no record is lost."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.core import safe_files
from profiler.core.case import Trial, encode
from profiler.core.record import Record
from profiler.runs import store
from profiler.runs.writer import LostFileError, Writer
from profiler.workflows import owed_trials
from tests import examples, make

NAMES = ("none", "all", "sqrt")
WORDS = ("--strategies", "none,all", "--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")


def names(folder: Path) -> list[str]:
    return [str(record.case.strategy) for record in store.load(folder).records]


def kept(beside: Path) -> list[Path]:
    return sorted(beside.parent.glob(f"{beside.name}-kept-*"))


class Counting:
    """An engine that measures nothing, and counts the trials that it was asked for."""

    logs = None

    def __init__(self) -> None:
        self.asked: list[str] = []

    def run(self, plan: Any, done: Any = ()) -> Iterator[Record]:
        for trial in plan:
            self.asked.append(str(trial.case.strategy))
            yield make.record(str(trial.case.strategy), case=trial.case, round=trial.round)


def replaced(path: Path) -> None:
    store.replace(path, path.read_bytes())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthened(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"{}\n")


HARMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "removed": (lambda run: (run / "trials.jsonl").unlink(), "trials.jsonl' was removed"),
    "replaced": (lambda run: replaced(run / "trials.jsonl"), "trials.jsonl' was replaced"),
    "emptied": (lambda run: (run / "trials.jsonl").write_bytes(b""), "trials.jsonl' was cut short"),
    "cut": (lambda run: cut(run / "trials.jsonl"), "trials.jsonl' was cut short"),
    "lengthened": (lambda run: lengthened(run / "trials.jsonl"), "trials.jsonl' was written to by others"),
    "another manifest": (lambda run: replaced(run / "manifest.json"), "manifest.json' was replaced"),
    "no manifest": (lambda run: (run / "manifest.json").unlink(), "manifest.json' was removed"),
    "no folder": (shutil.rmtree, "trials.jsonl' was removed"),
    "moved": (lambda run: run.rename(run.with_name("elsewhere")) and None, "trials.jsonl' was removed"),
}
harmed = pytest.mark.parametrize("kind", HARMS)


@pytest.fixture
def owed(tmp_path: Path) -> Path:
    """A folder that owes three trials."""
    trials = tuple(Trial(case=make.case(name)) for name in NAMES)
    return examples.run(tmp_path / "run", [], more=trials).folder


def harm_after(number: int, folder: Path, kind: str) -> tuple[list[str], list[str], Exception | None]:
    """The records that were given and the trials that were asked for, where harm is done after so many records."""
    engine, given = Counting(), []
    try:
        for record, _ in owed_trials.run_owed(engine, folder):
            given.append(str(record.case.strategy))
            if len(given) == number:
                HARMS[kind][0](folder)
    except LostFileError as error:
        return given, engine.asked, error
    return given, engine.asked, None


@harmed
def test_lost_harm_is_seen_at_the_next_write_and_nothing_more_is_measured(kind: str, owed: Path):
    given, asked, error = harm_after(1, owed, kind)

    assert isinstance(error, LostFileError)
    assert (error.exit_code, given, asked) == (74, ["none"], ["none", "all"])
    assert HARMS[kind][1] in error.message


@harmed
def test_lost_all_records_of_the_process_are_kept_beside_the_folder(kind: str, owed: Path):
    _, _, error = harm_after(1, owed, kind)

    assert kept(owed) == [error.kept]
    assert names(error.kept) == ["none", "all"]
    assert str(error.kept) in error.message
    assert f"gcprof run --resume {error.kept}" in error.hint


@harmed
def test_lost_the_kept_folder_is_a_run_that_goes_on(kind: str, owed: Path):
    _, _, error = harm_after(1, owed, kind)

    rest = [str(record.case.strategy) for record, _ in owed_trials.run_owed(Idle(), error.kept)]

    assert rest == ["sqrt"]
    assert names(error.kept) == list(NAMES)


@harmed
def test_lost_harm_after_the_last_record_is_seen_too(kind: str, owed: Path):
    given, _, error = harm_after(3, owed, kind)

    assert given == list(NAMES)
    assert names(error.kept) == list(NAMES)


class Idle(Counting):
    """Measures what is owed alone."""

    def run(self, plan: Any, done: Any = ()) -> Iterator[Record]:
        known = {record.case for record in done}
        return super().run([trial for trial in plan if trial.case not in known])


def test_lost_records_of_an_earlier_process_are_kept_where_they_can_still_be_read(tmp_path: Path):
    more = tuple(Trial(case=make.case(name)) for name in NAMES[1:])
    folder = examples.run(tmp_path / "run", [make.record("none")], more=more).folder
    trials = owed_trials.run_owed(Idle(), folder)
    next(trials)
    (folder / "trials.jsonl").unlink()

    with pytest.raises(LostFileError) as lost:
        next(trials)

    assert names(lost.value.kept) == list(NAMES)


@pytest.mark.parametrize("kind", ["emptied", "cut", "lengthened", "removed"])
def test_lost_more_records_than_are_kept_in_memory_are_kept_too(kind: str, owed: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("profiler.runs.writer.SPOOL_BYTES", 1)

    _, _, error = harm_after(2, owed, kind)

    assert names(error.kept) == list(NAMES)
    assert {path.name for path in error.kept.iterdir()} == {"manifest.json", "trials.jsonl", "logs", "derived"}


def test_lost_a_writer_takes_no_more_memory_for_more_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("profiler.runs.writer.SPOOL_BYTES", 10_000)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    writer = Writer(examples.run(tmp_path / "run", []).folder)
    record, written = make.record("none"), 0
    tracemalloc.start()

    for _ in range(500):
        writer.append(record)
        written += len(encode(record))

    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    writer.close()
    assert written > 500_000
    assert held < 100_000


def test_lost_what_a_process_keeps_for_itself_has_no_name(owed: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("profiler.runs.writer.SPOOL_BYTES", 1)
    writer = Writer(owed)
    before = sorted(owed.iterdir())

    writer.append(make.record("none"))

    assert sorted(owed.iterdir()) == before
    writer.close()


def test_lost_where_nothing_can_be_kept_the_run_says_so(owed: Path, monkeypatch: pytest.MonkeyPatch):
    trials = owed_trials.run_owed(Idle(), owed)
    next(trials)
    (owed / "trials.jsonl").unlink()
    monkeypatch.setattr(safe_files, "beside", lambda path: Path("/proc/none"))

    with pytest.raises(LostFileError, match="its records cannot be kept: cannot write to") as lost:
        next(trials)

    assert (lost.value.exit_code, lost.value.kept) == (74, None)


@pytest.mark.slow
def test_lost_the_command_ends_with_74_and_names_what_goes_on(
    here: Path, shared: None, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    write = Writer._write

    def write_and_lose(self: Writer, line: bytes) -> None:
        write(self, line)
        (here / "run" / "trials.jsonl").unlink()

    monkeypatch.setattr(Writer, "_write", write_and_lose)

    code = answer(["run", "--model", "mlp", *WORDS, "-o", "run"])

    out, err = capsys.readouterr()
    (folder,) = kept(here / "run")
    assert code == 74
    assert "gcprof: 'run/trials.jsonl' was removed while this run went on: nothing more is measured" in err
    assert f"next: gcprof run --resume {folder.name}" in err
    assert "none" in out
    monkeypatch.setattr(Writer, "_write", write)
    assert answer(["run", "--resume", folder.name]) == 0
    assert names(folder) == ["none", "all"]
