"""A CUDA device that has memory and does no arithmetic: what torch sees of it, and what is said of what runs on it.

Every test runs in processes of its own, whatever device this one has.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from profiler.core import gpu_specs
from profiler.core.errors import UserError
from profiler.core.units import GIB, MIB
from profiler.rehearsal.device import prepare_if_asked
from profiler.runs import store
from tests.hollow import LEAVE

GRANULE = 512  # bytes: what PyTorch's allocator rounds up to

SEEN = """
import ctypes, os, torch
from torch import nn

def taken(make):
    before = torch.cuda.memory_allocated()
    kept = make()
    return torch.cuda.memory_allocated() - before

def refused(make):
    try:
        make()
    except RuntimeError as error:
        return type(error).__name__ + ": " + str(error)

def in_child(read):
    mine, theirs = os.pipe()
    if os.fork() == 0:
        os.write(theirs, str(read()).encode())
        os._exit(0)
    os.wait()
    return os.read(mine, 4096).decode()

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
    "runtime in a child": in_child(lambda: ctypes.CDLL(None).cudaSetDevice(0)),
    "runtime here": str(ctypes.CDLL(None).cudaSetDevice(0)),
    "torch in a child": in_child(lambda: refused(lambda: torch.empty(1, device="cuda"))),
}
torch.cuda.empty_cache()
whole = torch.empty(properties.total_memory, dtype=torch.uint8, device="cuda:1")
found["whole"] = torch.cuda.memory_allocated(1)
found["one more"] = refused(lambda: torch.empty(1, dtype=torch.uint8, device="cuda:1"))
"""


@pytest.fixture(scope="module")
def seen(hollow):
    """What torch sees of two T4 with 4 GiB each."""
    return hollow.python(SEEN, f"t4,count=2,bytes={4 * GIB}")


@pytest.mark.slow
def test_torch_sees_the_gpu_by_its_hollow_name_with_the_numbers_of_its_file(seen):
    t4 = gpu_specs.find("t4")

    assert seen["name"] == f"Hollow {t4.name}"
    assert seen["count"] == len(set(seen["uuids"])) == 2
    assert seen["multiprocessors"] == t4.chip.multiprocessors
    assert tuple(seen["capability"]) == t4.compute_capability
    assert seen["bytes"] == 4 * GIB


@pytest.mark.slow
def test_what_tensors_take_is_arithmetic(seen):
    weight, bias = 4 * 1000 * 10, 4 * 10

    assert seen["3 MiB"] == 3 * MIB
    assert seen["linear"] == -(-weight // GRANULE) * GRANULE + -(-bias // GRANULE) * GRANULE == 40960


def test_memory_runs_out_where_the_card_does(seen):
    assert seen["whole"] == 4 * GIB
    assert seen["one more"].startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 1 has")


NVML = """
import ctypes, torch

nvml = ctypes.CDLL("libnvidia-ml.so.1")
handle, count, name = ctypes.c_void_p(), ctypes.c_uint(), ctypes.create_string_buffer(96)

def memory(version=None):
    fields = (ctypes.c_ulonglong * 5)(version or 0)
    assert getattr(nvml, "nvmlDeviceGetMemoryInfo" + ("_v2" if version else ""))(handle, fields) == 0
    return list(fields)[1:] if version else list(fields)[:3]

assert nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(handle)) == 0
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
assert nvml.nvmlDeviceGetName(handle, name, 96) == 0
rates = (ctypes.c_uint * 2)(7, 7)
assert nvml.nvmlDeviceGetUtilizationRates(handle, rates) == 0
kept = torch.empty(32 * 2**20, dtype=torch.uint8, device="cuda:1")
found = {
    "count": count.value,
    "name": name.value.decode(),
    "rates": list(rates),
    "memory": memory(),
    "memory 2": memory(2),
    "serial": nvml.nvmlDeviceGetSerial(handle, name, 30),
}
"""


@pytest.mark.slow
def test_nvml_tells_the_same_devices_and_what_is_taken_of_them(hollow):
    found = hollow.python(NVML, f"t4,count=2,bytes={4 * GIB}")

    assert (found["count"], found["name"], found["rates"]) == (2, f"Hollow {gpu_specs.find('t4').name}", [0, 0])
    assert found["memory"] == [4 * GIB, 4 * GIB - 32 * MIB, 32 * MIB]
    assert found["memory 2"] == [4 * GIB, 0, 4 * GIB - 32 * MIB, 32 * MIB]
    assert found["serial"] == 3  # NVML_ERROR_NOT_SUPPORTED


@pytest.fixture(scope="module")
def run(hollow, tmp_path_factory):
    """A run on a T4 of 1 GiB: a model that does not fit, then one that does; and what the program said."""
    here = tmp_path_factory.mktemp("run")
    words = ("run", "--model", "mlp:width=16384|64", "--strategies", "none,all", "--rounds", "1", "--device", "cuda")
    done = hollow.gcprof(*words, "-o", "run", cwd=here, device=f"t4,bytes={GIB}")
    assert done.returncode == 0, done.stderr
    return done, store.load(here / "run"), here


def by_outcome(run, outcome):
    return [record for record in run[1].records if record.outcome == outcome]


def test_a_rehearsed_run_says_so_in_records_table_and_csv(run):
    done, stored, here = run
    (line, *_) = list(csv.DictReader((here / "run" / "derived" / "table.csv").open(encoding="utf-8")))
    names = {record.environment.device_name for record in stored.records}

    assert names == {"Hollow Tesla T4"}
    assert "(Hollow Tesla T4): rehearsed, not measured" in done.stdout
    assert sum(row.split()[-1:] == ["rehearsed"] for row in done.stdout.splitlines()) == 2
    assert "GCP039" in done.stdout
    assert any(str(value).startswith("Hollow") for value in line.values())


def test_running_out_of_memory_there_tells_what_was_asked_and_what_was_free_and_the_next_trial_is_clean(run):
    full, clean = by_outcome(run, "out_of_memory"), by_outcome(run, "ok")

    assert [record.case.model.options["width"] for record in full] == ["16384"] * 2
    assert [record.case.model.options["width"] for record in clean] == ["64"] * 2
    for record in full:
        assert record.shortage.of == "device"
        assert record.shortage.asked_bytes == 4 * 16384**2 == GIB
        assert 0 < record.shortage.free_bytes < GIB
    assert all(record.readings.reserved_bytes < GIB / 10 for record in clean)


OWN = """
import torch
from torch import nn

KEPT = []

class Keeps(nn.Linear):
    def forward(self, x):
        KEPT.append(super().forward(x).detach().clone())
        return super().forward(x)

class Fails(nn.Linear):
    def forward(self, x):
        raise ValueError("it does not work")

def keeps():
    return Keeps(64, 64), torch.ones(64, 64), lambda output: output.mean()

def fails():
    return Fails(64, 64), torch.ones(64, 64), lambda output: output.mean()
"""


@pytest.fixture(scope="module")
def own(hollow, tmp_path_factory):
    """By their function, the records of models in a user's file: one keeps its output, the other raises."""
    here = tmp_path_factory.mktemp("own")
    (here / "own.py").write_text(OWN, encoding="utf-8")
    hollow.gcprof("run", "--model", "own.py:keeps,own.py:fails", "--strategies", "none", "-o", "run", cwd=here)
    return {record.case.model.rpartition(":")[2]: record for record in store.load(here / "run").records}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("t5", "no GPU is called 't5'"),
        ("h100,coun=2", "unknown field `coun`"),
        ("h100,count=two", "Expected `int`"),
        ("h100,count=0", "Expected `int` >= 1"),
        ("h100,bytes=-1", "Expected `int` >= 1"),
    ],
)
def test_a_device_that_is_none_is_refused_before_a_process_is_started_for_it(asked, why, monkeypatch):
    monkeypatch.setenv("GCPROF_HOLLOW", asked)

    with pytest.raises(UserError) as refused:
        prepare_if_asked()

    assert why in refused.value.message
    assert refused.value.message.startswith("GCPROF_HOLLOW: ")


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


COMPILED = "transformer:layers=1,dropout=0"
BUDGETS = "none,compile-budget:budget=0.5"


@pytest.fixture(scope="module")
def compiled(hollow, tmp_path_factory):
    """Records by strategy, where Triton finds a compiler and where it finds none."""
    here = tmp_path_factory.mktemp("compiled")
    words = ("run", "--model", COMPILED, "--batch-size", "8", "--rounds", "1", "--device", "cuda", "--strategies")
    fresh = {"TORCHINDUCTOR_CACHE_DIR": str(here / "inductor"), "TRITON_CACHE_DIR": str(here / "triton")}
    hollow.gcprof(*words, BUDGETS, "-o", "with", cwd=here, **fresh)
    none = {name: f"{folder}-none" for name, folder in fresh.items()}
    hollow.gcprof(*words, BUDGETS, "-o", "without", cwd=here, PATH=str(here), **none)
    return [{str(one.case.strategy): one for one in store.load(here / name).records} for name in ("with", "without")]


@pytest.mark.nightly
@pytest.mark.gpu
def test_compiled_budgets_are_rehearsed_with_the_bytes_of_real_compiled_kernels(compiled):
    none, half = compiled[0].values()

    assert (none.outcome, half.outcome) == ("ok", "ok"), half.detail
    assert none.readings.saved_bytes > half.readings.saved_bytes > 0
    assert none.readings.peak_bytes > half.readings.peak_bytes
    assert none.readings.static_bytes == half.readings.static_bytes


# --- the main job; the figures are those of bare loops on such a device, worked out apart from gcprof


def peaks(hollow, here, *words):
    done = hollow.gcprof("run", *words, "--device", "cuda", "-o", "run", cwd=here)
    assert done.returncode == 0, done.stderr
    return {str(one.case.strategy): one.readings.peak_bytes for one in store.load(here / "run").records}


@pytest.mark.nightly
def test_the_main_job_at_full_size_peaks_where_it_does_without_gcprof(hollow, here):
    rows = peaks(hollow, here, "--segments", "1,2,4,8,16,32")

    assert list(rows) == ["none", *(f"segments:k={count}" for count in (1, 2, 4, 8, 16, 32))]
    assert all(1011 * MIB <= peak <= 1018 * MIB for peak in rows.values())
