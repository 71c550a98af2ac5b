import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analysis import progress
from profiler.analysis.rows import rows
from profiler.core.case import Trial
from profiler.core.record import Equality, Readings
from tests import make
from tests.make import MIB


def test_a_row_is_compared_with_the_same_case_without_checkpointing():
    none = make.record("none", peak=100 * MIB, seconds=(0.10, 0.10))
    half = make.record("segments:k=2", peak=50 * MIB, seconds=(0.125, 0.125))
    wrong = make.record("all", peak=1, seconds=(0.01,), outcome="invalid")
    other = make.record("none", peak=1 * MIB, batch_size=1, seconds=(0.0, 0.0))

    _, of_no_time, row, invalid, without = rows([none, other, half, wrong, make.record("all", batch_size=2)])

    assert (row.peak_ratio, row.time_ratio) == (0.5, 1.25)
    assert (invalid.peak_ratio, invalid.time_ratio, invalid.time_ratio_range) == (None, None, None)
    assert not invalid.on_frontier
    assert (without.peak_ratio, without.time_ratio, of_no_time.step_spread) == (None, None, None)
    assert of_no_time.on_frontier  # of its own group


def test_rounds_are_compared_within_a_round_so_that_drift_cancels():
    records = [
        make.record("none", round=1, seconds=(0.1,)),
        make.record("segments:k=2", round=2, seconds=(0.26,)),
        make.record("segments:k=2", round=1, seconds=(0.12,)),
        make.record("none", round=2, seconds=(0.2,)),
    ]

    row = rows(records)[1]

    assert row.time_ratio_range == (0.12 / 0.1, 0.26 / 0.2)
    assert row.readings.step_seconds == (0.12, 0.26)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([make.record("none"), make.failed("none", "crashed", "signal 11", round=2)], ("crashed", "signal 11")),
        ([make.failed("none", "timed_out", "after 60 s"), make.record("none")], ("ok", None)),  # it was run again
    ],
)
def test_a_round_that_went_wrong_speaks_for_the_case_unless_it_was_run_again(records, expected):
    (row,) = rows(records)

    assert (row.outcome, row.detail) == expected


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
        make.record("f", equality=msgspec.structs.replace(near, largest_difference=0.5, noise_floor=0.5)),
        make.failed("g", "skipped", "why"),
    ]

    words = [row.gradients for row in rows(records)]

    assert words == ["bit-equal", "within noise", "differ", "missing", "not checked", "not verifiable", "-"]


def test_a_plan_owes_what_has_no_record_and_a_crash_is_a_failure():
    plan = [Trial(case=make.case(name), round=number) for number in (1, 2) for name in ("none", "segments:k=2")]
    records = [make.record("none"), make.failed("segments:k=2", "out_of_memory", "96 MiB")]

    owed = progress.owed(plan, records)

    assert owed == (Trial(case=make.case("none"), round=2),)  # the other one's first round was not ok
    assert progress.status(plan, records) == "partial"
    assert progress.status(plan[::2], [make.record("none"), make.record("none", round=2)]) == "complete"
    assert progress.exit_code(records) == 0  # running out of memory is a finding
    assert progress.exit_code([*records, make.failed("segments:k=3", "crashed", "signal 11")]) == 1


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"saved_bytes": 40}, "the forward saves 40 B, as without it"),
        ({"saved_bytes": 90}, "the forward saves 90 B, and 40 B without checkpoints"),
        ({"start_bytes": 70}, "70 B of the peak's 100 B is static"),
        ({}, "holds 70 B of the peak's 100 B"),
        ({"peak_bytes": 97}, None),  # it fell
        ({"saved_bytes": None}, None),  # not known
    ],
)
def test_a_peak_that_did_not_fall_has_its_largest_part_named(changed, named):
    read = {"peak_bytes": 100, "start_bytes": 10, "saved_bytes": 20, "peak_gradient_bytes": 0, "peak_phase": "backward"}
    records = [
        make.record("none", readings=Readings(**{**read, "saved_bytes": 40})),
        make.record("all", readings=Readings(**{**read, **changed})),
    ]

    none, every = rows(records)

    assert "GCP067" not in {note.code for note in none.notes}
    assert [named in note.text for note in every.notes if note.code == "GCP067"] == [True] * (named is not None)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=30))
def test_the_frontier_is_what_its_definition_says(points):
    records = [
        make.record(f"segments:k={index}", peak=peak, seconds=(float(seconds),) * 2)
        for index, (peak, seconds) in enumerate(points, start=1)
    ]

    beaten = [any(other != one and other[0] <= one[0] and other[1] <= one[1] for other in points) for one in points]
    assert [not row.on_frontier for row in rows(records)] == beaten
