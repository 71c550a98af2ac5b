"""kill -9 of a run: nothing that was printed is lost, nothing lives on, and the run is completed."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core import safe_files
from profiler.engines.server import Server
from profiler.runs import store
from profiler.runs.writer import Writer
from profiler.views.export import files
from tests import examples, kill, killed, make
from tests.program import PATIENCE_SECONDS, Endless, Started

SWEEP = ("--model", "mlp", "--segments", "1,2,8", "--device", "cpu", "--rounds", "4", "--samples", "1")
STUCK = ("--model", "mlp,tests.faulty:build:kind=hang", "--strategies", "none", "--device", "cpu", "--rounds", "1")
WHOLE = Counter([*product(("none", "segments:k=1", "segments:k=2"), (1, 2, 3, 4)), ("segments:k=8", 1)])


def stored(folder: Path) -> Counter[tuple[str, int]]:
    return Counter((str(record.case.strategy), record.round) for record in store.load(folder).records)


@pytest.fixture
def peer(here: Path, shared: None, capsys: pytest.CaptureFixture[str]) -> store.Run:
    """The run that the killed one must equal in the end."""
    assert answer(["run", *SWEEP, "-o", "peer"]) == 0
    return store.load(here / "peer")


@pytest.mark.nightly
def test_fault_34_a_killed_run_loses_nothing_that_it_printed_and_leaves_nothing_behind(here: Path, peer: store.Run):
    moments = random.Random(20261120)
    folder = here / "run"

    for quarter in range(4):  # start-up, and trials
        found = kill.kill(
            folder, SWEEP, after=moments.uniform(1.8 * quarter, 1.8 * (quarter + 1)), patience=PATIENCE_SECONDS
        )
        assert found.wrong == []

    assert kill.finish(folder, SWEEP, peer) == []
    assert stored(folder) == WHOLE


@pytest.mark.slow
def test_twin_34_a_lost_a_doubled_and_a_changed_record_would_be_seen(here: Path, peer: store.Run):
    path = here / "peer" / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert killed.differences(peer, peer) == []

    def wrong(changed: list[bytes]) -> list[str]:
        path.write_bytes(b"".join(changed))
        return killed.differences(store.load(here / "peer"), peer)

    assert wrong(lines[:-1]) == ["none round 4 is owed"]
    assert wrong([*lines, lines[-1]]) == ["none round 4 is there 2 times"]
    assert "none round 1: " in wrong([lines[0].replace(b'"peak_bytes":', b'"peak_bytes":1'), *lines[1:]])[0]


def test_twin_34_a_printed_trial_that_is_not_stored_would_be_seen():
    keys = [("mlp", "none", number) for number in range(1, 4)]
    told = "".join(f"[{number}/3] mlp none round {number}: ok\n" for _, _, number in keys)

    assert killed.printed(told) == keys
    assert killed.printed(told.rstrip()) == keys[:2]  # a torn line was not told
    assert killed.violations(keys, before=[], found=keys) == []
    assert killed.violations(keys, before=[], found=keys[:2]) == ["mlp none 3 was printed and is lost"]
    assert killed.violations([], before=keys, found=keys[:2]) == ["mlp none 3 is lost"]
    assert killed.violations([], before=[], found=[*keys, keys[0]]) == ["mlp none 1 is there 2 times"]


def test_twin_34_a_process_that_lives_on_would_be_seen(here: Path, tag: str):
    code = "import sys, time; print('up', file=sys.stderr, flush=True); time.sleep(3600)"

    with Started(cwd=here, tag=tag, code=code) as one:
        one.wait_for("up")
        (found,) = killed.survivors(tag, patience=0.0)

    assert found.pid
    assert killed.survivors(tag, patience=PATIENCE_SECONDS) == []


def killed_after_one(here: Path, tag: str, code: str | None = None) -> list[str]:
    """What is wrong after a run whose second trial hangs was killed."""
    with Started("run", *STUCK, "-o", "run", cwd=here, tag=tag, code=code) as run:
        run.wait_for("[1/2] mlp none round 1: ok")
        run.send(signal.SIGKILL)
        done = run.end()
    told = killed.printed(done.stderr + "\n")
    return killed.violations(told, before=[], found=killed.stored(here / "run"))


@pytest.mark.slow
def test_fault_34_what_was_printed_when_the_kill_came_is_stored(here: Path, tag: str):
    assert killed_after_one(here, tag) == []


@pytest.mark.slow
def test_twin_34_a_record_that_is_written_later_is_lost(here: Path, tag: str):
    late = "from profiler.runs.writer import Writer; Writer.append = lambda self, record: setattr(self, 'next', record)"

    wrong = killed_after_one(here, tag, code=f"{late}; from profiler.cli import main; main()")

    assert wrong == ["mlp none 1 was printed and is lost"]


# What lives on


def killed_in_import(here: Path, folder: Path, tag: str, before: str = "pass") -> None:
    """Kill a run whose server is importing torch."""
    endless = Endless(folder, before=before)
    with Started("run", *SWEEP, cwd=here, tag=tag, code=endless.code) as run:
        endless.wait()
        assert len(killed.tagged(tag)) == 2
        run.send(signal.SIGKILL)
        run.end()


def test_fault_34_a_server_that_still_imports_torch_ends_too(
    here: Path, tmp_path_factory: pytest.TempPathFactory, tag: str
):
    killed_in_import(here, tmp_path_factory.mktemp("endless"), tag)

    assert killed.survivors(tag, patience=PATIENCE_SECONDS) == []
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_twin_34_a_server_that_does_not_ask_for_its_parents_death_lives_on(
    here: Path, tmp_path_factory: pytest.TempPathFactory, tag: str
):
    deaf = "server_process.BOOT = server_process.BOOT.replace('main(int', 'import profiler.engines.forkserver as one; one.die_with_parent = lambda client: None; main(int')"  # noqa: E501

    killed_in_import(here, tmp_path_factory.mktemp("endless"), tag, before=deaf)

    assert len(killed.survivors(tag, patience=0.5)) == 1


def test_fault_34_a_server_whose_client_died_in_the_middle_of_a_request_ends():
    started = Server(None, preload=())
    started.await_ready()
    ours, theirs = os.pipe()

    socket.send_fds(started.control, [b'{"entry": "profiler.wor'], [ours, theirs])
    started.control.close()

    assert started.process.wait(timeout=PATIENCE_SECONDS) == 0
    started.close()
    os.close(ours)
    os.close(theirs)


# Files in the making


def left_by_the_dead(path: Path) -> Path:
    """What a process leaves that was killed while it made a file."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        new = safe_files.beside(path)
        new.write_text("half")
        os.write(writing, str(new).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return Path(pipe.read())


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


@pytest.fixture
def littered(tmp_path: Path) -> Path:
    """A finished run beside which, and in which, processes died that were making files."""
    folder = examples.run(tmp_path / "run", [make.record("none"), make.record("all")]).folder
    for path in (folder / "derived" / "table.csv", folder / "derived" / "frontier.png", folder / "trials.jsonl"):
        assert left_by_the_dead(path).exists()
    return folder


def test_fault_34_what_a_killed_process_was_making_is_swept_away(littered: Path):
    Writer(littered).close()
    [*files.write_tables(store.load(littered)), *files.write_pictures(store.load(littered))]

    assert hidden(littered) == []


def test_twin_34_without_sweeping_it_would_stay(littered: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(safe_files, "sweep", lambda *where: None)

    Writer(littered).close()
    [*files.write_tables(store.load(littered)), *files.write_pictures(store.load(littered))]

    assert len(hidden(littered)) == 3


def test_fault_34_a_folder_that_a_killed_process_was_making_is_swept_away(tmp_path: Path):
    new = left_by_the_dead(tmp_path / "run")
    new.unlink()
    (new / "logs").mkdir(parents=True)

    examples.run(tmp_path / "other", [])

    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_fault_34_what_a_living_process_or_another_machine_makes_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mine = safe_files.beside(tmp_path / "table.csv")
    mine.touch()
    theirs = left_by_the_dead(tmp_path / "table.csv")
    theirs = theirs.rename(theirs.with_name(theirs.name.replace(safe_files._host(), "0a1b2c")))
    (tmp_path / ".notes.new").touch()

    safe_files.sweep(tmp_path)

    assert sorted(hidden(tmp_path)) == sorted([mine.name, theirs.name, ".notes.new"])
