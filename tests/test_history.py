"""Recorded histories of the CUDA allocator, beside its simulation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.history import Event, Instant, read, replay
from tests.record_history import save

MIB = 2**20
ONE_SEGMENT = 20 * MIB  # bytes: the largest that requests share
HISTORIES = sorted(Path(__file__).parent.joinpath("histories").glob("*.json"))
ADDRESS = 0x7F0000000000


def instant(allocated: int, reserved: int) -> Instant:
    """Where the simulation is right, in MiB."""
    return Instant(
        allocated=allocated * MIB,
        reserved=reserved * MIB,
        recorded_allocated=allocated * MIB,
        recorded_reserved=reserved * MIB,
    )


def check(instants: tuple[Instant, ...]) -> None:
    assert [one.allocated for one in instants] == [one.recorded_allocated for one in instants]
    peak, recorded = max(one.reserved for one in instants), max(one.recorded_reserved for one in instants)
    assert abs(peak - recorded) <= ONE_SEGMENT


@pytest.mark.slow
def test_a_history_is_replayed_beside_what_it_says():
    events = (
        Event("segment_alloc", ADDRESS, 20 * MIB),
        Event("alloc", ADDRESS, 6 * MIB - 100),  # what was asked for, not yet rounded up
        Event("alloc", ADDRESS + 6 * MIB, 6 * MIB),
        Event("free_requested", ADDRESS, 6 * MIB - 100),
        Event("free_completed", ADDRESS, 6 * MIB - 100),
    )

    instants = replay(events)

    assert instants == (instant(6, 20), instant(12, 20), instant(6, 20))


def test_recorded_blocks_reach_to_the_next_where_the_rest_was_not_cut_off():
    events = (
        Event("segment_alloc", ADDRESS, 20 * MIB),
        Event("alloc", ADDRESS, 9 * MIB),
        Event("alloc", ADDRESS + 9 * MIB, 8 * MIB),
        Event("alloc", ADDRESS + 17 * MIB, 2 * MIB),  # 1 MiB to the end of the segment
        Event("free_completed", ADDRESS, 9 * MIB),
        Event("alloc", ADDRESS, 8 * MIB),  # 1 MiB to the next block
    )

    instants = replay(events)

    assert instants == (instant(9, 20), instant(17, 20), instant(20, 20), instant(11, 20), instant(20, 20))


def test_small_recorded_blocks_are_as_large_as_what_was_asked_for():
    events = (Event("segment_alloc", ADDRESS, 2 * MIB), Event("alloc", ADDRESS, MIB))

    assert replay(events) == (instant(1, 2),)


def test_a_history_in_which_the_device_got_memory_back_is_refused():
    events = (Event("segment_alloc", ADDRESS, 30 * MIB), Event("segment_free", ADDRESS, 30 * MIB))

    with pytest.raises(AssertionError, match="gives nothing back"):
        replay(events)


def test_segments_are_expandable_where_the_history_maps_pages():
    events = (
        Event("segment_map", ADDRESS, 20 * MIB),
        Event("alloc", ADDRESS, 12 * MIB),
        Event("segment_map", ADDRESS + 20 * MIB, 20 * MIB),
        Event("alloc", ADDRESS + 12 * MIB, 12 * MIB),
        Event("free_completed", ADDRESS + 12 * MIB, 12 * MIB),
        Event("alloc", ADDRESS + 12 * MIB, 8 * MIB),
    )

    assert replay(events) == (instant(12, 20), instant(24, 40), instant(12, 40), instant(20, 40))


def test_a_recording_that_differs_shows():
    events = (Event("segment_alloc", ADDRESS, 50 * MIB), Event("alloc", ADDRESS, 6 * MIB))

    with pytest.raises(AssertionError):
        check(replay(events))


def test_what_is_saved_is_read_again_without_what_does_not_count(tmp_path):
    entries = [
        {"action": "segment_alloc", "addr": 0, "size": 20, "stream": 0, "frames": []},
        {"action": "free_requested", "addr": 0, "size": 20, "stream": 0},
        {"action": "oom", "size": 20, "device_free": 3},
    ]

    save(entries, tmp_path / "histories" / "one.json")

    text = (tmp_path / "histories" / "one.json").read_text()
    assert json.loads(text) == [{"action": "segment_alloc", "addr": 0, "size": 20}]
    assert read(tmp_path / "histories" / "one.json") == (Event("segment_alloc", 0, 20),)


def test_a_whole_snapshot_is_read_as_well(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('[{"action": "oom", "size": 20, "device_free": 3}, {"action": "alloc", "addr": 9, "size": 1}]')

    assert read(path) == (Event("oom", 0, 20), Event("alloc", 9, 1))


# A hollow device is opened before torch; the process ends at once, since autograd's thread there may outlive it.
RECORD = """
import os, sys
from profiler.rehearsal.device import open_if_asked
open_if_asked()
from tests.record_history import main
main(*sys.argv[1:])
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_recorded_history_is_reproduced(path):
    check(replay(read(path)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")
@pytest.mark.parametrize("expandable", ["False", "True"])
@pytest.mark.parametrize("model", ["mlp", "mnist-cnn:channels=64", "transformer"])
def test_a_history_of_this_device_is_reproduced(tmp_path, model, expandable):
    path = tmp_path / "history.json"
    words = [sys.executable, "-c", RECORD, model, str(path)]
    setting = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"}

    done = subprocess.run(words, env=os.environ | setting, capture_output=True, text=True, check=True)

    instants = replay(read(path))
    check(instants)
    assert json.loads(done.stdout) == {
        "allocated": max(one.recorded_allocated for one in instants),
        "reserved": max(one.recorded_reserved for one in instants),
    }
