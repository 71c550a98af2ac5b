import random

import msgspec

from profiler.analysis import progress
from profiler.analysis.composition import compose
from profiler.analysis.rows import rows
from profiler.case import Trial
from profiler.record import Equality, Readings
from profiler.series.spread import spread
from tests import make
from tests.make import MIB


def test_a_row_is_compared_with_the_same_case_without_checkpointing():
    none = make.record("none", peak=100 * MIB, seconds=(0.10, 0.10))
    half = make.record("segments:k=2", peak=50 * MIB, seconds=(0.125, 0.125))
    other = make.record("none", peak=1 * MIB, case=make.case("none", batch_size=1))

    row = rows([none, other, half])[2]

    assert row.peak_ratio == 0.5
    assert row.time_ratio == 1.25


def test_a_row_without_its_baseline_has_no_ratios():
    row = rows([make.record("segments:k=2")])[0]

    assert row.peak_ratio is None
    assert row.time_ratio is None


def test_rounds_are_compared_within_a_round_so_that_drift_cancels():
    records = [
        make.record("none", round=1, seconds=(0.1,)),
        make.record("segments:k=2", round=1, seconds=(0.12,)),
        make.record("segments:k=2", round=2, seconds=(0.26,)),
        make.record("none", round=2, seconds=(0.2,)),
    ]

    row = rows(records)[1]

    assert row.time_ratio_range == (0.12 / 0.1, 0.26 / 0.2)
    assert row.readings.step_seconds == (0.12, 0.26)


def test_samples_stand_in_the_order_of_the_rounds():
    records = [make.record("none", round=2, seconds=(0.2,)), make.record("none", round=1, seconds=(0.1,))]

    assert rows(records)[0].readings.step_seconds == (0.1, 0.2)


def test_a_row_that_is_not_ok_is_no_saving():
    none = make.record("none")
    wrong = make.record("segments:k=2", peak=1, seconds=(0.01,), outcome="invalid")

    row = rows([none, wrong])[1]

    assert (row.peak_ratio, row.time_ratio, row.time_ratio_range, row.on_frontier) == (None, None, None, False)


def test_a_later_round_that_went_wrong_speaks_for_the_case():
    records = [make.record("none"), make.failed("none", "crashed", "signal 11", round=2)]

    row = rows(records)[0]

    assert (row.outcome, row.detail) == ("crashed", "signal 11")


def test_a_trial_that_was_run_again_replaces_its_first_attempt():
    records = [make.failed("none", "timed_out", "after 60 s"), make.record("none", seconds=(0.3,))]

    row = rows(records)[0]

    assert row.outcome == "ok"
    assert row.step_seconds == 0.3


def test_the_frontier_is_what_nothing_else_beats():
    records = [
        make.record("none", peak=100, seconds=(1.0,)),
        make.record("segments:k=2", peak=50, seconds=(1.2,)),
        make.record("segments:k=3", peak=60, seconds=(1.3,)),
        make.record("segments:k=4", peak=50, seconds=(1.2,)),
    ]

    assert [row.on_frontier for row in rows(records)] == [True, True, False, True]


def test_gradients_are_called_by_what_the_equality_pass_found():
    same = Equality(loss_equal=True, gradients_equal=True, buffers_equal=True, random_state_equal=True)
    near = Equality(loss_equal=True, gradients_equal=False, buffers_equal=True, random_state_equal=True)
    gone = Equality(loss_equal=True, gradients_equal=True, buffers_equal=True, random_state_equal=True, missing=("w",))
    records = [
        make.record("a", equality=same),
        make.record("b", equality=near),
        make.record("c", equality=near, outcome="invalid"),
        make.record("d", equality=gone, outcome="invalid"),
        make.record("e", equality=None),
        make.failed("f", "skipped", "why"),
    ]

    words = [row.gradients for row in rows(records)]

    assert words == ["bit-equal", "within noise", "differ", "missing", "not checked", "-"]


def test_the_spread_is_half_the_interquartile_range_over_the_median():
    assert spread((8.0, 9.0, 10.0, 11.0, 12.0)) == (11 - 9) / 2 / 10
    assert spread((1.0,)) is None


def test_the_parts_of_the_peak_sum_to_the_peak():
    readings = Readings(start_bytes=10, saved_bytes=60, peak_bytes=100, peak_phase="backward", peak_gradient_bytes=5)

    parts = compose(readings)

    assert parts is not None
    assert (parts.static, parts.saved, parts.transient) == (15, 60, 100 - 15 - 60)


def test_a_peak_in_the_optimizer_holds_no_saved_activations():
    readings = Readings(start_bytes=10, saved_bytes=60, peak_bytes=30, peak_phase="optimizer", peak_gradient_bytes=10)

    parts = compose(readings)

    assert parts is not None
    assert (parts.static, parts.saved, parts.transient) == (20, 0, 10)


def test_a_peak_of_which_a_part_was_not_measured_is_not_split():
    assert compose(Readings(peak_bytes=100, saved_bytes=60)) is None


def test_a_plan_owes_what_has_no_record():
    plan = [Trial(case=make.case(name), round=number) for number in (1, 2) for name in ("none", "segments:k=2")]
    records = [make.record("none"), make.failed("segments:k=2", "out_of_memory", "96 MiB")]

    owed = progress.owed(plan, records)

    assert owed == (Trial(case=make.case("none"), round=2),)  # the other one's first round was not ok
    assert progress.status(plan, records) == "partial"


def test_a_plan_without_debts_is_complete():
    plan = [Trial(case=make.case("none"), round=number) for number in (1, 2)]

    assert progress.status(plan, [make.record("none"), make.record("none", round=2)]) == "complete"


def test_running_out_of_memory_is_a_finding_and_a_crash_is_a_failure():
    found = [make.record("none"), make.failed("segments:k=2", "out_of_memory", "96 MiB")]

    assert progress.exit_code(found) == 0
    assert progress.exit_code([*found, make.failed("segments:k=3", "crashed", "signal 11")]) == 1


def test_noisy_times_carry_a_note_that_names_what_helps():
    calm, noisy = rows(
        [make.record(seconds=(0.100, 0.101, 0.102)), make.record("segments:k=2", seconds=(0.1, 0.2, 0.4))]
    )

    assert [note.code for note in calm.notes] == []
    assert [note.code for note in noisy.notes] == ["GCP012"]
    assert "--rounds" in noisy.notes[0].text


def test_a_noise_floor_as_large_as_the_gradients_makes_equality_not_verifiable():
    found = msgspec.structs.replace(
        make.record().equality, gradients_equal=False, largest_difference=0.5, noise_floor=0.5
    )

    (row,) = rows([make.record(equality=found)])

    assert row.gradients == "not verifiable"


def test_a_step_of_no_time_is_no_division_by_zero():
    none, other = rows([make.record(seconds=(0.0, 0.0)), make.record("segments:k=2")])

    assert (none.step_spread, other.time_ratio) == (None, None)


def test_the_frontier_of_many_points_is_what_comparing_each_with_each_finds():
    source = random.Random(0)
    points = [(source.randrange(1, 20), source.randrange(1, 20)) for _ in range(200)]
    records = [
        make.record(f"segments:k={number + 2}", peak=peak * MIB, seconds=(float(seconds),))
        for number, (peak, seconds) in enumerate(points)
    ]

    found = [row.on_frontier for row in rows(records)]

    beaten = [any(p != q and q[0] <= p[0] and q[1] <= p[1] for q in points) for p in points]
    assert found == [not one for one in beaten]
    assert 0 < sum(found) < len(points)
