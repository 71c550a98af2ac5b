"""What only a CUDA device can show: its conditions, its other users, its memory, a trial lost to it: `just gpu`."""

import pytest
import torch

from profiler.analysis.rows import rows
from profiler.core.case import PASSES, Choice, Trial
from profiler.engines.local import SLACK_BYTES, Local
from tests import make
from tests.program import PATIENCE_SECONDS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")]


def on_gpu(model: str = "mlp", *, passes: tuple[str, ...] = PASSES, samples: int = 1) -> Trial:
    return Trial(case=make.case(model=Choice(model), device="cuda:0", samples=samples), passes=passes)


@pytest.mark.gpu_arithmetic
def test_fault_09_the_conditions_are_told_or_the_reason_is(engine):
    (record,) = engine.run([on_gpu(passes=("time",), samples=6)])

    untold = [note.text for note in record.notes if note.code == "GCP031"]
    clocks = [one.clock_hertz for one in record.readings.conditions]
    assert record.outcome == "ok"
    assert bool(untold) == (clocks == [None] * len(clocks))
    seconds = min(record.readings.step_seconds) * record.readings.steps_per_sample
    assert seconds > 2e-4  # about a millisecond; the first steps are slower than those that are sampled
    assert "GCP032" not in {note.code for row in rows([record]) for note in row.notes}  # nothing is spilled


def test_fault_49_what_a_killed_child_held_is_back_before_the_next_trial():
    with Local(stage_seconds=PATIENCE_SECONDS) as engine:
        engine.survey()
        killed, clean = engine.run([on_gpu("tests.faulty:build:kind=kill"), on_gpu()])
        free = engine.ask("profiler.engines.worker:free_bytes", "cuda:0", failing="it fails")["free"]

    assert (killed.outcome, clean.outcome) == ("crashed", "ok")
    assert free >= engine._free["cuda:0"] - SLACK_BYTES


def test_fault_11_a_device_that_is_full_tells_what_was_asked_for_and_what_was_free(engine):
    total = torch.cuda.get_device_properties(0).total_memory

    full, clean = engine.run([on_gpu(f"mlp:width={int((total / 4) ** 0.5)}"), on_gpu()])  # one weight as large

    assert (full.outcome, clean.outcome) == ("out_of_memory", "ok")
    assert full.shortage.of == "device"
    assert full.shortage.asked_bytes == pytest.approx(total, rel=0.01)
    assert 0 < full.shortage.free_bytes < total
    assert full.environment.device_bytes == total
    assert "Including non-PyTorch memory" not in full.detail


@pytest.mark.gpu_arithmetic
def test_fault_16_a_device_side_assert_is_lost_with_its_trial(engine):
    broken, clean = engine.run([on_gpu("tests.faulty:build:kind=index"), on_gpu()])

    assert (broken.outcome, clean.outcome) == ("failed", "ok")
    assert "device-side assert triggered" in broken.detail
