"""What held each phase's peak in a rehearsed script: held to arithmetic, and to PyTorch's own snapshots by hand."""

import json
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from profiler.core.units import MIB
from profiler.scripts.launch import INJECT
from tests.scripts.runs import TABLE, control, line_of, rehearsed

SPEC = spec_from_file_location("gcprof_history", INJECT / "gcprof_history.py")
history = module_from_spec(SPEC)
sys.modules[SPEC.name] = history  # for its dataclass
SPEC.loader.exec_module(history)

TINY = """
import torch
from torch import nn

torch.backends.cuda.matmul.allow_tf32 = True
kept = [torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")]  # 64 MiB
model = nn.Linear(1024, 1024, bias=False, device="cuda")  # 4 MiB
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(3):
    x = torch.ones(256, 1024, device="cuda")  # 1 MiB
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    big = torch.empty(100 * 2**20, dtype=torch.uint8, device="cuda")  # 100 MiB
    del big
"""


def entry(action, address, size):
    return {"action": action, "addr": address, "size": size, "frames": ()}


def freed(address, size):
    return [entry("free_requested", address, size), entry("free_completed", address, size)]


def test_a_block_is_cut_to_its_request_unless_too_little_of_a_large_part_is_left():
    entries = [
        entry("segment_alloc", 0, 20 * MIB),
        entry("alloc", 0, 12 * MIB + 1),  # rounded up to 512 bytes
        entry("alloc", 12 * MIB + 512, 7 * MIB),  # a MiB less 512 bytes is left, and stays with it
    ]

    replayed = history.replay({}, history.Space(), entries)

    assert replayed.peak_bytes == 20 * MIB
    assert [block.nbytes for block in replayed.held] == [12 * MIB + 512, 8 * MIB - 512]


def test_free_parts_of_a_segment_grow_together_and_those_of_two_do_not():
    entries = [
        entry("segment_alloc", 0, 4 * MIB),
        entry("segment_alloc", 4 * MIB, 4 * MIB),
        *(entry("alloc", address, 2 * MIB) for address in (0, 2 * MIB, 4 * MIB)),
        *freed(0, 2 * MIB),
        *freed(2 * MIB, 2 * MIB),
        *freed(4 * MIB, 2 * MIB),
    ]
    space = history.Space()

    history.replay({}, space, entries)

    assert space.free == {0: 4 * MIB, 4 * MIB: 4 * MIB}
    assert space.taken == {}


def test_what_is_live_before_counts_and_what_is_freed_before_the_peak_does_not():
    old = history.Block(0, 512, 512)
    gone = history.Block(512, 512, 512)
    entries = [*freed(512, 512), entry("alloc", 1024, 600), entry("alloc", 4096, 1), *freed(1024, 600)]

    replayed = history.replay({0: old, 512: gone}, history.Space(), entries, phase="forward")

    assert replayed.peak_bytes == 512 + 1024 + 512
    assert [block.address for block in replayed.held] == [0, 1024, 4096]
    assert replayed.peak.address == 4096
    assert list(replayed.live) == [0, 4096]


def test_holders_are_together_all_of_the_bytes():
    blocks = [history.Block(at, 512 * at, 1, line=f"a.py:{at}", category="other", module="m.0") for at in range(1, 9)]

    found = history.holders([*blocks, history.Block(9, 512, 1, line="a.py:8", category="other", module="m.1.x")])

    assert [row["line"] for row in found] == ["a.py:8", "a.py:7", "a.py:6", "a.py:5", "a.py:4", ""]
    assert found[0] == {"category": "other", "line": "a.py:8", "module": "m", "num": 2, "nbytes": 512 * 9}
    assert found[-1]["category"] == "rest"
    assert sum(row["nbytes"] for row in found) == 512 * (sum(range(1, 9)) + 1)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1, 2, 3, 4], 3),
        ([1, 2, 3, 3, 4], 0),  # not in a row
        ([4, 1, 2, 3, 4, 5, 0], 4),  # emptied at the end of an epoch
        ([5, 5, 5, 5, 5], 0),
    ],
)
def test_growth_is_more_blocks_several_steps_in_a_row(counts, expected):
    growth = history.Growth()

    for count in counts:
        growth.step(history.Block(at, 512, 1, line="a.py:1") for at in range(count))

    assert growth.lines() == ([{"line": "a.py:1", "num_steps": expected, "nbytes": 512 * expected}] if expected else [])


def process_of(run):
    (process,) = run.document["variants"][0]["processes"]
    return process


def phase_of(process, name, *, is_first=False):
    (phase,) = (phase for phase in process["phases"] if phase["name"] == name and phase["is_first_step"] == is_first)
    return phase


def at(text, code):
    """The number of the line that begins with this code."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith(code))


def bytes_of(holders):
    return sum(holder["nbytes"] for holder in holders)


@pytest.mark.slow
def test_blocks_of_known_sizes_are_named_with_category_and_line(folder):
    (folder / "tiny.py").write_text(TINY)

    process = process_of(rehearsed(("python", "tiny.py"), cwd=folder))

    peak = phase_of(process, "after the step")
    held = {(row["category"], row["line"]): (row["num"], row["nbytes"]) for row in peak["holders"]}
    name = "tiny.py:{}".format
    assert peak["line"] == name(at(TINY, "big ="))
    assert held["other", name(at(TINY, "kept ="))] == (1, 64 * MIB)
    assert held["parameters", name(at(TINY, "model ="))] == (1, 4 * MIB)
    assert held["optimizer state", name(at(TINY, "optimizer.step"))] == (2, 8 * MIB)
    assert held["temporaries", name(at(TINY, "big ="))] == (1, 100 * MIB)
    gradients = phase_of(process, "optimizer")["holders"]
    assert ("gradients", name(at(TINY, "loss.backward")), 4 * MIB) in {
        (row["category"], row["line"], row["nbytes"]) for row in gradients
    }
    inputs = phase_of(process, "forward")["holders"]
    assert ("inputs", name(at(TINY, "x =")), MIB) in {(row["category"], row["line"], row["nbytes"]) for row in inputs}
    for phase in process["phases"]:
        assert bytes_of(phase["holders"]) == phase["peak_bytes"], phase["name"]


WITNESS = """
import atexit as _atexit, json as _json, torch as _torch
_torch.cuda.memory._record_memory_history(max_entries=10**6, context="alloc", stacks="python")

def _tell():
    live, most, peak, now, line = {}, 0, {}, 0, ""
    for entry in max(_torch.cuda.memory._snapshot()["device_traces"], key=len):
        own = [frame for frame in entry["frames"] if frame["filename"].endswith(_NAME)]
        at = f"{_NAME}:{own[0]['line'] - _SHIFT}" if own else ""
        if entry["action"] == "alloc":
            live[entry["addr"]] = (-(-entry["size"] // 512) * 512, at)
            now += live[entry["addr"]][0]
            if now > most:
                most, peak, line = now, dict(live), at
        elif entry["action"] == "free_requested":
            now -= live.pop(entry["addr"])[0]
    print("WITNESS", _json.dumps([most, line, list(peak.values())]))

_atexit.register(_tell)
"""
WITNESSED = ("vae", "gan", "nanogpt_like", "imagenet_like", "unet_diffusion", "word_language_model")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.nightly) for name in WITNESSED])
def test_line_and_holders_of_the_peak_are_those_of_pytorchs_own_history(name, folder, kept):
    """What a block takes beyond its request, up to 1 MiB of a large one, no entry of the history says."""
    script = TABLE[name]
    process = process_of(rehearsed(script.words, cwd=folder))
    path = folder / f"{name}.py"
    shift = len(WITNESS.splitlines()) + 2
    path.write_text(f"_NAME, _SHIFT = {path.name!r}, {shift}\n{WITNESS}\n{path.read_text()}")

    done = control(script.words, cwd=folder, kept=kept, decided=script.decided)

    (told,) = (line for line in done.said.splitlines() if line.startswith("WITNESS "))
    _, line, blocks = json.loads(told.removeprefix("WITNESS "))
    num, size = Counter(), Counter()
    for nbytes, where in blocks:
        num[where] += 1
        size[where] += nbytes
    peak = max(process["phases"], key=lambda phase: phase["peak_bytes"])
    assert sum(row["num"] for row in peak["holders"]) == len(blocks)
    assert bytes_of(peak["holders"]) == peak["peak_bytes"]
    if line:  # else a thread of the backward asked for it
        assert peak["line"] == line
    for row in peak["holders"]:
        if row["category"] != "rest":
            assert row["num"] <= num[row["line"]] + num[""]
            assert row["nbytes"] <= size[row["line"]] + size[""] + MIB * row["num"]


@pytest.mark.nightly
def test_lines_whose_tensors_stay_from_step_to_step_are_named(folder):
    process = process_of(rehearsed(("python", "growing.py"), cwd=folder))

    grown = {row["line"]: row["nbytes"] / row["num_steps"] for row in process["growth"]}
    assert grown == {
        line_of("growing.py", "outputs.append(model(x))"): 512 * 256 * 4 + 512 * 1 * 4,  # of tanh, and the output
        line_of("growing.py", "x = torch.randn"): 512 * 64 * 4,  # which the first layer has saved
        line_of("growing.py", "loss = output"): 512,
    }
