"""What several tests share."""

import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two tests run at a time, and tiny models gain nothing by threads

from profiler.cli import output
from profiler.core.case import Case, Choice, Trial
from profiler.core.gpu_specs import to_predict
from profiler.core.record import Record
from profiler.engines import local
from profiler.engines.child import Server
from profiler.engines.local import Local
from profiler.rehearsal import device as hollow_device
from profiler.rehearsal import loader
from profiler.training import models
from tests import make, program
from tests.hollow import Hollow, absent
from tests.program import PATIENCE_SECONDS
from tests.scripts.runs import copied

# How long an example takes is the machine's affair.
settings.register_profile("gcprof", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gcprof")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "on a CUDA device that has memory and does no arithmetic: h100, or t4,count=2,bytes=4294967296"
    parser.addoption("--hollow", metavar="DEVICE", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Opens the hollow device that is asked for, before any test imports torch; children and workers find it too.

    Signals do what they do at a terminal: in the background, programs inherit that they do nothing.
    """
    if asked := config.getoption("--hollow"):
        os.environ[hollow_device.ASKED] = asked
        os.environ[loader.PLANS] = "hollow"  # traces have no workspaces
    hollow_device.open_if_asked()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what needs more than a hollow device is: memory of one process, without arithmetic and without time."""
    if not os.environ.get(hollow_device.ASKED):
        return
    lacks = {"gpu_arithmetic": "computes nothing and takes no time", "gpu_shared": "is each process's own"}
    for item in items:
        for marker, lack in lacks.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"the device is hollow: it {lack} (gpu)"))


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """As in a trial's own process, collections need not look at all of torch."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def with_test_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The BatchNorm chain of the tests, as if it were in the table."""
    monkeypatch.setitem(models.TABLE, "batchnorm", "tests.chain_models:batchnorm")


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """One fork server for all tests that need real processes."""
    with Local(stage_seconds=PATIENCE_SECONDS, logs=tmp_path_factory.mktemp("logs")) as engine:
        yield engine


@pytest.fixture(autouse=True)
def estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of Python estimate in this process, as tests of the estimate want; tests/test_live.py rehearses."""
    if "torch" in sys.modules:
        from profiler.workflows.in_process import answering

        monkeypatch.setattr(answering, "for_gpus", lambda word, say: to_predict(word))


@pytest.fixture(autouse=True)
def _output(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said by the machine's speed, and errors of our own, which some tests provoke, leave nothing behind."""
    monkeypatch.setattr(output, "SIGN_SECONDS", threading.TIMEOUT_MAX)
    monkeypatch.setattr(output, "FOLDER", str(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def hollow() -> Hollow:
    """Programs on a hollow CUDA device; skipped where none can be had."""
    if why := absent():
        pytest.skip(f"no hollow device: {why}")
    return Hollow()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shared(engine: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of this process goes to the one fork server of all tests, or to the one of those that rehearse."""

    def lent(visible: str | None, rehearses: bool = False, **others: Any) -> Any:
        if rehearses not in engine._servers:
            engine._servers[rehearses] = Server(visible, rehearses=rehearses, **others)
        of = engine._servers[rehearses]  # whoever borrows it cannot end it
        return SimpleNamespace(control=of.control, alive=of.alive, await_ready=of.await_ready, close=lambda: None)

    monkeypatch.setattr(local, "Server", lent)


@pytest.fixture
def tag() -> Iterator[str]:
    """Marks the processes of a test; what it leaves is ended."""
    tag = f"{os.getpid()}-{random.getrandbits(64):x}"
    yield tag
    for left in program.tagged(tag):
        left.kill()


@pytest.fixture
def a_second_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each mark the CPU's stopwatch finds a second gone by, however fast the machine and coarse its clock.

    The stages have their core all the while.
    """
    from profiler.measuring.devices import Stopwatch
    from profiler.predicting import stage_seconds

    monkeypatch.setattr(Stopwatch, "mark", lambda self: self._times.append(float(len(self._times))))
    monkeypatch.setattr(stage_seconds, "thread_time", count(step=3600).__next__)


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start a server, which is to import torch, is a bug: exit code 70."""

    def fail(visible: str | None, **words: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr(local, "Server", fail)


def measured(model: str, strategy: str, *, passes: tuple[str, ...] = ("memory",), **fields: Any) -> Record:
    """A record of a trial that ran in this process."""
    from profiler.measuring.trial import measure

    return measure(_trial(model, strategy, passes, **fields))


def attempted(model: str, strategy: str, *, passes: tuple[str, ...] = ("equality",), **fields: Any) -> Record:
    """As a worker runs it: what is raised is its outcome."""
    from profiler.engines.worker import attempt
    from profiler.measuring.trial import measure

    return attempt(_trial(model, strategy, passes, **fields), on_pass=lambda name: None, by=measure)


def measured_build(
    build: Callable[[], Any], strategy: str = "none", *, passes: tuple[str, ...] = ("equality",), **fields: Any
) -> Record:
    """A record of a trial of what a function returns, as a factory of the user's does; `none` runs beside it."""
    from profiler.measuring.trial import measure
    from profiler.training.models.user import as_workload

    case = make.case(strategy, model=Choice("own"), batch_size=None, warmup=0, samples=1, **fields)
    return measure(Trial(case=case, passes=passes, digests={}), build=lambda: as_workload(build()))


def _trial(model: str, strategy: str, passes: tuple[str, ...], **fields: Any) -> Trial:
    case = make.case(strategy, **{"model": Choice(model), "batch_size": 8, "warmup": 0, "samples": 1, **fields})
    compared = "equality" in passes and strategy != "none"
    digests = _digests(case.baseline, models.TABLE.get(case.model.name)) if compared else None
    return Trial(case=case, passes=passes, digests=digests)


def notes(record: Record, code: str) -> list[str]:
    """The texts of the record's notes of one code."""
    return [note.text for note in record.notes if note.code == code]


@cache
def _digests(baseline: Case, _builder: str | None) -> dict[str, str] | None:
    """Of the gradients without checkpointing, for all strategies of a model; tests have their own builders."""
    from profiler.measuring.trial import measure

    equality = measure(Trial(case=baseline, passes=("equality",))).equality
    return equality.digests if equality else None


@pytest.fixture
def folder(hollow: Any, tmp_path: Path) -> Path:
    """The training scripts of tests/scripts in a folder of the user's."""
    (tmp_path / "scripts").mkdir()
    return copied(tmp_path / "scripts")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """An empty folder, for what the processes of a script took."""
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"
