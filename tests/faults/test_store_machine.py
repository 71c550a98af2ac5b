"""The store against a plain list: appended, torn and merged in any order, by any number of writers."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from profiler.core.case import Trial, encode
from profiler.core.record import Environment, Record
from profiler.runs import merge as merging
from profiler.runs import store
from profiler.runs.store import Writer
from tests import make

HERE = Environment(gcprof="0.1.0", python="3.11.7", system="Linux", torch="2.15.0", device_name="a CPU")
KEYS = [(strategy, number) for number in (1, 2, 3) for strategy in ("none", "all", "sqrt")]
PLAN = tuple(Trial(case=make.case(strategy), round=number) for strategy, number in KEYS)
STEPS_IN_ALL, STEPS_A_RUN = 2000, 100
MEMORY = Path("/dev/shm")  # folders are made and removed there in no time
REAL = Path(__file__).parents[1] / "records" / "1"


def record(number: int, key: tuple[str, int]) -> Record:
    """A record like no other: the number is its peak, and the second in which it began."""
    started = f"2026-11-20T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
    environment = msgspec.structs.replace(HERE, started=started)
    return make.record(key[0], peak=make.MIB * 100 + number, round=key[1], environment=environment)


def new(folder: Path) -> Path:
    store.create(folder, plan=PLAN, command="gcprof run", environment=HERE, sources={})
    return folder


def add(folder: Path, *records: Record) -> None:
    writer = Writer(folder)
    for one in records:
        writer.append(one)
    writer.close()


class Machine(RuleBasedStateMachine):
    """A run folder and the list of what must be in it."""

    num_steps = 0  # of all runs of it

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.folder = new(self.root / "0")
        self.records: list[Record] = []
        self.is_torn = False
        self.number = 0
        self.number_of_steps = -1  # the first look is at the empty folder

    def teardown(self) -> None:
        Machine.num_steps += self.number_of_steps
        shutil.rmtree(self.root)

    def _record(self, key: tuple[str, int]) -> Record:
        self.number += 1
        return record(self.number, key)

    @rule(key=given.sampled_from(KEYS), times=given.integers(1, 3))
    def append(self, key: tuple[str, int], times: int) -> None:
        found = [self._record(key) for _ in range(times)]
        add(self.folder, *found)
        self.records += found
        self.is_torn = False

    @rule(key=given.sampled_from(KEYS), share=given.floats(0, 1))
    def crash(self, key: tuple[str, int], share: float) -> None:
        """The writer dies after some bytes of a record."""
        found = self._record(key)
        line = encode(found) + b"\n"
        size = round(share * len(line))
        Writer(self.folder).close()
        with (self.folder / "trials.jsonl").open("ab") as file:
            file.write(line[:size])
        self.is_torn = 0 < size < len(line)
        self.records += [found] if size == len(line) else []

    @rule(keys=given.lists(given.sampled_from(KEYS), max_size=4), is_first=given.booleans())
    def merge(self, keys: list[tuple[str, int]], is_first: bool) -> None:
        """Go on in what this run and another one are together."""
        other = new(self.root / f"{self.number}-other")
        more = [self._record(key) for key in keys]
        add(other, *more)
        self.number += 1
        whole = self.root / f"{self.number}-whole"
        merging.write(merging.merge([self.folder, other] if is_first else [other, self.folder]), whole)
        last = {(one.case.strategy, one.round): one for one in (*self.records, *more)}
        self.records = [last[key] for key in KEYS if key in last]
        self.folder, self.is_torn = whole, False

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        self.number_of_steps += 1
        run = store.load(self.folder)
        assert run.records == tuple(self.records)
        assert bool(run.warnings) == self.is_torn


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test can lose what the system has taken."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


def run_machine(*, examples: int) -> None:
    checks = settings(
        max_examples=examples,
        stateful_step_count=STEPS_A_RUN,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    run_state_machine_as_test(Machine, settings=checks)


@pytest.mark.nightly
def test_fault_35_the_store_holds_what_a_plain_list_holds_over_2000_steps():
    Machine.num_steps = 0

    run_machine(examples=STEPS_IN_ALL // STEPS_A_RUN + 8)  # some end early

    assert Machine.num_steps >= STEPS_IN_ALL


# The tail of a real run is lost


def prefixes(folder: Path) -> list[int]:
    """How many records each prefix of the real run's file holds."""
    shutil.copytree(REAL, folder)
    whole = (REAL / "trials.jsonl").read_bytes()
    with (folder / "trials.jsonl").open("r+b") as file:
        for size in range(len(whole), -1, -1):
            file.truncate(size)
            run = store.load(folder)
            assert bool(run.warnings) == (whole[:size] != b"" and not whole[:size].endswith(b"\n"))
            yield len(run.records)


@pytest.mark.nightly
def test_fault_35_a_real_run_cut_at_any_byte_is_read(tmp_path: Path):
    whole = (REAL / "trials.jsonl").read_bytes()

    found = list(prefixes(tmp_path / "run"))

    assert found[::-1] == [whole[:size].count(b"\n") for size in range(len(whole) + 1)]
    assert found[0] == 6
