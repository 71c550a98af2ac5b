"""What a device says of itself while steps are timed, in words."""

from __future__ import annotations

import msgspec
import pytest

from profiler.analysis import device_conditions
from profiler.core.record import Conditions
from tests import make


def moment(megahertz=None, *, at=0.0, highest=None, **fields):
    def hertz(megahertz):
        return None if megahertz is None else megahertz * 1e6

    return Conditions(
        at_seconds=at, clock_hertz=hertz(megahertz), highest_clock_hertz=hertz(highest), **fields
    )  # fmt: skip


HELD = "the clock was held down{}; cooling, or nvidia-smi --lock-gpu-clocks, makes times comparable"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moments", "words"),
    [
        ([moment(1000), moment(950)], None),  # it may fall by a twentieth
        ([moment(1000), moment(949)], ": 949 MHz to 1,000 MHz"),
        ([moment(949), moment(1000)], None),  # it rose
        ([moment(900), moment(1000), moment(940)], ": 900 MHz to 1,000 MHz"),
        ([moment(), moment()], None),
        ([moment(1000, highest=2000)], None),  # low, but nothing holds it
        ([moment(950, highest=1000, held_by=("heat",))], None),
        ([moment(949, highest=1000, held_by=("heat",))], " by heat: 949 MHz to 949 MHz of 1,000 MHz"),
        ([moment(1000, held_by=("heat",))], " by heat: 1,000 MHz to 1,000 MHz"),
        ([moment(held_by=("heat",), celsius=80.4)], " by heat: up to 80 C"),
        (
            [
                moment(held_by=("heat", "power limit"), celsius=80, watts=299.6, limit_watts=300),
                moment(held_by=("power limit", "heat"), celsius=85, watts=290),
            ],
            " by heat and power limit: up to 85 C, up to 300 W of 300 W",
        ),
        ([moment(held_by=("heat",), watts=100.2)], " by heat: up to 100 W"),
    ],
)
def test_a_clock_that_falls_or_is_held_down_is_told_with_heat_and_power(moments, words):
    assert device_conditions.clock_held([moments]) == (None if words is None else HELD.format(words))


def test_a_clock_falls_within_a_round_alone():
    assert device_conditions.clock_held([[moment(1000)], [moment(500)]]) is None
    assert device_conditions.clock_held([[moment(1000)], [moment(1000), moment(500)]]) is not None


@pytest.mark.parametrize(
    ("fields", "shared"),
    [
        ([{"num_others": 1, "others_bytes": 2**30}], "1 other process that holds 1.00 GiB"),
        ([{"num_others": 2, "others_bytes": 2**30}, {"num_others": 1, "others_bytes": 2**31}],
         "2 other processes that hold 2.00 GiB"),
        ([{"num_others": 1}, {}], "1 other process"),
    ],
)  # fmt: skip
def test_other_processes_on_the_device_are_told_with_what_they_hold(fields, shared):
    series = [[moment(**one) for one in fields]]

    assert device_conditions.other_processes(series) == (f"the device is shared with {shared}", "another --device")


def round_(wall, busy, cores=4, at=10.0):
    return [moment(at=at, others_seconds=1.0, num_cores=cores), moment(at=at + wall, others_seconds=1.0 + busy)]


@pytest.mark.parametrize(
    ("series", "words"),
    [
        ([round_(5.0, 2.0)], "0.4 of 4"),
        ([round_(5.0, 1.75)], None),
        ([round_(0.4, 0.4)], None),  # too short to tell
        ([round_(0.25, 0.25), round_(0.25, 0.5, at=20.0)], "1.5 of 4"),
        ([round_(1.0, 3.0, cores=None)], None),
        ([[moment(num_others=0), moment(at=5.0)], round_(1.0, 2.0)], "2.0 of 4"),  # a round that does not tell
        ([[moment(), moment(at=5.0)]], None),
    ],
)
def test_busy_cores_are_told_from_a_tenth_of_all(series, words):
    expected = f"other processes kept {words} cores busy" if words else None

    assert device_conditions.other_processes(series) == (expected, None)


def timed(strategy, clocks, *, round=1, seconds=(1.0, 2.0, 4.0)):
    record = make.record(strategy, seconds=seconds, round=round)
    conditions = tuple(moment(clock) for clock in clocks)
    return msgspec.structs.replace(record, readings=msgspec.structs.replace(record.readings, conditions=conditions))


def test_the_clock_of_a_round_is_its_mean():
    assert device_conditions.clock(timed("none", [1000, None, 2000])) == 1.5e9
    assert device_conditions.clock(timed("none", [None])) is None
    assert device_conditions.clock(make.record()) is None


def test_a_round_at_another_clock_than_its_baselines_is_told_by_the_farthest():
    baseline = [timed("none", [1000], round=1), timed("none", [1000], round=2)]

    def apart(*clocks):
        return device_conditions.clocks_apart(
            [timed("all", [clock], round=number) for number, clock in enumerate(clocks, 1)], baseline
        )

    assert apart(1049, 951) is None
    assert apart(1051, 920) == (
        "the clock differed: a round ran at 920 MHz, that of its baseline at 1,000 MHz; "
        "nvidia-smi --lock-gpu-clocks makes times comparable"
    )
    assert apart(None, None) is None
    assert device_conditions.clocks_apart(baseline, [timed("none", [500])]) is None


def test_the_change_in_cycles_is_of_times_and_clocks_within_a_round():
    baseline = [timed("none", [1000], seconds=(2.0,)), timed("none", [1000], seconds=(1.0,), round=2)]

    def told(*rounds):
        return device_conditions.in_cycles(rounds, baseline)

    assert told(timed("all", [500], seconds=(6.0,))) == "; in cycles the step is +50 %"
    assert told(timed("all", [2000], seconds=(2.0,)), timed("all", [2000], seconds=(1.0,), round=2)) == (
        "; in cycles the step is +100 %"
    )
    assert told(timed("all", [500], seconds=(6.0,), round=3)) == ""
    assert told(timed("all", [None], seconds=(6.0,))) == ""
    assert told(*baseline) == ""
