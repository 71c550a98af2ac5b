"""What only a CUDA device can do to a trial: run out of its own memory, and be lost to a device-side assert."""

from __future__ import annotations

import pytest
import torch

from profiler.core.case import Choice, Trial
from tests import make

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")]


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
