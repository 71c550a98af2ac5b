"""Steps with a strategy and without it, in turn, on a device whose times are written down."""

from random import Random
from typing import Any

import pytest
import torch

from profiler.core.case import Trial
from profiler.core.stats import RoundSteps, Sampling, calm_ratios, pair_ratios, step_order
from profiler.engines.local import informed
from profiler.measuring.meters import time as timing
from tests import make
from tests.scripted_steps import Scripted, step

SETTLING = 2  # the first, and one of warm-up, which is without the strategy


class Switched(Scripted):
    """A device on which steps without the strategy take 1 s, and steps with it 1.5 s; each takes longer than before."""

    def __init__(self, *, drift: float = 0.0, fails: tuple[Exception, int] | None = None) -> None:
        super().__init__([])
        self.is_on, self.order, self.num_released = False, [], 0
        self._drift, self._fails = drift, fails  # what a step without the strategy raises, and from which of them on

    def switch(self, on: bool) -> None:
        self.is_on = on

    def run(self, mark: Any) -> None:
        self.order.append(self.is_on)
        if not self.is_on and self._fails and self.order.count(False) >= self._fails[1]:
            raise self._fails[0]
        self.left.append((1.5 if self.is_on else 1.0) * (1 + self._drift * len(self.order)))
        step(mark)

    def release(self) -> None:
        self.num_released += 1


def read(device: Switched, **how: Any) -> dict[str, Any]:
    return timing.read(device, device.run, [device.switch], **{"warmup": 1, "samples": 8, **how})[0]


@pytest.mark.slow
def test_steps_with_and_without_alternate_in_the_order_that_is_drawn():
    device = Switched()

    found, longer = read(device), read(Switched(), warmup=3)

    assert (len(longer["warmup_seconds"]), len(longer["plain_warmup_seconds"])) == (3, 1)
    assert found["step_seconds"] == (1.5,) * 8
    assert found["plain_step_seconds"] == (1.0,) * 8
    assert (found["warmup_seconds"], found["plain_warmup_seconds"]) == ((1.5,), (1.0,))
    pairs = list(zip(device.order[SETTLING::2], device.order[SETTLING + 1 :: 2], strict=True))
    assert pairs == [tuple(place == 1 for place in step_order(number)) for number in range(8)]
    assert not device.is_on


def test_all_pairs_count_where_fewer_than_six_had_a_core():
    waited = RoundSteps([1.1, 4.0, 4.0], [1.0, 1.0, 1.0], [1.1] * 3, [1.0] * 3)
    calm = RoundSteps([1.1] * 6, [1.0] * 6, [1.1] * 6, [1.0] * 6)
    unknown, look = RoundSteps([1.2] * 9, [1.0] * 9), RoundSteps([10.0], [1.0], [1.0], [1.0])
    (nearly,) = calm_ratios([RoundSteps([1.1] * 5 + [1.12, 4.1], [1.0] * 7, [1.1] * 7, [1.0] * 7)])

    assert len(nearly) == 6
    assert calm_ratios([waited] * 5) == [pair_ratios(waited.with_it, waited.without)] * 5
    assert calm_ratios([waited] * 6) == [(pytest.approx(1.1),)] * 6
    assert [len(ratios) for ratios in calm_ratios([unknown, calm])] == [9, 6]  # those of which nothing is known count
    assert [len(ratios) for ratios in calm_ratios([look, calm])] == [0, 6]


def test_which_pairs_are_left_out_does_not_move_the_ratio():
    draw = Random(0)

    def taken(own: float) -> float:
        """Seconds of a step that waits for 3 ms once in 40 ms."""
        return own + 0.003 * sum(draw.random() < 0.1 for _ in range(round(own / 0.004)))

    own, plain = ([taken(seconds) for _ in range(400)] for seconds in (0.03, 0.02))
    (ratios,) = calm_ratios([RoundSteps(own, plain, [0.03] * 400, [0.02] * 400)])

    assert 50 < len(ratios) < 300
    assert ratios == pytest.approx([1.5] * len(ratios))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), ValueError("the model's own")])
@pytest.mark.parametrize(("first", "least_pairs"), [(1, 2), (2, 1), (2, 3)])
def test_where_a_step_without_fails_the_strategy_is_timed_alone(error, first, least_pairs):
    device = Switched(fails=(error, first))

    found = read(device, samples=3, sampling=Sampling() if first == 2 else None, least_pairs=least_pairs)

    assert set(found["step_seconds"]) == {1.5}
    assert (found["plain_step_seconds"], found["plain_warmup_seconds"]) == (None, ())
    assert device.num_released == 1
    assert not device.is_on


def test_sampling_ends_with_a_sure_ratio_within_its_seconds():
    found = read(Switched(), samples=4, sampling=Sampling(max_seconds=99))
    slow = read(Switched(drift=0.1), samples=4, sampling=Sampling(precision_target=1e-9))
    limited = read(Switched(), samples=50, until=20.0, clock=iter(range(1000)).__next__)

    assert (len(found["step_seconds"]), found["stopped"]) == (2, "target")
    assert (len(slow["step_seconds"]), slow["stopped"]) == (2, "seconds")
    assert limited["stopped"] == "limit"
    assert len(limited["step_seconds"]) == len(limited["plain_step_seconds"]) < 50


@pytest.mark.parametrize(
    ("is_asynchronous", "warmup", "before"),
    [(False, 1, [False]), (False, 2, [False, True]), (True, 1, [True, False])],
    ids=["cpu", "cpu, more asked for", "gpu"],
)
def test_a_first_look_on_a_cpu_is_settled_by_the_step_that_takes_the_most_memory(is_asynchronous, warmup, before):
    device = Switched()
    device.is_asynchronous = is_asynchronous

    found = read(device, warmup=warmup, samples=4, sampling=Sampling(), least_pairs=1)

    assert device.order[: len(before)] == before
    assert sorted(device.order[len(before) :]) == [False, True]
    assert found["warmup_seconds"] == (1.5,) * before.count(True)
    assert found["plain_warmup_seconds"] == (1.0,)
    assert (found["step_seconds"], found["plain_step_seconds"]) == ((1.5,), (1.0,))
    assert not device.is_on


def test_a_baseline_that_failed_is_not_run_beside_its_strategies():
    trial = Trial(case=make.case("all"))
    fine, failed = make.record("none"), make.failed("none", "out_of_memory", "96 MiB")

    assert [informed([trial], {(record.case, 1): record})[0].is_paired for record in (fine, failed)] == [True, False]
    assert informed([trial], {})[0].is_paired  # nothing is known of it
