"""What comes down the channel of results and is none: bytes of any kind, lies, too much."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from profiler.core.case import encode
from profiler.core.record import Built, Record
from profiler.engines.child import Child, Ended
from profiler.engines.local import _record_of_end
from tests import make
from tests.faults.trials import trial

TRIAL = trial()
GOOD = make.record(case=TRIAL.case)


def line(record: Any) -> bytes:
    return encode(record) + b"\n"


def altered(**fields: Any) -> bytes:
    """A good record with other fields, as it is sent."""
    return line(make.record(case=TRIAL.case, **fields))


def believed(sent: bytes, log: Path | None = None) -> Record:
    """What the engine makes of a child that sent this and ended well."""
    child = Child(None, "", "", log=log)
    child._take_lines(sent)
    record = _record_of_end(child, TRIAL, Ended(status=0, stage="memory"))
    child.log.close()
    return record


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"garbage\n", "JSON is malformed"),
        (b'{"unknown":' + b"[" * 20_000 + b"]" * 20_000 + b"}\n", "maximum recursion depth exceeded"),
        (line(GOOD)[:100], "Input data was truncated"),
        (line(GOOD) + line(GOOD), "it sent 2 lines"),
        (altered(round=2), "it is of another trial"),
        (altered(saved_bytes=-1), "saved_bytes is -1"),
        (altered(saved_bytes=101 * make.MIB), "the peak of 100 MiB is below the saved 101 MiB"),
        (altered(built=Built(num_parameters=-1, num_blocks=3, data="synthetic")), "built.num_parameters is -1"),
    ],
)
def test_fault_22_what_is_no_result_or_a_lie_is_a_failed_trial_and_its_bytes_are_in_the_log(tmp_path, sent, why):
    record = believed(sent, tmp_path / "log")

    assert record.outcome == "failed"
    assert record.detail.startswith(f"bad result: {why}")
    assert record.readings.peak_bytes is None
    assert b"[gcprof: no result: b'" + sent[:7] in (tmp_path / "log").read_bytes()


@given(some.binary(max_size=300))
def test_fault_22_any_bytes_at_all_are_a_failed_trial(sent):
    assert believed(sent).outcome == "failed"
