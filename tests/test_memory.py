"""The bytes on the CPU are the allocator's own."""

import gc

import pytest
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint_sequential

from profiler.core import catalogue
from profiler.core.case import Choice
from profiler.training import OPTIMIZERS
from tests.conftest import measured
from tests.pasted import named


def allocations(tree: list, found: list[tuple[int, int]], marks: list[int]) -> None:
    """Every allocation below these profiler events as (time, bytes), and when the step began."""
    for event in tree:
        if event.typed[0].name == "Allocation":
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
        elif event.name == "the step":
            marks.append(event.start_time_ns)
        allocations(event.children, found, marks)


def peak_of_a_plain_loop(
    model, optimizer, *, change=lambda module: None, accumulate: int = 1, keep_gradients: bool = False
) -> int:
    """The largest sum of the allocator's events from before the model was built, in the second step of a plain loop."""
    make_optimizer, _ = catalogue.load(Choice(optimizer), OPTIMIZERS)
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work = named(model, 8)
        change(work.module)
        stepper = make_optimizer(work.module.parameters())
        for number in range(2):
            with record_function("the step" if number else "the first step"):
                stepper.zero_grad(set_to_none=not keep_gradients)
                for _ in range(accumulate):
                    (work.loss(work.module, work.batch) / accumulate).backward()
                stepper.step()
    found, marks = [], []
    allocations(profiled.profiler.kineto_results.experimental_event_tree(), found, marks)
    live = peak = 0
    for when, size in sorted(found, key=lambda event: event[0]):
        live += size
        peak = max(peak, live) if when >= marks[0] else 0
    return peak


@pytest.mark.parametrize(
    ("model", "optimizer", "settings"),
    [
        *((model, name, {}) for model in ("mlp", "mnist-cnn:channels=8") for name in ("sgd", "momentum", "adamw")),
        ("transformer:layers=3,width=32,sequence=16", "adam", {}),
        ("mlp", "sgd", {"accumulate": 3}),
        ("mlp", "sgd", {"keep_gradients": True}),
    ],
)
def test_the_peak_is_the_sum_of_the_allocator_events_of_a_plain_loop(model, optimizer, settings):
    expected = peak_of_a_plain_loop(model, optimizer, **settings)

    readings = measured(model, "none", optimizer=Choice(optimizer), **settings).readings

    assert readings.peak_bytes == pytest.approx(expected, rel=1e-3)
    assert readings.peak_gradient_bytes == 0 or not settings.get("keep_gradients")  # which are static bytes


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 32])
def test_the_peak_under_segments_is_that_of_checkpoint_sequential(k):
    def with_checkpoints(module):
        trunk = list(module.trunk)
        module.trunk.forward = lambda x: checkpoint_sequential(trunk, k, x, use_reentrant=False)

    expected = peak_of_a_plain_loop("mnist-cnn:channels=8", "sgd", change=with_checkpoints)

    assert measured("mnist-cnn:channels=8", f"segments:k={k}").readings.peak_bytes == pytest.approx(expected, rel=1e-3)


def test_the_timeline_of_a_measured_step_holds_its_peak_and_its_phases():
    readings = measured("mnist-cnn:channels=4,layers=12", "segments:k=3").readings

    (live,) = readings.timeline.nbytes.values()
    starts = dict(readings.timeline.phases)
    assert max(live) == readings.peak_bytes
    assert len(live) == 96
    assert 0 < starts["forward"] < starts["backward"] < 96
    assert max(live[starts["forward"] : starts["backward"]]) == readings.phases["forward"].allocated
