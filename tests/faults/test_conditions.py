"""What devices say of themselves, or do not: NVML and clocks that are written down."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from profiler.analysis.rows import rows
from profiler.core.record import Record
from profiler.measuring.devices import cuda as nvidia
from tests.gpu_records import THROTTLED, WELL, notes, record
from tests.nvml import NotSupported, Nvml

MISMATCH = "Driver/library version mismatch"
SLOW = msgspec.structs.replace(WELL, clock_hertz=0.99e9)  # half of the usual


def no_driver() -> None:
    raise NotSupported(MISMATCH)


# --- 9: NVML that does not answer


@pytest.mark.parametrize(
    ("library", "uuid", "why"),
    [
        (None, "12-34", "pynvml is not installed: pip install 'gcprof[gpu]'"),
        (Nvml(init=no_driver), "12-34", f"NVML: {MISMATCH}"),
        (Nvml(), "56-78", "NVML: GPU-56-78"),
    ],
)
def test_fault_09_without_nvml_or_the_board_there_is_a_reason(monkeypatch, library, uuid, why):
    monkeypatch.setattr(nvidia, "pynvml", library)

    assert nvidia.find_board(uuid) == why


def test_fault_09_a_mig_device_is_found_by_its_own_name(monkeypatch):
    monkeypatch.setattr(nvidia, "pynvml", Nvml(uuid="MIG-56"))

    assert isinstance(nvidia.find_board("MIG-56"), nvidia.Board)


# --- 47: throttling, clocks, temperature


def test_fault_47_a_clock_that_is_held_down_says_by_what_and_how_far():
    found = notes(record(conditions=(WELL, THROTTLED)))

    assert found["GCP024"].startswith(
        "the clock was held down by heat: 1,410 MHz to 1,980 MHz of 1,980 MHz, up to 84 C, up to 690 W of 700 W;"
    )


def test_fault_47_a_clock_that_falls_is_held_down_also_where_nothing_says_by_what():
    slow = msgspec.structs.replace(WELL, clock_hertz=1.8e9)

    assert "GCP024" in notes(record(conditions=(WELL, slow)))
    assert "GCP024" not in notes(record(conditions=(slow, WELL)))  # it rose: the device was idle before
    assert "GCP024" not in notes(record(conditions=(slow, slow)))  # a locked clock


def at_half_the_clock(**told: Any) -> list[Record]:
    """`all` takes twice as long as `none`, with half the clock: as many cycles."""
    none = record("none", seconds=(0.1,) * 6, conditions=(WELL, WELL))
    return [none, record("all", seconds=(0.2,) * 6, **{"conditions": (SLOW, SLOW), **told})]


def test_fault_47_a_ratio_between_two_clocks_is_told_in_cycles_too():
    none, half = rows(at_half_the_clock())

    (text,) = (note.text for note in half.notes if note.code == "GCP024")
    assert half.time_ratio == 2  # the result is still shown
    assert "a round ran at 990 MHz, that of its baseline at 1,980 MHz" in text
    assert text.endswith("; in cycles the step is 0.0 %")
    assert none.notes == ()


def test_fault_47_steps_that_alternate_share_a_clock_whatever_that_of_the_baselines_round_was():
    none, half = at_half_the_clock()
    readings = msgspec.structs.replace(half.readings, plain_step_seconds=half.readings.step_seconds)

    row = rows([none, msgspec.structs.replace(half, readings=readings)])[1]

    assert row.time is not None
    assert row.time.num_pairs == 6
    assert "GCP024" not in {note.code for note in row.notes}
