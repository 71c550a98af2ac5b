"""Notes about the times of a row, from samples and conditions that are written down."""

import random

import msgspec
import pytest

from profiler.analysis import time_ratio
from profiler.analysis.rows import Row, rows
from profiler.core.record import Conditions, Record
from profiler.core.stats import Sampling
from tests import make
from tests.gpu_records import CALM, WELL, notes, record

FALLING = tuple(0.16 - index * 0.001 for index in range(40))
WIDE = (0.100, 0.095, 0.105, 0.100, 0.096, 0.104)


def doubts(table: list[Row]) -> set[str]:
    """Codes of the notes on times; these records' peaks are those of `none`, which has a note of its own."""
    return {note.code for row in table for note in row.notes} - {"GCP067"}


def busy(*others_seconds: float, num_cores: int = 2) -> tuple[Conditions, ...]:
    """One reading a second."""
    return tuple(
        Conditions(at_seconds=float(at), others_seconds=taken, num_cores=num_cores)
        for at, taken in enumerate(others_seconds)
    )


def test_a_median_that_is_less_sure_than_was_asked_for_says_what_helps():
    asked = {"seconds": WIDE, "sampling": Sampling(precision_target=0.02), "stopped": "seconds"}
    one = record(processor_seconds=(0.01,) * len(CALM))
    threads = msgspec.structs.replace(one, environment=msgspec.structs.replace(one.environment, num_threads=2))
    rounds = [record(seconds=(*WIDE[:4], 0.1, 0.1), round=number, sampling=Sampling()) for number in (1, 2, 3)]
    single, predicted = (record(seconds=(1.0,), sampling=Sampling(), device=device) for device in ("cpu", "fake:cpu"))

    found = notes(record(**asked))

    assert found["GCP012"].startswith("the times are unsure: the median is known to ±5.0 %, not ±2.0 %; ")
    assert "--max-seconds" in found["GCP012"]
    assert "--max-samples" not in found["GCP012"]
    by_a_hair = notes(record(**{**asked, "sampling": Sampling(precision_target=0.0496)}))["GCP012"]
    assert "the median is known to ±5.00 %, not ±4.96 %" in by_a_hair
    assert "GCP012" not in notes(record(seconds=WIDE, stopped="samples"))  # a fixed number was asked for
    assert "GCP012" not in notes(record(**{**asked, "sampling": Sampling(precision_target=0.06)}))
    assert "OMP_NUM_THREADS=1" in notes(threads)["GCP012"]  # threads that wait for each other
    assert ("GCP012" in notes(rounds[0]), "GCP012" in notes(*rounds)) == (True, False)
    assert "1 sample cannot tell how precise the median is; " in notes(single)["GCP012"]
    assert notes(predicted) == {}


def test_steps_that_become_faster_have_not_settled_and_those_that_become_slower_drift():
    faster, slower = notes(record(seconds=FALLING)), notes(record(seconds=FALLING[::-1]))

    middles = (0.16 - 0.001 * 33) / (0.16 - 0.001 * 6) - 1  # of the last third and the first
    assert f"{middles * 100:.0f} %" in faster["GCP022"]
    assert "--warmup" in faster["GCP022"]
    assert "+21 %" in slower["GCP023"]
    assert ("GCP023" in faster, "GCP022" in slower) == (False, False)
    assert notes(record(seconds=tuple(0.1 + index * 0.0001 for index in range(40)))) == {}  # 3 %, and certain


@pytest.mark.parametrize(("pace", "is_told"), [(1.04, False), (1.5, True), (0.7, True)])
def test_seconds_at_another_pace_than_the_baselines_are_told(pace, is_told):
    plain, own = tuple(pace * second for second in CALM), tuple(pace * 1.25 * second for second in CALM)
    table = rows([record("none", seconds=CALM), record("all", seconds=own, plain_step_seconds=plain)])

    told = {note.code: note.text for note in table[1].notes}

    assert table[1].time.ratio == pytest.approx(1.25)
    assert ("GCP023" in told) == is_told
    if is_told:
        by_seconds = f"by their seconds the step takes {(pace * 1.25 - 1) * 100:+.0f} %, "
        assert told["GCP023"].startswith(f"the machine's speed changed between this row and its baseline: {by_seconds}")
    assert not table[0].notes


def test_strategies_that_become_slower_together_drift_from_round_to_round():
    names = ("none", *(f"segments:k={k}" for k in range(2, 6)))

    def run(*levels: float) -> list[Record]:
        return [
            record(name, round=number, seconds=tuple(level * second for second in CALM))
            for number, level in enumerate(levels, start=1)
            for name in (names if number % 2 else names[::-1])
        ]

    slower = rows(run(1.0, 1.05, 1.1))

    assert doubts(slower) == {"GCP023"}
    assert "+10 % from the first rounds to the last" in slower[-1].notes[0].text
    assert not doubts(rows(run(1.0, 1.1, 1.05)))
    assert not doubts(rows(run(1.0, 1.01, 1.02)))
    assert not doubts(rows(run(1.0, 1.05, 1.1)[:6]))  # of a single round, nobody can tell


def test_of_calm_runs_hardly_any_row_is_doubted():
    draw = random.Random(0)

    def calm(name: str, number: int) -> Record:
        return record(name, round=number, seconds=tuple(0.1 * (1 + 0.01 * draw.gauss()) for _ in range(8)))

    runs = [rows([calm(name, number) for number in (1, 2, 3) for name in ("none", "all", "sqrt")]) for _ in range(200)]

    assert sum(bool(doubts([row])) for run in runs for row in run) <= 6  # of 600


# What a device says of itself while steps are timed


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
        ([moment(900), moment(1000), moment(940)], ": 900 MHz to 1,000 MHz"),
        ([moment(1000, highest=2000)], None),  # low, but nothing holds it
        ([moment(950, highest=1000, held_by=("heat",))], None),
        ([moment(949, highest=1000, held_by=("heat",))], " by heat: 949 MHz to 949 MHz of 1,000 MHz"),
        (
            [
                moment(held_by=("heat", "power limit"), celsius=80, watts=299.6, limit_watts=300),
                moment(held_by=("power limit", "heat"), celsius=85, watts=290),
            ],
            " by heat and power limit: up to 85 C, up to 300 W of 300 W",
        ),
    ],
)
def test_a_clock_that_falls_or_is_held_down_is_told_with_heat_and_power(moments, words):
    assert time_ratio.clock_held([moments]) == (None if words is None else HELD.format(words))
    assert time_ratio.clock_held([[moment(1000)], [moment(500)]]) is None  # it falls within a round alone


def test_other_processes_on_the_device_are_told_with_what_they_hold():
    series = [[moment(num_others=2, others_bytes=2**30), moment(num_others=1, others_bytes=2**31)]]

    shared = "the device is shared with 2 other processes that hold 2.00 GiB"
    assert time_ratio.other_processes(series) == (shared, "another --device")
    assert notes(record(conditions=(WELL, WELL), stopped="target", sampling=Sampling())) == {}


def round_(wall, busy, cores=4, at=10.0):
    return [moment(at=at, others_seconds=1.0, num_cores=cores), moment(at=at + wall, others_seconds=1.0 + busy)]


@pytest.mark.parametrize(
    ("series", "words"),
    [
        ([round_(5.0, 2.0)], "0.4 of 4"),
        ([round_(5.0, 1.75)], None),
        ([round_(0.4, 0.4)], None),  # too short to tell
        ([round_(0.25, 0.25), round_(0.25, 0.5, at=20.0)], "1.5 of 4"),
        ([[moment(num_others=0), moment(at=5.0)], round_(1.0, 2.0)], "2.0 of 4"),  # a round that does not tell
    ],
)
def test_busy_cores_are_told_from_a_tenth_of_all(series, words):
    assert time_ratio.other_processes(series) == (words and f"other processes kept {words} cores busy", None)


def timed(strategy, clocks, *, round=1, seconds=(1.0, 2.0, 4.0)):
    return make.record(strategy, seconds=seconds, round=round, conditions=tuple(map(moment, clocks)))


def clocked(*rounds, baseline=((1000,), (1000,))):
    """What is said of the clock of these rounds, which ran in processes of their own."""
    before = [timed("none", clocks, round=at) for at, clocks in enumerate(baseline, 1)]
    table = rows([*before, *(timed("all", clocks, round=at) for at, clocks in enumerate(rounds, 1))])
    return next((note.text for note in table[1].notes if note.code == "GCP024"), None)


def test_a_round_at_another_clock_than_its_baselines_is_told_by_the_farthest():
    assert clocked([1049], [951]) is None
    assert clocked([1000, None, 1102], [920]).startswith(  # a round's clock is its mean
        "the clock differed: a round ran at 920 MHz, that of its baseline at 1,000 MHz; "
        "nvidia-smi --lock-gpu-clocks makes times comparable; in cycles the step is -1.4 %"
    )
    assert clocked([None], [None]) is None


def test_the_change_in_cycles_is_of_times_and_clocks_within_a_round():
    baseline = [timed("none", [1000], seconds=(2.0,)), timed("none", [1000], seconds=(1.0,), round=2)]
    own = [timed("all", [2000], seconds=(2.0,)), timed("all", [2000], seconds=(1.0,), round=2)]

    (text,) = (note.text for note in rows([*baseline, *own])[1].notes if note.code == "GCP024")

    assert text.endswith("; in cycles the step is +100 %")
