"""What comes down the channel of results and is none: bytes of any kind, lies, too much. A puppet sends them."""

import array
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from profiler.core.case import encode
from profiler.core.record import Record
from profiler.engines.local import Local
from tests import make
from tests.faults.trials import trial
from tests.program import PATIENCE_SECONDS

TRIAL = trial()
GOOD = make.record(case=TRIAL.case)
DEEP = b'{"unknown":' + b"[" * 20_000 + b"]" * 20_000 + b"}\n"


class Puppet:
    """A fork server that starts nothing: its child sends what it is told to, and ends."""

    def __init__(self, sent: bytes) -> None:
        self._sent = sent
        self._ours, self._theirs = socket.socketpair()
        self.control = self
        self.fileno, self.recv = self._ours.fileno, self._ours.recv

    def await_ready(self) -> None: ...

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()

    def sendmsg(self, buffers: list[bytes], control: list[tuple[int, int, Any]]) -> int:
        """The channel and the output come here; what a child would write is written at once, and fits into a pipe."""
        self._begun = b"".join(buffers)
        ((_, _, descriptors),) = control
        channel, _output = array.array("i", descriptors)
        os.write(channel, self._sent)
        return len(self._begun)

    def sendall(self, data: bytes) -> None:
        number = json.loads(self._begun + data)["number"]
        self._theirs.sendall(json.dumps({"number": number, "pid": 1, "status": 0}).encode() + b"\n")


def line(record: Any) -> bytes:
    return encode(record) + b"\n"


def altered(**fields: Any) -> bytes:
    """The good record with other fields, as it is sent."""
    return line(json.loads(encode(GOOD)) | fields)


def of_readings(**fields: Any) -> bytes:
    return altered(readings=json.loads(encode(GOOD.readings)) | fields)


def believed(sent: bytes, logs: Path | None = None) -> Record:
    """What the engine makes of a child that sends this."""
    engine = Local(stage_seconds=PATIENCE_SECONDS, logs=logs)
    engine._servers[False] = Puppet(sent)
    (record,) = engine.run([TRIAL])
    engine._servers[False].close()
    return record


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"garbage\n", "JSON is malformed"),
        (DEEP, "maximum recursion depth exceeded"),
        (line(GOOD)[:100], "Input data was truncated"),
        (line(GOOD) + line(GOOD), "it sent 2 lines"),
        (altered(round=2), "it is of another trial"),
    ],
)
def test_fault_22_what_is_no_result_is_a_failed_trial_and_its_bytes_are_in_the_log(tmp_path, sent, why):
    record = believed(sent, tmp_path)

    assert record.outcome == "failed"
    assert record.detail.startswith(f"bad result: {why}")
    assert b"[gcprof: no result: b'" in (tmp_path / f"{TRIAL.case.id}-1.log").read_bytes()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (of_readings(saved_bytes=-1), "saved_bytes is -1"),
        (of_readings(saved_bytes=101 * make.MIB), "the peak of 100 MiB is below the saved 101 MiB"),
        (altered(built={"num_parameters": -1, "num_blocks": 3, "data": "synthetic"}), "built.num_parameters is -1"),
    ],
)
def test_fault_22_a_lie_is_a_failed_trial_and_its_numbers_are_nobodys(tmp_path, sent, why):
    record = believed(sent, tmp_path)

    assert (record.outcome, record.detail) == ("failed", f"bad result: {why}")
    assert record.readings.peak_bytes is None
    assert b'no result: b\'{"schema":1,"case":' in (tmp_path / f"{TRIAL.case.id}-1.log").read_bytes()


@given(some.binary(max_size=300))
def test_fault_22_any_bytes_at_all_are_a_failed_trial(sent):
    assert believed(sent).outcome == "failed"
