"""How long the time is sampled: from the words to the record, on a device whose times are written down."""

import msgspec
import pytest
from msgspec import UNSET

from profiler.core.case import Case, decode, encode
from profiler.core.record import Record
from profiler.core.stats import Sampling
from profiler.measuring.meters import time as timing
from profiler.workflows.spec import Request, check
from tests import make
from tests.conftest import measured
from tests.scripted_steps import Scripted, step


def test_a_fixed_number_of_samples_is_kept_to_however_noisy_they_are():
    device = Scripted([9.0, 5.0, *range(1, 8), 100.0])

    (found,) = timing.read(device, step, [None], warmup=1, samples=7)

    assert (found["step_seconds"], found["warmup_seconds"]) == ((1, 2, 3, 4, 5, 6, 7), (9.0, 5.0))
    assert len(found["conditions"]) == 3  # after the warm-up, and after 6 and 7 samples
    assert device.left == [100.0]


@pytest.mark.parametrize("strategy", ["none", "all", "segments:k=1", "offload"])
def test_a_measured_record_tells_its_warm_up_its_steps_without_the_strategy_and_why_it_ended(strategy):
    record = measured("mlp", strategy, passes=("time",), samples=3, warmup=1)

    assert (len(record.readings.step_seconds), len(record.readings.warmup_seconds)) == (3, 1)
    assert record.readings.stopped == "samples"
    processor_seconds = record.readings.processor_seconds, record.readings.plain_processor_seconds
    assert [*map(len, (record.readings.plain_step_seconds, *processor_seconds))] == [3] * 3
    assert min(map(min, processor_seconds)) >= 0
    assert record.num_steps == 2 + 6 * record.readings.steps_per_sample  # each has a neighbour, as the first has
    first, last = record.readings.conditions
    assert last.at_seconds > first.at_seconds > 0
    assert last.num_cores >= 1
    assert decode(encode(record), Record) == record


def planned(**words) -> list[Case]:
    return [trial.case for trial in check(Request(segments="2", **words), lambda word: word).trials]


def test_the_ratio_is_sampled_to_three_percent_unless_a_number_is_asked_for_or_nothing_runs():
    (none, *_), (fixed, *_) = planned(device="cpu"), planned(device="cpu", samples=5)

    assert none.sampling == Sampling(precision_target=0.03, max_samples=100, max_seconds=2.0)
    assert (none.samples, fixed.sampling, fixed.samples) == (4, UNSET, 5)
    assert planned(device="fake:cpu")[0].sampling is UNSET


def test_a_case_without_the_new_words_is_written_and_called_as_before():
    case = make.case("none")
    text = (
        '{"accumulate":1,"batch_size":64,"blocks":null,"data":"synthetic","device":"cpu","keep_gradients":false,'
        '"model":"mnist-cnn:channels=32","optimizer":"sgd","precision":"fp32","repair_batchnorm":false,"samples":5,'
        '"seed":0,"strategy":"none","verify":"auto","warmup":1}'
    )

    assert encode(case, order="sorted").decode() == text
    assert case.id == "b3d2a986474b"
    assert msgspec.structs.replace(case, sampling=Sampling()).id != case.id


class Asynchronous(Scripted):
    """A device whose steps take a second; the host asks for one in so many seconds."""

    is_asynchronous = True

    def __init__(self, asking: float) -> None:
        super().__init__([1.0] * 9)
        self.now, self._asking = 0.0, asking

    def step(self, mark):
        step(mark)
        self.now += self._asking


@pytest.mark.parametrize(("asking", "share"), [(0.1, 0.1), (1.5, 1.0)])
def test_the_host_s_share_of_a_step_is_known_where_the_device_works_meanwhile(asking, share):
    device = Asynchronous(asking)

    (found,) = timing.read(device, device.step, [None], warmup=1, samples=3, clock=lambda: device.now)

    assert found["host_share"] == pytest.approx(share)
