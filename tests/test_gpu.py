"""What only a CUDA device can show; `just gpu` runs these."""

from statistics import median

import pytest
import torch
from torch.utils.checkpoint import checkpoint_sequential

from profiler.core import catalogue
from profiler.core.case import Choice, Trial
from profiler.core.record import NOISE_MARGIN
from profiler.training import models
from tests import make

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")]

MODEL, BATCH = "mnist-cnn:channels=64", 64
BUSY = 4096  # a batch that keeps a GPU busy: the time of small kernels is the host's


@pytest.fixture(scope="module")
def records(engine):
    strategies = ("none", "segments:k=2", "segments:k=8")
    cases = [make.case(s, model=Choice(MODEL), batch_size=BATCH, device="cuda:0", samples=10) for s in strategies]
    return {str(record.case.strategy): record for record in engine.run([Trial(case=case) for case in cases])}


def bare_loop(segments: int | None = None, *, batch_size: int = BATCH) -> tuple[int, float]:
    """Peak bytes by torch.cuda.max_memory_allocated and the median step by events, of a loop as one writes it."""
    build, options = catalogue.load(Choice(MODEL), models.TABLE)
    torch.manual_seed(0)
    torch._C._cuda_clearCublasWorkspaces()  # which torch keeps before 2.15, and the loop makes anew
    torch.cuda.empty_cache()  # what other tests left free is larger, and would be handed out whole
    before = torch.cuda.memory_allocated()  # what other tests of this process keep
    with torch.device("cuda:0"):
        work = build(batch_size=batch_size, **options)
    if segments:
        trunk = list(work.module.trunk)
        work.module.trunk.forward = lambda x: checkpoint_sequential(trunk, segments, x, use_reentrant=False)
    optimizer = torch.optim.SGD(work.module.parameters(), lr=0.01)
    seconds = []
    for step in range(12):
        if step == 1:
            torch.cuda.reset_peak_memory_stats()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        optimizer.zero_grad()
        work.loss(work.module, work.batch).backward()
        optimizer.step()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return torch.cuda.max_memory_allocated() - before, median(seconds[2:])


@pytest.mark.parametrize(("strategy", "segments"), [("none", None), ("segments:k=8", 8)])
def test_the_peak_is_max_memory_allocated_of_a_bare_loop(records, strategy, segments):
    peak, _ = bare_loop(segments)

    readings = records[strategy].readings
    assert readings.peak_bytes == pytest.approx(peak, rel=1e-3)
    assert readings.peak_bytes <= readings.reserved_bytes <= readings.device_bytes


@pytest.mark.gpu_arithmetic
def test_gradients_are_equal_or_within_the_measured_noise(records):
    for record in records.values():
        assert "GCP014" not in [note.code for note in record.notes]
        floor = max(records["none"].equality.noise_floor, record.equality.noise_floor or 0.0)
        assert record.outcome == "ok"
        assert not record.equality.missing
        assert (record.equality.largest_difference or 0.0) <= NOISE_MARGIN * floor


@pytest.mark.gpu_arithmetic
def test_the_recorded_step_is_within_a_fifth_of_a_bare_loops(engine):
    case = make.case(model=Choice(MODEL), batch_size=BUSY, device="cuda:0", samples=10)

    (record,) = engine.run([Trial(case=case, passes=("time",))])

    _, seconds = bare_loop(batch_size=BUSY)
    assert median(record.readings.step_seconds) == pytest.approx(seconds, rel=0.2)
