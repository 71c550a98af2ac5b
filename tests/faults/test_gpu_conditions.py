"""What only a CUDA device can show: its conditions, its other users, its memory, a trial lost to it: `just gpu`."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core.case import Choice, Trial
from profiler.core.record import Record
from profiler.engines.local import SLACK_BYTES, Local
from profiler.measuring.devices import cuda
from profiler.measuring.devices.cuda import Cuda
from profiler.runs import store
from tests import make
from tests.make import MIB
from tests.program import PATIENCE_SECONDS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")]

HELD = 512 * MIB
HOLD = (
    f"import torch; held = torch.empty({HELD}, dtype=torch.uint8, device='cuda:0').fill_(1); torch.cuda.synchronize(); "
    "print('ready', flush=True); input()"
)
needs_nvml = pytest.mark.skipif(not find_spec("pynvml"), reason="pynvml is not installed")


@pytest.fixture
def other() -> Iterator[None]:
    """Another process that holds memory of the device."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        torch.zeros(1, device="cuda:0")
        if find_spec("pynvml") and not Cuda("cuda:0").conditions().num_others:
            process.kill()
            pytest.skip("the system lists no processes of others, as in some containers")
        yield
        process.kill()


def timed(engine: Local) -> Record:
    case = make.case(model=Choice("mlp"), device="cuda:0", samples=6)
    (record,) = engine.run([Trial(case=case, passes=("time",))])
    return record


@pytest.mark.gpu_arithmetic
def test_fault_09_the_conditions_are_told_or_the_reason_is(engine):
    record = timed(engine)

    untold = [note.text for note in record.notes if note.code == "GCP031"]
    clocks = [one.clock_hertz for one in record.readings.conditions]
    assert record.outcome == "ok"
    assert bool(untold) == (clocks == [None] * len(clocks))


def test_fault_09_without_nvml_the_device_measures_all_the_same(monkeypatch):
    monkeypatch.setattr(cuda, "pynvml", None)
    device = Cuda("cuda:0")

    assert device.conditions().clock_hertz is None
    assert "pip install" in device.untold()


@pytest.mark.gpu_shared
@needs_nvml
def test_fault_48_another_process_on_the_device_is_seen(engine, other):
    (row,) = rows([timed(engine)])

    assert "the device is shared with" in next(note.text for note in row.notes if note.code == "GCP012")


@pytest.mark.gpu_shared
@needs_nvml
@pytest.mark.usefixtures("shared")
def test_fault_48_a_run_that_must_be_alone_ends_with_3(here, other):
    words = "run --model mlp --segments 2 --device cuda:0 --rounds 1 --exclusive error -o run"

    assert answer(words.split()) == 3
    assert len(store.load(here / "run").records) == 1


def test_fault_49_what_a_killed_child_held_is_back_before_the_next_trial():
    cases = [
        make.case(model=Choice(name), device="cuda:0", samples=1) for name in ("tests.faulty:build:kind=kill", "mlp")
    ]

    with Local(stage_seconds=PATIENCE_SECONDS) as engine:
        engine.survey()
        killed, clean = engine.run([Trial(case=case) for case in cases])
        free = engine.ask("profiler.engines.worker:free_bytes", "cuda:0", failing="it fails")["free"]

    assert (killed.outcome, clean.outcome) == ("crashed", "ok")
    assert free >= engine._free["cuda:0"] - SLACK_BYTES


@pytest.mark.gpu_shared
@needs_nvml
def test_fault_49_a_child_tells_how_much_another_process_holds(engine, other):
    held = engine.ask("profiler.engines.worker:free_bytes", "cuda:0", failing="no answer")["free"]

    assert held <= torch.cuda.get_device_properties(0).total_memory - HELD


@pytest.mark.gpu_arithmetic
def test_fault_51_a_tiny_step_is_taken_several_times_a_sample(engine):
    record = timed(engine)

    seconds = min(record.readings.step_seconds) * record.readings.steps_per_sample
    assert seconds > 2e-4  # about a millisecond; the first steps are slower than those that are sampled


def test_fault_64_a_step_that_fits_is_not_said_to_be_spilled(engine):
    (row,) = rows([timed(engine)])

    assert not [note for note in row.notes if note.code == "GCP032"]


# --- 11, 16: a device that is full, and one that a device-side assert breaks


def on_gpu(model: str = "mlp", **fields) -> Trial:
    case = make.case(model=Choice(model), device="cuda:0", samples=1, warmup=0, **{"batch_size": 4, **fields})
    return Trial(case=case)


def too_large() -> Trial:
    """One weight as large as the device."""
    total = torch.cuda.get_device_properties(0).total_memory
    return on_gpu(f"mlp:width={int((total / 4) ** 0.5)}")


def test_fault_11_a_device_that_is_full_tells_what_was_asked_for_and_what_was_free(engine):
    full, clean = engine.run([too_large(), on_gpu()])

    total = torch.cuda.get_device_properties(0).total_memory
    assert (full.outcome, clean.outcome) == ("out_of_memory", "ok")
    assert full.shortage.of == "device"
    assert full.shortage.asked_bytes == pytest.approx(total, rel=0.01)
    assert 0 < full.shortage.free_bytes < total
    assert full.environment.device_bytes == total
    assert "Including non-PyTorch memory" not in full.detail


@pytest.mark.gpu_arithmetic
def test_fault_16_a_device_side_assert_is_lost_with_its_trial(engine):
    broken, clean = engine.run([on_gpu("tests.faults.bad_index:build"), on_gpu()])

    assert (broken.outcome, clean.outcome) == ("failed", "ok")
    assert "device-side assert triggered" in broken.detail
