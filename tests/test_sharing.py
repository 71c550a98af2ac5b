"""What the records of a run share when they are read: the same objects, and not a byte less."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from profiler.core.case import Choice, encode
from profiler.core.record import Record
from tests import examples, make

NAMES = ("none", "all", "segments:k=2")


def records() -> list[Record]:
    """With what is equal, what is not, and texts that are a Choice in one field and none in another."""
    made = [make.record(name) for name in NAMES]
    case = msgspec.structs.replace(made[0].case, optimizer=Choice("cpu"), data="files", verify="off")
    digested = msgspec.structs.replace(made[1].equality, digests={"loss": "1"})
    return [
        *made,
        msgspec.structs.replace(made[0], case=case),
        msgspec.structs.replace(made[1], round=2, equality=digested),
        make.record("sqrt", static=1),
    ]


@pytest.mark.slow
def test_what_is_read_is_what_was_written(tmp_path: Path):
    run = examples.run(tmp_path / "run", records())

    assert run.records == tuple(records())
    text = b"".join(encode(record) + b"\n" for record in run.records)
    assert text == (tmp_path / "run" / "trials.jsonl").read_bytes()
    assert all(isinstance(record.case.optimizer, Choice) for record in run.records)
    assert not any(isinstance(record.case.device, Choice) for record in run.records)


def test_equal_parts_of_records_are_one_object(tmp_path: Path):
    first, second, third, *_ = examples.run(tmp_path / "run", records()).records

    for one, other in ((first, second), (second, third)):
        assert one.environment is other.environment
        assert one.built is other.built
        assert one.case.model is other.case.model
        assert one.readings.static_bytes is other.readings.static_bytes
    assert second.equality is third.equality
