"""A CUDA memory snapshot is read as plain data alone, and explained as PyTorch's allocator and arithmetic say."""

import os
import pickle
import struct

import pytest

from profiler.analysis.live_bytes import THREADS, explain_snapshot
from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.core.trace_data import load_snapshot

pytestmark = pytest.mark.slow
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


def test_the_peak_and_what_is_reserved_are_the_allocators_own_and_what_a_loop_keeps_is_told(hollow, tmp_path, capsys):
    file, script = tmp_path / "snap.pickle", tmp_path / "train.py"
    script.write_text(TRAINED)
    run = f"import runpy, torch; runpy.run_path({str(script)!r}, init_globals={{'FILE': {str(file)!r}}})"
    peak, reserved = hollow.python(f"{run}\nfound = [torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()]")

    found = explain_snapshot(load_snapshot(file))
    assert answer(["explain", "--snapshot", str(file)]) == 0

    assert (found.peak_bytes, found.reserved_bytes) == (peak, reserved)
    named = {share.name: share.nbytes for share in found.categories}
    assert sum(named.values()) == peak
    assert named["parameters"] == 2 * (512 * 512 + 512) * 4
    assert named["optimizer"] >= 2 * named["parameters"]
    assert THREADS in named
    line = 1 + TRAINED.splitlines().index("    output = model(x)")
    assert [(one.line, one.count, one.nbytes) for one in found.grown] == [(f"train.py:{line}", 4, 4 * 256 * 512 * 4)]
    assert f"peak {peak / 2**20:.1f} MiB" in capsys.readouterr().out


def entry(action: str, addr: int, size: int, name: str = "", filename: str = "own.py") -> dict[str, object]:
    frames = [{"filename": filename, "name": name, "line": 7}] if name else []
    return {"action": action, "addr": addr, "size": size, "frames": frames, "time_us": 0}


def test_a_recording_that_begins_late_has_what_was_there_before_in_its_peak():
    blocks = [
        {"address": address, "size": size, "requested_size": asked, "frames": [],
         "state": "active_allocated" if asked else "inactive"}
        for address, size, asked in ((0x1000, 2048, 2000), (0x2000, 1024, 1000), (0x3000, 4096, 0))
    ]  # fmt: skip
    events = [
        entry("free_requested", 0x9000, 600),  # 1024 bytes, from before
        entry("alloc", 0x2000, 1000, "main"),
        entry("alloc", 0x9000, 5000, "main"),
        entry("free_requested", 0x9000, 5000),
        entry("oom", 0, 9000),
    ]

    segments = [{"device": 0, "address": 0x1000, "total_size": 8192, "blocks": blocks}]
    found = explain_snapshot({"segments": segments, "device_traces": [events]})

    assert (found.peak_bytes, found.failed_bytes) == (2048 + 1024 + 5120, 9000)
    assert (found.peak_event, found.peak_line) == (2, "own.py:7")
    assert (found.end_bytes, found.free_bytes, found.largest_free_bytes) == (3072, 8192 - 3072, 4096)
    shares = [(share.name, share.nbytes) for share in found.categories]
    assert shares == [("other", 1024 + 5120), ("before the recording", 2048)]


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


@pytest.mark.parametrize("content", [[], {}, {"segments": [{"total_size": "x"}]}, None])
def test_other_plain_data_are_no_snapshot(content):
    with pytest.raises(UserError, match="not a CUDA memory snapshot"):
        explain_snapshot(content)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_object_that_runs_code_is_refused_before_it_does(tmp_path, protocol):
    class Opens:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    hostile = tmp_path / "hostile"
    hostile.write_bytes(pickle.dumps({"segments": [Opens()]}, protocol=protocol))

    with pytest.raises(UserError, match="not a pickle of plain data: it asks for"):
        load_snapshot(hostile)

    assert not (tmp_path / "made").exists()
    pickle.loads(hostile.read_bytes())  # it would have run
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize(  # no pickle, a frame of 4 EiB, and a memo that is empty
    "text", [b"", b"no pickle", b"\x80\x04\x95" + struct.pack("<Q", 2**62), b"\x80\x04h\x07."]
)
def test_what_is_broken_is_told_and_takes_no_memory(tmp_path, text):
    (tmp_path / "broken").write_bytes(text)

    with pytest.raises(UserError, match="not a pickle of plain data"):
        load_snapshot(tmp_path / "broken")
