"""Notes about the times of a row, from samples and conditions that are written down."""

from __future__ import annotations

import random

import msgspec
import pytest

from profiler.analysis.row_times import samples_of_rounds
from profiler.analysis.rows import Row, rows
from profiler.core.record import Conditions, Record
from profiler.core.stats import Sampling
from tests.gpu_records import CALM, PAGES, THROTTLED, WELL, notes, on_a_gpu, record

FALLING = tuple(0.16 - index * 0.001 for index in range(40))


def doubts(table: list[Row]) -> set[str]:
    """Codes of the notes on times; these records' peaks are those of `none`, which has a note of its own."""
    return {note.code for row in table for note in row.notes} - {"GCP067"}


def busy(*others_seconds: float, num_cores: int = 2) -> tuple[Conditions, ...]:
    """One reading a second."""
    return tuple(
        Conditions(at_seconds=float(at), others_seconds=taken, num_cores=num_cores)
        for at, taken in enumerate(others_seconds)
    )


@pytest.mark.slow
def test_calm_times_on_a_calm_device_have_no_notes():
    assert notes(record(conditions=(WELL, WELL), stopped="target", sampling=Sampling())) == {}


def test_a_median_that_is_less_sure_than_was_asked_for_says_what_helps():
    wide = (0.100, 0.095, 0.105, 0.100, 0.096, 0.104)
    asked = {"seconds": wide, "sampling": Sampling(precision_target=0.02), "stopped": "seconds"}

    found = notes(record(**asked))

    assert found["GCP012"].startswith("the times are unsure: the median is known to ±5.0 %, not ±2.0 %; ")
    assert "--max-seconds" in found["GCP012"]
    assert "--max-samples" not in found["GCP012"]
    assert "--max-seconds" not in notes(record(**{**asked, "stopped": "look"}))["GCP012"]
    assert "GCP012" not in notes(record(seconds=wide, stopped="samples"))  # a fixed number was asked for
    assert "GCP012" not in notes(record(**{**asked, "sampling": Sampling(precision_target=0.06)}))


def test_what_is_less_sure_by_a_hair_is_told_with_as_many_digits_as_show_it():
    wide = (0.100, 0.095, 0.105, 0.100, 0.096, 0.104)
    asked = record(seconds=wide, sampling=Sampling(precision_target=0.0496), stopped="seconds")

    assert "the median is known to ±5.00 %, not ±4.96 %" in notes(asked)["GCP012"]


def test_threads_that_wait_for_each_other_have_a_remedy():
    stolen = {"processor_seconds": (0.01,) * len(CALM)}
    one = record(**stolen)
    threads = {
        number: msgspec.structs.replace(one, environment=msgspec.structs.replace(one.environment, num_threads=number))
        for number in (1, 2)
    }

    assert "OMP_NUM_THREADS=1" in notes(threads[2])["GCP012"]
    assert "OMP_NUM_THREADS" not in notes(threads[1])["GCP012"]


def test_all_rounds_together_are_surer_than_each():
    wide = (0.100, 0.095, 0.105, 0.100, 0.100, 0.100)
    rounds = [record(seconds=wide, round=number, sampling=Sampling()) for number in (1, 2, 3)]

    assert "GCP012" in notes(rounds[0])
    assert "GCP012" not in notes(*rounds)


def test_a_first_look_is_no_round_of_its_own_beside_others():
    look, *full = (
        record(seconds=seconds, round=number, stopped=stopped)
        for number, (seconds, stopped) in enumerate([((9.0,), "look"), (CALM, "target"), (CALM, "seconds")], start=1)
    )

    assert samples_of_rounds([look, *full]) == [CALM, CALM]
    assert samples_of_rounds([look]) == [(9.0,)]


def test_too_few_samples_for_an_interval_are_not_sure():
    found = notes(record(seconds=(1.0,) * 5, sampling=Sampling(), stopped="seconds"))

    assert found["GCP012"].startswith("the times are unsure: 5 samples cannot tell how precise the median is; ")


def test_a_prediction_has_no_doubts_of_a_measurement():
    real = record(seconds=(1.0,), sampling=Sampling())
    case = msgspec.structs.replace(real.case, device="fake:cpu")

    assert "GCP012" in notes(real)
    assert notes(msgspec.structs.replace(real, case=case)) == {}


def test_steps_that_still_become_faster_have_not_settled():
    found = notes(record(seconds=FALLING))

    middles = (0.16 - 0.001 * 33) / (0.16 - 0.001 * 6) - 1  # of the last third and the first
    assert f"{middles * 100:.0f} %" in found["GCP022"]
    assert "--warmup" in found["GCP022"]
    assert "GCP023" not in found


def test_steps_that_become_slower_drift():
    found = notes(record(seconds=FALLING[::-1]))

    assert "+21 %" in found["GCP023"]
    assert "GCP022" not in found


@pytest.mark.parametrize(("pace", "is_told"), [(1.0, False), (1.04, False), (1.5, True), (0.7, True)])
def test_seconds_at_another_pace_than_the_baselines_are_told(pace: float, is_told: bool):
    plain, own = tuple(pace * second for second in CALM), tuple(pace * 1.25 * second for second in CALM)
    table = rows([record("none", seconds=CALM), record("all", seconds=own, plain_step_seconds=plain)])

    told = {note.code: note.text for note in table[1].notes}

    assert table[1].time.ratio == pytest.approx(1.25)
    assert ("GCP023" in told) == is_told
    if is_told:
        by_seconds = f"by their seconds the step takes {(pace * 1.25 - 1) * 100:+.0f} %, "
        assert told["GCP023"].startswith(f"the machine's speed changed between this row and its baseline: {by_seconds}")
    assert not table[0].notes


@pytest.mark.parametrize(("pace", "is_told"), [(1.9, False), (4.0, True), (0.2, True)])
def test_so_few_pairs_that_they_have_no_interval_are_doubted_where_no_noise_explains_the_seconds(
    pace: float, is_told: bool
):
    plain, own = (pace * CALM[0],) * 2, (pace * 0.88 * CALM[0],) * 2
    table = rows([record("none", seconds=CALM), record("all", seconds=own, plain_step_seconds=plain)])

    assert table[1].time.interval is None
    assert ("GCP023" in {note.code for note in table[1].notes}) == is_told


def test_a_small_drift_is_let_pass():
    assert notes(record(seconds=tuple(0.1 + index * 0.0001 for index in range(40)))) == {}  # 3 %, and certain


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


def test_one_strategy_of_three_rounds_is_too_little_for_a_drift():
    rounds = [record(round=number, seconds=tuple(number * second for second in CALM)) for number in (1, 2, 3)]

    assert "GCP023" not in notes(*rounds)


def test_of_calm_runs_hardly_any_row_is_doubted():
    draw = random.Random(0)

    def calm(name: str, number: int) -> Record:
        return record(name, round=number, seconds=tuple(0.1 * (1 + 0.01 * draw.gauss()) for _ in range(8)))

    runs = [rows([calm(name, number) for number in (1, 2, 3) for name in ("none", "all", "sqrt")]) for _ in range(200)]

    assert sum(bool(doubts([row])) for run in runs for row in run) <= 6  # of 600


@pytest.mark.parametrize(
    ("conditions", "is_said"),
    [
        (busy(0.5, 2.0), True),  # 1.5 of 2 cores
        (busy(0.5, 0.69), False),  # less than a tenth of them
        (busy(0.5, 0.71), True),
        (busy(0.5, 2.0, num_cores=64), False),
        (busy(2.0), False),  # no time has passed
        ((WELL, WELL), False),  # not told
    ],
)
def test_other_processes_on_the_cpu_are_said_from_a_tenth_of_the_cores(conditions, is_said):
    assert ("GCP012" in notes(record(conditions=conditions))) == is_said


def test_short_rounds_are_taken_together():
    short = tuple(msgspec.structs.replace(one, at_seconds=one.at_seconds / 4) for one in busy(0.0, 0.3))

    assert "GCP012" not in notes(record(conditions=short))
    assert "1.2 of 2 cores" in notes(*(record(round=number, conditions=short) for number in (1, 2)))["GCP012"]


def test_the_examples_of_the_pages_are_what_is_said():
    wide = (0.100, 0.095, 0.105, 0.100, 0.096, 0.104)
    made = {
        "GCP012": record(seconds=wide, sampling=Sampling(), stopped="seconds", conditions=busy(0.0, 1.5)),
        "GCP022": record(seconds=tuple(0.2 - index * 0.001 for index in range(40))),
        "GCP023": record(seconds=tuple(0.16 + index * 0.001 for index in range(40))),
        "GCP024": record(conditions=(WELL, THROTTLED)),
        "GCP030": record(host_share=0.97),
        "GCP032": on_a_gpu(record(reserved_bytes=9 * 2**30), total=8 * 2**30),
        "GCP033": record(steps_per_sample=12),
        "GCP034": record(seconds=(100.0, 100.0, 100.0), stopped="limit"),
    }

    for code, one in made.items():
        assert notes(one)[code] in (PAGES / f"{code}.md").read_text(encoding="utf-8"), notes(one)[code]
