"""A CUDA memory snapshot is read as plain data alone, and explained as PyTorch's allocator and arithmetic say."""

import json
import os
import pickle
import struct

import pytest

from profiler.analysis.live_bytes import THREADS, explain_snapshot
from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.core.trace_data import load_snapshot
from tests.hollow import Hollow, absent

pytestmark = pytest.mark.slow

MIB = 2**20
TRAINED = """
import torch
from torch import nn

kept = []
torch.cuda.memory._record_memory_history(max_entries=100000, stacks="python")
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
optimizer = torch.optim.Adam(model.parameters())
x = torch.zeros(256, 512, device="cuda")
for _ in range(4):
    output = model(x)
    kept.append(output.detach())  # grows
    loss = output.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del output, loss
torch.cuda.memory._dump_snapshot(FILE)
"""
READ = """
import runpy, torch
runpy.run_path(SCRIPT, init_globals={"FILE": FILE})
found = [torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()]
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A snapshot of a few steps on a hollow device, with the allocator's own peak and what it reserved."""
    if why := absent():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("snapshot")
    script, file = folder / "train.py", folder / "snap.pickle"
    script.write_text(TRAINED)
    peak, reserved = Hollow().python(f"SCRIPT, FILE = {str(script)!r}, {str(file)!r}\n{READ}")
    return file, peak, reserved


def line_of(text: str) -> str:
    (number,) = (number for number, line in enumerate(TRAINED.splitlines(), 1) if text in line)
    return f"train.py:{number}"


def test_the_peak_and_what_is_reserved_are_the_allocators_own(recorded):
    file, peak, reserved = recorded

    found = explain_snapshot(load_snapshot(file))

    assert (found.peak_bytes, found.reserved_bytes) == (peak, reserved)
    assert sum(share.nbytes for share in found.categories) == peak
    parameters = 2 * (512 * 512 + 512) * 4
    named = {share.name: share.nbytes for share in found.categories}
    assert named["parameters"] == parameters
    assert named["optimizer"] >= 2 * parameters
    assert THREADS in named


def test_what_a_loop_keeps_is_told_with_its_line_and_bytes_and_parameters_and_state_are_not(recorded):
    found = explain_snapshot(load_snapshot(recorded[0]))

    output = 256 * 512 * 4
    assert [(one.line, one.count, one.nbytes) for one in found.grown] == [(line_of("output = model(x)"), 4, 4 * output)]


def test_the_command_explains_it_and_gives_json(recorded, capsys):
    file, peak, _ = recorded

    assert answer(["explain", "--snapshot", str(file)]) == 0
    shown = capsys.readouterr().out
    assert answer(["explain", "--snapshot", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert f"peak {peak / MIB:.1f} MiB" in shown
    assert "stayed, from time to time" in shown
    assert (document["evidence"], document["peak_bytes"]) == ("recorded", peak)


# --- by hand


def entry(action: str, addr: int, size: int, name: str = "", filename: str = "own.py") -> dict[str, object]:
    frames = [{"filename": filename, "name": name, "line": 7}] if name else []
    return {"action": action, "addr": addr, "size": size, "frames": frames, "time_us": 0}


def test_a_recording_that_begins_late_has_what_was_there_before_in_its_peak():
    blocks = [
        {"size": 2048, "requested_size": 2000, "state": "active_allocated", "address": 0x1000, "frames": []},
        {"size": 1024, "requested_size": 1000, "state": "active_allocated", "address": 0x2000, "frames": []},
        {"size": 4096, "requested_size": 0, "state": "inactive", "address": 0x3000, "frames": []},
    ]
    events = [
        entry("free_requested", 0x9000, 600),  # 1024 bytes, from before
        entry("alloc", 0x2000, 1000, "main"),
        entry("alloc", 0x9000, 5000, "main"),
        entry("free_requested", 0x9000, 5000),
    ]

    found = explain_snapshot(
        {
            "segments": [{"device": 0, "address": 0x1000, "total_size": 8192, "blocks": blocks}],
            "device_traces": [events],
        }
    )

    assert found.peak_bytes == 2048 + 1024 + 5120
    assert (found.peak_event, found.peak_line) == (2, "own.py:7")
    assert (found.end_bytes, found.free_bytes, found.largest_free_bytes) == (3072, 8192 - 3072, 4096)
    assert [(share.name, share.nbytes) for share in found.categories] == [
        ("other", 1024 + 5120),
        ("before the recording", 2048),
    ]


@pytest.mark.parametrize(
    ("filename", "name", "category"),
    [
        ("/x/site-packages/torch/optim/adam.py", "step", "optimizer"),
        ("/x/site-packages/torch/nn/modules/module.py", "_apply", "parameters"),
        ("/x/site-packages/torch/nn/modules/linear.py", "forward", "forward"),
        ("/x/site-packages/torch/utils/checkpoint.py", "unpack_hook", "recomputed"),
        ("C:\\x\\torch\\optim\\adam.py", "step", "optimizer"),
        ("train.py", "main", "other"),
    ],
)
def test_a_stack_tells_the_category(filename, name, category):
    found = explain_snapshot({"segments": [], "device_traces": [[entry("alloc", 1, 512, name, filename)]]})

    assert [share.name for share in found.categories] == [category]


@pytest.mark.parametrize("content", [[], {}, {"segments": 3}, {"segments": [{"total_size": "x"}]}, 7, None])
def test_other_plain_data_are_no_snapshot(content):
    with pytest.raises(UserError, match="not a CUDA memory snapshot"):
        explain_snapshot(content)


# --- hostile pickles


class Opens:
    """Makes a file when it is unpickled by pickle itself."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_object_that_runs_code_is_refused_before_it_does(tmp_path, protocol):
    hostile, made = tmp_path / "hostile", tmp_path / "made"
    hostile.write_bytes(pickle.dumps({"segments": [Opens(str(made))]}, protocol=protocol))

    with pytest.raises(UserError, match="not a pickle of plain data: it asks for"):
        load_snapshot(hostile)

    assert not made.exists()
    pickle.loads(hostile.read_bytes())  # it would have run
    assert made.exists()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x80\x04",
        b"no pickle",
        b"\x80\x04\x95" + struct.pack("<Q", 2**62),  # a frame of 4 EiB
        b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".",  # bytes of 4 EiB
        b"\x80\x04h\x07.",  # of a memo that is empty
        b"(((((.",
    ],
)
def test_what_is_broken_is_told_and_takes_no_memory(tmp_path, text):
    (tmp_path / "broken").write_bytes(text)

    with pytest.raises(UserError, match="not a pickle of plain data"):
        load_snapshot(tmp_path / "broken")
