"""What held each phase's peak in a rehearsed script: held to arithmetic."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from profiler.core.units import MIB
from profiler.scripts.launch import INJECT
from tests.scripts.runs import rehearsed

SPEC = spec_from_file_location("gcprof_history", INJECT / "gcprof_history.py")
history = module_from_spec(SPEC)
sys.modules[SPEC.name] = history  # for its dataclass
SPEC.loader.exec_module(history)

TINY = """
import torch
from torch import nn

torch.backends.cuda.matmul.allow_tf32 = True
with torch.no_grad():
    nn.Linear(8, 8)(torch.ones(8))  # on the CPU, as weight_norm is called while a model is made
kept = [torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")]  # 64 MiB
model = nn.Linear(1024, 1024, bias=False, device="cuda")  # 4 MiB
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(12):
    x = torch.ones(256, 1024, device="cuda")  # 1 MiB
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    big = torch.empty((100 + step // 11 * 2) * 2**20, dtype=torch.uint8, device="cuda")  # at last 102 MiB
    del big
    optimizer.zero_grad()
"""

SAVES = """
import sys, torch
from unittest import mock

model = torch.nn.Linear(8, 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(8, 8, device="cuda")).sum().backward()
optimizer.step()
with mock.patch("torch._C._cuda_memorySnapshot", wraps=torch._C._cuda_memorySnapshot) as snapshot:
    for _ in range(int(sys.argv[1])):
        torch.save(model.weight, "weight.pt")
        model(torch.ones(8, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
print("histories read", snapshot.call_count, file=sys.stderr)
"""


def entry(action, address, size):
    return {"action": action, "addr": address, "size": size, "frames": ()}


def freed(address, size):
    return [entry("free_requested", address, size), entry("free_completed", address, size)]


def test_a_block_takes_what_the_settings_of_the_allocator_round_its_request_to_or_all_that_is_free():
    for settings, mib in (({"roundup_power2_divisions": {"8": 4}}, 14), ({"max_split_size": 8 * MIB}, 20)):
        space = history.Space([], settings)
        space.follow(entry("segment_alloc", 0, 20 * MIB))

        assert space.follow(entry("alloc", 0, 12 * MIB + 1)) == mib * MIB


def test_what_pip_installed_is_a_library_but_for_the_module_that_was_started(tmp_path, monkeypatch):
    for name in ("libs/trainer.py", "libs/trainer-1.0.dist-info/METADATA", "mine/model.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "app-1.0.dist-info").mkdir()  # installed beside the script, as images of containers have it
    places = [tmp_path / "mine", tmp_path, tmp_path / "libs"]
    monkeypatch.setattr(sys, "path", [*map(str, places), *sys.path])
    monkeypatch.setattr(sys.modules["__main__"], "__file__", started := "/site-packages/trl/sft.py", raising=False)

    files = tmp_path / "libs/trainer.py", "/site-packages/trl/core.py", tmp_path / "mine/model.py", started
    assert [history.is_the_users(str(file)) for file in files] == [False, False, True, True]


def test_blocks_are_cut_to_requests_and_free_parts_grow_together_within_a_segment():
    space = history.Space()
    cut = [
        entry("segment_alloc", 0, 20 * MIB),
        entry("alloc", 0, 12 * MIB + 1),  # rounded up to 512 bytes
        entry("alloc", 12 * MIB + 512, 7 * MIB),  # a MiB less 512 bytes is left, and stays with it
    ]
    grown = [
        *(entry("segment_alloc", address * MIB, 4 * MIB) for address in (64, 68, 72)),
        *(entry("alloc", address * MIB, 2 * MIB) for address in (64, 66, 68, 70, 72)),
        *(one for address in (64, 66, 68, 72, 70) for one in freed(address * MIB, 2 * MIB)),
    ]

    replayed = history.replay({}, space, cut)
    history.replay(replayed.live, space, grown)

    assert replayed.peak_bytes == 20 * MIB
    assert [block.nbytes for block in replayed.held] == [12 * MIB + 512, 8 * MIB - 512]
    assert space.free == {64 * MIB: 4 * MIB, 68 * MIB: 4 * MIB, 72 * MIB: 4 * MIB}


def test_what_is_live_before_counts_and_what_is_freed_before_the_peak_does_not():
    old = history.Block(0, 512, 512)
    gone = history.Block(512, 512, 512)
    entries = [*freed(512, 512), entry("alloc", 1024, 600), entry("alloc", 4096, 1), *freed(1024, 600)]

    replayed = history.replay({0: old, 512: gone}, history.Space(), entries, phase="forward")

    assert replayed.peak_bytes == 512 + 1024 + 512
    assert [block.address for block in replayed.held] == [0, 1024, 4096]
    assert replayed.peak.address == 4096
    assert list(replayed.live) == [0, 4096]


def test_modules_are_named_without_wrappers():
    names = ("_orig_mod.h.3", "layers.0._checkpoint_wrapped_module", "_orig_mod")
    assert [history.without_wrappers(name) for name in names] == ["h.3", "layers.0", ""]


def test_holders_are_together_all_of_the_bytes():
    blocks = [history.Block(at, 512 * at, 1, line=f"a.py:{at}", category="other", module="m.0") for at in range(1, 9)]

    found = history.holders([*blocks, history.Block(9, 512, 1, line="a.py:8", category="other", module="m.1.x")])

    assert [row["line"] for row in found] == ["a.py:8", "a.py:7", "a.py:6", "a.py:5", "a.py:4", ""]
    assert found[0] == {"category": "other", "line": "a.py:8", "module": "m", "num": 2, "nbytes": 512 * 9}
    assert found[-1]["category"] == "rest"
    assert sum(row["nbytes"] for row in found) == 512 * (sum(range(1, 9)) + 1)


@pytest.mark.parametrize(
    ("counts", "expected"), [([1, 2, 3, 3, 4], 0), ([4, 1, 2, 3, 4, 5, 0], 4)], ids=["not in a row", "emptied"]
)
def test_growth_is_more_blocks_several_steps_in_a_row(counts, expected):
    growth = history.Growth()

    for count in counts:
        growth.step(history.Block(at, 512, 1, line="a.py:1") for at in range(count))

    assert growth.lines() == ([{"line": "a.py:1", "num_steps": expected, "nbytes": 512 * expected}] if expected else [])


def at(text, code):
    """The place of the line that begins with this code."""
    return f"tiny.py:{next(n for n, line in enumerate(text.splitlines(), 1) if line.strip().startswith(code))}"


@pytest.mark.slow
def test_blocks_of_known_sizes_are_named_with_category_and_line(folder):
    (folder / "tiny.py").write_text(TINY)

    (process,) = rehearsed(("python", "tiny.py"), cwd=folder).document["variants"][0]["processes"]

    later = {phase["name"]: phase for phase in process["phases"] if not phase["is_first_step"]}
    held = {
        name: {(row["category"], row["line"]): (row["num"], row["nbytes"]) for row in phase["holders"]}
        for name, phase in later.items()
    }
    peak = held["after the step"]
    assert later["after the step"]["line"] == at(TINY, "big =")
    assert peak["other", at(TINY, "kept =")] == (1, 64 * MIB)
    assert peak["parameters", at(TINY, "model =")] == (1, 4 * MIB)
    assert peak["optimizer state", at(TINY, "optimizer.step")] == (2, 8 * MIB)
    assert peak["temporaries", at(TINY, "big =")] == (1, 102 * MIB)
    assert peak["gradients", at(TINY, "loss.backward")] == (1, 4 * MIB)  # long before the histories are read
    assert held["optimizer"]["gradients", at(TINY, "loss.backward")][1] == 4 * MIB
    assert held["forward"]["inputs", at(TINY, "x =")][1] == MIB
    assert [phase["name"] for phase in process["phases"]][:2] == ["start", "forward"]
    for phase in process["phases"]:
        assert sum(holder["nbytes"] for holder in phase["holders"]) == phase["peak_bytes"], phase["name"]


@pytest.mark.slow
def test_no_history_is_read_for_each_of_many_steps_or_of_many_tensors_saved(hollow, tmp_path):
    """As torch.distributed.checkpoint saves them: each is a phase in which nothing is allocated."""
    (tmp_path / "saves.py").write_text(SAVES)

    few, many = (rehearsed(("python", "saves.py", number), cwd=tmp_path) for number in ("3", "100"))

    (process,) = many.document["variants"][0]["processes"]
    assert [phase["num"] for phase in process["phases"] if phase["name"] == "saving"] == [100]
    assert re.findall(r"histories read \d+", few.said) == re.findall(r"histories read \d+", many.said) != []
