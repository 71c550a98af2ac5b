"""What only a CUDA device can show, its conditions and a trial lost to it among them; `just gpu` runs these."""

from statistics import median

import pytest
import torch
from torch.utils.checkpoint import checkpoint_sequential

from profiler.analysis.rows import rows
from profiler.core import catalogue
from profiler.core.case import PASSES, Choice, Trial
from profiler.core.record import NOISE_MARGIN
from profiler.engines.local import SLACK_BYTES, Local
from profiler.training import models
from tests import make
from tests.program import PATIENCE_SECONDS

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


# --- its conditions, its other users, its memory, a trial that is lost to it


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
