"""However a run ends, what it printed is stored and nothing of it lives on; real processes throughout."""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kill
from profiler import runner, store
from profiler.case import Trial
from profiler.cli import answer
from profiler.engines import local
from profiler.record import Record
from tests import examples, make
from tests.program import PATIENCE_SECONDS, Started, next_words

SWEEP = ("--model", "mlp", "--segments", "1,2,8", "--device", "cpu", "--rounds", "4", "--samples", "1")
STUCK = ("--model", "mlp,_faults:kind=hang", "--strategies", "none", "--device", "cpu", "--rounds", "1")
WHOLE = Counter([*product(("none", "segments:k=1", "segments:k=2"), (1, 2, 3, 4)), ("segments:k=8", 1)])
FIRST = "[ 1/16] mlp none round 1: ok"


@pytest.fixture
def tag() -> Iterator[str]:
    """Marks the processes of a test; what it leaves is ended."""
    tag = f"{os.getpid()}-{random.getrandbits(64):x}"
    yield tag
    for process in kill.tagged(tag):
        process.kill()


def stored(folder: Path) -> Counter[tuple[str, int]]:
    return Counter((str(record.case.strategy), record.round) for record in store.load(folder).records)


def test_an_interrupted_run_keeps_what_it_has_and_can_be_resumed(here: Path, shared: None, tag: str, capsys: Any):
    with Started("run", *SWEEP, "-o", "run", cwd=here, tag=tag) as run:
        run.wait_for(FIRST)
        run.send(signal.SIGINT)
        done = run.end()

    told = kill.printed(done.stderr)
    some = stored(here / "run")
    assert done.returncode == 130
    assert "interrupted; what was printed is safe" in done.stderr.splitlines()
    assert "none" in {line.split(" ")[0] for line in done.stdout.splitlines()}
    assert {(strategy, number) for _, strategy, number in told} <= some.keys()
    assert some < WHOLE
    assert kill.survivors(tag, patience=PATIENCE_SECONDS) == []
    assert next_words(done.stderr) == ["run", "--resume", "run"]

    assert answer(next_words(done.stderr)) == 0
    assert stored(here / "run") == WHOLE


def test_a_run_that_is_asked_to_end_ends_its_child_and_says_143(here: Path, tag: str):
    with Started("run", *STUCK, "-o", "run", "--json", cwd=here, tag=tag) as run:
        run.wait_for("[1/2] mlp none round 1: ok")  # the other one hangs for an hour
        alive = len(kill.tagged(tag))
        run.send(signal.SIGTERM)
        done = run.end()

    document = json.loads(done.stdout)
    assert alive >= 2  # the program and its server
    assert done.returncode == 143
    assert (document["status"], document["exit_code"], len(document["records"])) == ("partial", 143, 1)
    assert kill.survivors(tag, patience=PATIENCE_SECONDS) == []


def full_pipe() -> tuple[int, int]:
    """A pipe that takes no more: who writes to it waits until somebody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, b" " * select.PIPE_BUF)
        except BlockingIOError:
            os.set_blocking(writing, True)
            return reading, writing


def test_a_second_interrupt_ends_at_once(here: Path, tag: str):
    reading, writing = full_pipe()

    with Started("run", *STUCK, "-o", "run", cwd=here, tag=tag, stdout=writing) as run:
        run.wait_for("[1/2]")
        run.send(signal.SIGINT)
        run.wait_for("interrupted; what was printed is safe")  # now it wants to print its table, and cannot
        alive = len(kill.tagged(tag))
        run.send(signal.SIGINT)
        done = run.end()

    os.close(reading)
    os.close(writing)
    assert alive >= 1
    assert done.returncode == -signal.SIGINT
    assert "next: " not in done.stderr
    assert kill.survivors(tag, patience=PATIENCE_SECONDS) == []
    assert stored(here / "run") == {("none", 1): 1}


class Endless:
    """A module that the server imports for an hour, as if it were torch."""

    def __init__(self, folder: Path) -> None:
        os.mkfifo(folder / "begun")
        self._begun = os.open(folder / "begun", os.O_RDONLY | os.O_NONBLOCK)
        text = f"import time\nopen({str(folder / 'begun')!r}, 'w').write('!')\ntime.sleep(3600)\n"
        (folder / "endless.py").write_text(text)
        self.code = (
            f"import sys; sys.path.append({str(folder)!r}); from profiler.engines import local; "
            "local.PRELOAD = ('endless',); from profiler.cli import main; main()"
        )

    def wait(self) -> None:
        """Until it is being imported."""
        ready, _, _ = select.select([self._begun], [], [], PATIENCE_SECONDS)
        os.close(self._begun)
        assert ready, "nobody imported it"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_run_that_ends_while_torch_is_imported_takes_the_server_with_it(
    number: int, code: int, here: Path, tmp_path_factory: pytest.TempPathFactory, tag: str
):
    endless = Endless(tmp_path_factory.mktemp("endless"))

    with Started("run", *SWEEP, "--json", cwd=here, tag=tag, code=endless.code) as run:
        endless.wait()
        alive = len(kill.tagged(tag))
        run.send(number)
        done = run.end()

    assert alive == 2
    assert done.returncode == code
    assert kill.survivors(tag, patience=PATIENCE_SECONDS) == []
    assert list(here.iterdir()) == []
    if code > 0:
        assert json.loads(done.stdout) == {
            "schema": 1, "run": None, "status": "failed", "exit_code": code, "records": [],
        }  # fmt: skip


def test_a_server_whose_client_died_in_the_middle_of_a_request_ends():
    server = local._Server()
    ours, theirs = os.pipe()

    socket.send_fds(server.control, [b'{"entry": "profiler.wor'], [ours, theirs])
    server.control.close()

    assert server._process.wait(timeout=PATIENCE_SECONDS) == 0
    server.close()
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(("before", "code"), [(signal.SIG_IGN, 0), (signal.SIG_DFL, 129)])
def test_a_hangup_that_is_ignored_stays_ignored(
    before: Any, code: int, here: Path, shared: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    carry_out = runner.carry_out

    def hang_up(*words: Any, **more: Any) -> Iterator[tuple[Record, int]]:
        for found in carry_out(*words, **more):
            os.kill(os.getpid(), signal.SIGHUP)
            yield found

    monkeypatch.setattr(runner, "carry_out", hang_up)
    mine = signal.signal(signal.SIGHUP, before)

    found = answer(["run", *STUCK, "--model", "mlp", "-o", "run"])

    left = signal.signal(signal.SIGHUP, mine)
    assert found == code
    assert left == before
    assert stored(here / "run") == {("none", 1): 1}


def test_a_run_locks_its_folder_before_it_reads_what_is_owed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trial = Trial(case=make.case())
    folder = examples.run(tmp_path / "run", [], more=(trial,)).folder
    load = store.load

    def locked(where: Path) -> store.Run:
        with (where / "trials.jsonl").open("ab") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return load(where)

    monkeypatch.setattr(store, "load", locked)

    class Engine:
        logs = None

        def run(self, trials: Any) -> Iterator[Record]:
            return iter([make.record() for _ in trials])

    assert [left for _, left in runner.carry_out(Engine(), folder)] == [0]


# kill -9, as in benchmarks/kill.py


@pytest.fixture
def peer(here: Path, shared: None, capsys: pytest.CaptureFixture[str]) -> store.Run:
    """The run that the killed one must equal in the end."""
    assert answer(["run", *SWEEP, "-o", "peer"]) == 0
    return store.load(here / "peer")


def test_a_killed_run_loses_nothing_that_it_printed_and_leaves_nothing_behind(here: Path, peer: store.Run):
    moments = random.Random(20261120)
    folder = here / "run"

    for quarter in range(4):  # start-up, and trials
        found = kill.kill(folder, SWEEP, after=moments.uniform(1.8 * quarter, 1.8 * (quarter + 1)), patience=30.0)
        assert found.wrong == []

    assert kill.finish(folder, SWEEP, peer) == []
    assert stored(folder) == WHOLE


def test_a_lost_a_doubled_and_a_changed_record_would_be_seen(here: Path, peer: store.Run):
    path = here / "peer" / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert kill.differences(peer, peer) == []

    def wrong(changed: list[bytes]) -> list[str]:
        path.write_bytes(b"".join(changed))
        return kill.differences(store.load(here / "peer"), peer)

    assert wrong(lines[:-1]) == ["none round 4 is owed"]
    assert wrong([*lines, lines[-1]]) == ["none round 4 is there 2 times"]
    assert "none round 1: " in wrong([lines[0].replace(b'"peak_bytes":', b'"peak_bytes":1'), *lines[1:]])[0]


def test_a_printed_trial_that_is_not_stored_would_be_seen():
    keys = [("mlp", "none", number) for number in range(1, 4)]
    told = "".join(f"[{number}/3] mlp none round {number}: ok\n" for _, _, number in keys)

    assert kill.printed(told) == keys
    assert kill.printed(told.rstrip()) == keys[:2]  # a torn line was not told
    assert kill.violations(keys, before=[], found=keys) == []
    assert kill.violations(keys, before=[], found=keys[:2]) == ["mlp none 3 was printed and is lost"]
    assert kill.violations([], before=keys, found=keys[:2]) == ["mlp none 3 is lost"]
    assert kill.violations([], before=[], found=[*keys, keys[0]]) == ["mlp none 1 is there 2 times"]


def test_a_process_that_lives_on_would_be_seen(here: Path, tag: str):
    code = "import sys, time; print('up', file=sys.stderr, flush=True); time.sleep(3600)"

    with Started(cwd=here, tag=tag, code=code) as one:
        one.wait_for("up")
        (found,) = kill.survivors(tag, patience=0.0)

    assert found.pid
    assert kill.survivors(tag, patience=PATIENCE_SECONDS) == []
