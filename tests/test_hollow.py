"""A CUDA device that has memory and does no arithmetic: what torch sees of it, and what is said of what runs on it.

Every test runs in processes of its own, whatever device this one has.
"""

import importlib.util
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from profiler.core import gpu_specs
from profiler.core.errors import UserError
from profiler.core.units import GIB, MIB
from profiler.rehearsal import build, smoke
from profiler.rehearsal.device import prepare_if_asked
from profiler.rehearsal.smoke import Check, Verdict, proven_libraries
from tests.hollow import LEAVE
from tests.program import PATIENCE_SECONDS
from tests.scripts.runs import copied, rehearsed

GRANULE = 512  # bytes: what PyTorch's allocator rounds up to

SEEN = """
import ctypes, torch
from torch import nn

nvml = ctypes.CDLL("libnvidia-ml.so.1")
handle = ctypes.c_void_p()
assert nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(handle)) == 0

def board_memory(version=None):
    fields = (ctypes.c_ulonglong * 5)(version or 0)
    assert getattr(nvml, "nvmlDeviceGetMemoryInfo" + ("_v2" if version else ""))(handle, fields) == 0
    return list(fields)[1:] if version else list(fields)[:3]

def taken(make):
    before = torch.cuda.memory_allocated()
    kept = make()
    return torch.cuda.memory_allocated() - before

def refused(make):
    try:
        make()
    except RuntimeError as error:
        return type(error).__name__ + ": " + str(error)

properties = torch.cuda.get_device_properties(0)
found = {
    "count": torch.cuda.device_count(),
    "name": properties.name,
    "multiprocessors": properties.multi_processor_count,
    "bytes": properties.total_memory,
    "capability": list(torch.cuda.get_device_capability(0)),
    "uuids": [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())],
    "3 MiB": taken(lambda: torch.empty(3 * 2**20, dtype=torch.uint8, device="cuda")),
    "linear": taken(lambda: nn.Linear(1000, 10, device="cuda")),
    "serial": nvml.nvmlDeviceGetSerial(handle, ctypes.create_string_buffer(96), 30),
}
kept = torch.empty(32 * 2**20, dtype=torch.uint8, device="cuda:1")
found["board"] = [board_memory(), board_memory(2)]
del kept
torch.cuda.empty_cache()
whole = torch.empty(properties.total_memory, dtype=torch.uint8, device="cuda:1")
found["whole"] = torch.cuda.memory_allocated(1)
found["one more"] = refused(lambda: torch.empty(1, dtype=torch.uint8, device="cuda:1"))
"""


def test_torch_sees_the_gpu_with_the_numbers_of_its_file_and_what_tensors_take_is_arithmetic(hollow):
    """Two T4 with 4 GiB each, on which memory runs out where the card does."""
    t4, seen = gpu_specs.find("t4"), hollow.python(SEEN, f"t4,count=2,bytes={4 * GIB}")

    assert seen["name"] == f"Hollow {t4.name}"
    assert seen["count"] == len(set(seen["uuids"])) == 2
    assert seen["multiprocessors"] == t4.chip.multiprocessors
    assert tuple(seen["capability"]) == t4.compute_capability
    assert seen["bytes"] == 4 * GIB

    weight, bias = 4 * 1000 * 10, 4 * 10
    assert seen["3 MiB"] == 3 * MIB
    assert seen["linear"] == -(-weight // GRANULE) * GRANULE + -(-bias // GRANULE) * GRANULE == 40960
    assert seen["whole"] == 4 * GIB
    assert seen["board"] == [[4 * GIB, 4 * GIB - 32 * MIB, 32 * MIB], [4 * GIB, 0, 4 * GIB - 32 * MIB, 32 * MIB]]
    assert seen["serial"] == 3  # NVML_ERROR_NOT_SUPPORTED
    assert seen["one more"].startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 1 has")


@pytest.mark.parametrize(("asked", "noun"), [("t5", "t5"), ("h100,coun=2", "coun"), ("h100,count=0", ">= 1")])
def test_a_device_that_is_none_is_refused_before_a_process_is_started_for_it(asked, noun, monkeypatch):
    monkeypatch.setenv("GCPROF_HOLLOW", asked)

    with pytest.raises(UserError, match=f"GCPROF_HOLLOW: .*{noun}"):
        prepare_if_asked()


@pytest.mark.slow
def test_the_script_of_the_page_on_rehearsals_runs_there_and_not_after_torch(hollow):
    page = (Path(__file__).parents[1] / "docs/rehearsal.md").read_text(encoding="utf-8")
    script = page.split("<!-- script -->")[1].split("<!-- end -->")[0].split("```")[1].removeprefix("python")

    done = hollow.run(script + LEAVE, "t4")
    late = hollow.run(f"import torch\n{script}", "t4")

    assert done.returncode == 0, done.stderr
    assert "T4" in done.stdout
    # the weight, the bias, the batch and the output, and their gradients
    assert int(done.stdout.split()[-1]) >= 2 * 4 * (1024 * 1024 + 1024) + 4 * 512 * 1024 * 2
    assert late.returncode != 0
    assert "torch is imported already" in late.stderr


# --- the hollow device is tried by one training step before it is trusted, once, and what it cannot do is named


WRONG = Verdict(torch="9.9.9", checks=(Check("weights", 512, 512), Check("backward", 1024, 1536)))


def ends_with_3(error):
    return error.exit_code == 3


@pytest.fixture
def kept(hollow, tmp_path, monkeypatch):
    """The folder of the libraries, in a cache of the test's own, in which nothing was tried yet."""
    folder = build.libraries()
    own = tmp_path / "gcprof" / "hollow" / folder.name
    shutil.copytree(folder, own, symlinks=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return own


def test_a_torch_that_fails_is_refused_with_what_differs_and_tried_once(kept, monkeypatch):
    tried = []
    monkeypatch.setattr(smoke, "run", lambda folder: tried.append(folder) or WRONG)

    for _ in range(2):
        with pytest.raises(UserError, match="backward: expected 1,024 bytes, got 1,536", check=ends_with_3):
            smoke.proven_libraries()
    assert tried == [kept]


def test_a_step_that_does_not_end_well_is_refused_with_its_last_words_and_not_kept(kept, monkeypatch):
    monkeypatch.setattr(smoke, "PROGRAM", "import sys; print('hollow: not supported: cuNew', file=sys.stderr); 1 / 0")

    with pytest.raises(UserError, match=r"by zero \(not supported: cuNew\)", check=ends_with_3):
        smoke.proven_libraries()

    assert not smoke.verdict_file(kept).exists()


WORKSPACES = """
import torch

def hidden(run):
    torch.cuda.reset_peak_memory_stats()
    out = run()
    return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()

found = []
for channels, size in ((16, 32), (32, 16)):
    x, y = (torch.empty(64, channels, size, size, device="cuda", dtype=DTYPE) for _ in "xy")
    weight = torch.empty(channels, channels, 3, 3, device="cuda", dtype=DTYPE)
    found.append(hidden(lambda: torch.nn.functional.conv2d(x, weight, padding=1)))
    rest = [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    found.append(hidden(lambda: torch.ops.aten.convolution_backward(y, x, weight, [0], *rest)))
    torch.cuda.empty_cache()
"""
# besides the results, of four calls of the model cifar-resnet, as an H100 with torch 2.11.0 and cuDNN 9.19 had them;
# cuDNN 9.26 plans the second one otherwise, with 9923584
MEASURED = [8398336, 73400320, 2134528, 37748736]
ATTENTION = """
half = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
query, key, value = (torch.empty(8, 12, 256, 64, **half) for _ in "qkv")
out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
out.sum().backward()
found += [type(out.grad_fn).__name__, torch.__version__]
"""


@pytest.mark.slow
def test_convolutions_take_the_workspaces_that_an_h100_had_and_attention_the_kernel_of_its_records(hollow):
    """cuDNN's attention by torch since 2.11. In 16 bits NVRTC within cuDNN 9.26 asks the driver of an A100."""
    *found, kernel, version = hollow.python(WORKSPACES.replace("DTYPE", "torch.float32") + ATTENTION)
    halves = hollow.python(WORKSPACES.replace("DTYPE", "torch.bfloat16"), "a100-40")

    assert (found[0], found[2:]) == (MEASURED[0], MEASURED[2:])
    assert found[1] in (MEASURED[1], 9923584)
    assert len(halves) == len(MEASURED)
    is_cudnn = tuple(map(int, version.split(".")[:2])) >= (2, 11)
    assert kernel == f"ScaledDotProduct{'Cudnn' if is_cudnn else 'Flash'}AttentionBackward0"


# --- the libraries: built once, whole or not at all, and what is said where they cannot be built


@pytest.mark.parametrize(("cuda", "expected"), [(12, ["cuda_runtime"]), (13, ["cu13", "cuda_runtime"])])
def test_beside_a_torch_that_was_replaced_its_own_version_of_nvidias_files_is_taken(tmp_path, cuda, expected):
    """As torch 2.9 for CUDA 12 in an environment that had torch 2.11 for CUDA 13, whose wheels stay."""
    for folder in ("cu13", "cuda_runtime"):
        (tmp_path / "nvidia" / folder / "include").mkdir(parents=True)
        (tmp_path / "nvidia" / folder / "include" / "cuda.h").touch()

    assert [path.parts[-3] for path in build.of_nvidia(tmp_path, cuda, "include/cuda.h")] == expected


@pytest.mark.nightly
@pytest.mark.parametrize("newer", [0, 1])
def test_prebuilt_libraries_of_this_cuda_or_a_newer_one_are_taken_and_no_compiler_is_asked(
    newer, hollow, tmp_path, monkeypatch
):
    """The libraries of a wheel, as far as choosing them goes: a folder with their origin, for the installed torch."""
    major, minor = build.installed().cuda
    folder = tmp_path / f"cu{major}"
    shutil.copytree(build.libraries(), folder)
    (folder / build.ORIGIN).write_text(json.dumps([build.sources_digest(), (major, minor + newer)]), encoding="ascii")
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")

    assert smoke.proven_libraries()[0] == build.libraries() == folder
    assert smoke.readiness().startswith("ready: its libraries are prebuilt and tried")


@pytest.mark.parametrize(("machine", "noun"), [("aarch64", "Linux aarch64"), ("x86_64", "no CUDA")])
def test_a_system_or_a_torch_without_cuda_is_refused(machine, noun, tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "torch")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(platform, "machine", lambda: machine)

    with pytest.raises(UserError, match=noun, check=ends_with_3):
        build.libraries()


def test_a_folder_where_others_can_write_is_refused(tmp_path):
    tmp_path.chmod(0o777)

    with pytest.raises(UserError, match="others can write", check=ends_with_3):
        build.refuse_if_others_write(tmp_path)


# ---- ranks: what they say to each other arrives, or the run ends


RANK = Path(__file__).with_name("nccl_rank.py")


class Ranks:
    """Ranks of NCCL's stand-in, each a process without torch."""

    def __init__(self, libraries, folder, *, num_ranks, started=None, times=10**9, wait=PATIENCE_SECONDS, program=RANK):
        environment = {**os.environ, "HOLLOW_MESSAGES": str(folder), "HOLLOW_WAIT_SECONDS": str(wait)}
        self.processes = {}
        for rank in range(num_ranks) if started is None else started:
            words = [sys.executable, "-S", str(program), str(libraries), str(rank), str(num_ranks), "a run", str(times)]
            self.processes[rank] = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)

    def ended(self):
        """Of each rank the exit code, and the last line that it printed."""
        try:
            said = {rank: one.communicate(timeout=PATIENCE_SECONDS)[0] for rank, one in self.processes.items()}
        finally:
            for one in self.processes.values():
                one.kill()
        return {rank: (self.processes[rank].returncode, text.splitlines()[-1:]) for rank, text in said.items()}


@pytest.fixture(scope="module")
def libraries(hollow):
    return proven_libraries()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "more"),
    [(2, ()), pytest.param(4, ("eager",), marks=pytest.mark.nightly)],  # groups by splits
)
def test_what_ranks_say_to_each_other_arrives(hollow, tmp_path, count, more):
    command = ("torchrun", "--nproc-per-node", str(count), "--master-port", f"2974{count}", "messages.py", *more)
    done = rehearsed(command, cwd=copied(tmp_path), num_gpus=count)
    assert done.exit_code == 0, done.said
    assert done.said.count("all arrived") == count
    processes = done.document["variants"][0]["processes"]
    assert [process["num_steps"] for process in processes] == [3] * count
    assert not [one for process in processes for one in process["assumed"] if one["is_size"]]


BROADCASTS = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["RANK"]))
dist.init_process_group("nccl")
objects = [os.urandom(3 << 20) if dist.get_rank() == 0 else b""]
dist.broadcast_object_list(objects, src=0)
assert len(objects[0]) == 3 << 20
"""


@pytest.mark.slow
def test_an_object_too_large_to_be_carried_is_named_with_the_setting_that_carries_it(hollow, tmp_path):
    (tmp_path / "broadcasts.py").write_text(BROADCASTS)
    command = ("torchrun", "--nproc-per-node", "2", "--master-port", "29743", "broadcasts.py")

    failed = rehearsed(command, cwd=tmp_path, num_gpus=2)
    carried = rehearsed(("env", "HOLLOW_COPY_BYTES=16777216", *command), cwd=tmp_path, num_gpus=2)

    details = [process["detail"] or "" for process in failed.document["variants"][0]["processes"]]
    assert any("a message of 3 MiB" in detail and "HOLLOW_COPY_BYTES=16777216" in detail for detail in details)
    assert (failed.exit_code, carried.exit_code) == (1, 0), carried.said


@pytest.mark.parametrize(("started", "wait", "code"), [((0, 1, 2), PATIENCE_SECONDS, 0), ((0, 2), 0.5, 7)])
def test_ranks_sum_many_times_or_name_one_that_never_joins_and_leave_no_file(libraries, tmp_path, started, wait, code):
    for ended, said in Ranks(libraries, tmp_path, num_ranks=3, times=200, started=started, wait=wait).ended().values():
        assert ended == code
        assert not code or "for rank 1, which never joined" in said[0]
    assert not list(tmp_path.iterdir())


def test_ranks_that_differ_in_what_they_call_are_told_so(libraries, tmp_path):
    """More elements on one rank: as a script would, whose ranks hold different numbers of values."""
    text = RANK.read_text().replace("c_size_t(5000)", "c_size_t(5000 if rank else 4000)")
    other = tmp_path / "other.py"
    other.write_text(text)
    (tmp_path / "shared").mkdir()
    ended = Ranks(libraries, tmp_path / "shared", num_ranks=2, times=1, program=other).ended()
    told = "calls ncclAllReduce of 16000 bytes where rank 1 of 2 calls ncclAllReduce of 20000"
    assert any(told in line for _, said in ended.values() for line in said)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_is_killed_ends_the_others(libraries, tmp_path, seed):
    """Killed at a random moment: the others end, name it, and leave nothing."""
    chance = random.Random(seed)
    num_ranks = chance.randint(2, 4)
    ranks = Ranks(libraries, tmp_path, num_ranks=num_ranks, wait=2)
    victim = chance.randrange(num_ranks)
    time.sleep(chance.uniform(0, 0.4))  # a moment of chance: any must do
    ranks.processes[victim].kill()
    ended = ranks.ended()
    assert ended.pop(victim)[0] == -9
    assert {code for code, _ in ended.values()} == {7}, ended
    assert any(f"for rank {victim}, which" in said for _, (said,) in ended.values()), ended
    assert not list(tmp_path.iterdir())
