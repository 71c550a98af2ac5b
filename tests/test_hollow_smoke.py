"""The hollow device is tried by one training step before it is trusted, once, and what it cannot do is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from profiler.core.errors import UserError
from profiler.rehearsal import build, smoke
from profiler.rehearsal.smoke import Check, Verdict
from tests.hollow import LEAVE, OPEN

FINE = Verdict(torch="9.9.9", checks=(Check("backward", 1024, 1024),))
WRONG = Verdict(
    torch="9.9.9",
    checks=(Check("weights", 512, 512), Check("backward", 1024, 1536), Check("the end", 0, 512)),
    not_supported=("cublasSnew_v2",),
)
TOLD = (
    "torch 9.9.9 on the hollow device is not as arithmetic has it: backward: expected 1,024 bytes, got 1,536, and 1 "
    "more (not supported: cublasSnew_v2)"
)


@pytest.fixture
def kept(hollow, tmp_path, monkeypatch):
    """The folder of the libraries, in a cache of the test's own, in which nothing was tried yet."""
    folder = build.libraries()
    own = tmp_path / "gcprof" / "hollow" / folder.name
    shutil.copytree(folder, own, symlinks=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return own


def put(folder: Path, verdict: Verdict) -> None:
    smoke.verdict_file(folder).write_bytes(msgspec.json.encode(verdict))


@pytest.mark.nightly
def test_a_training_step_of_the_installed_torch_is_as_arithmetic_has_it(kept):
    assert smoke.proven_libraries()[0] == kept

    verdict = msgspec.json.decode(smoke.verdict_file(kept).read_bytes(), type=Verdict)
    assert verdict.wrong() == []
    assert {check.phase.rpartition(": ")[2] for check in verdict.checks} >= {
        "convolution", "layer norm", "linear", "attention", "loss", "backward", "AdamW", "states deleted",
    }  # fmt: skip


FIGURES = """
from profiler.rehearsal import smoke_step
found = [phase for phase, expected, got in smoke_step.checks() if expected != got]
"""


@pytest.mark.nightly
def test_an_allocator_that_rounds_otherwise_is_found(hollow):
    device = smoke.DEVICE
    otherwise = {**smoke.SETTINGS, "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:2"}

    found = [hollow.python(FIGURES, device, **settings) for settings in (smoke.SETTINGS, otherwise)]

    assert found[0] == []
    assert "3 MiB and a byte" in found[1]


@pytest.mark.slow
def test_a_torch_that_was_tried_is_not_tried_again(kept, monkeypatch):
    put(kept, FINE)
    monkeypatch.setattr(smoke, "run", lambda folder: pytest.fail("it is tried again"))

    assert smoke.proven_libraries()[0] == kept


def test_a_torch_that_fails_is_refused_with_what_differs_and_tried_once(kept, monkeypatch):
    tried = []
    monkeypatch.setattr(smoke, "run", lambda folder: tried.append(folder) or WRONG)

    for _ in range(2):
        with pytest.raises(UserError) as refused:
            smoke.proven_libraries()

        assert (refused.value.exit_code, refused.value.message) == (3, TOLD)
        assert "python -m profiler.rehearsal.smoke" in str(refused.value.hint)
    assert tried == [kept]


def test_a_step_that_does_not_end_well_is_refused_with_its_last_words_and_not_kept(kept, monkeypatch):
    monkeypatch.setattr(smoke, "BOOT", "import sys; print('hollow: not supported: cuNew', file=sys.stderr); 1 / 0")

    with pytest.raises(UserError) as refused:
        smoke.proven_libraries()

    assert refused.value.exit_code == 3
    told = "a training step on the hollow device ended with exit code 1: ZeroDivisionError: division by zero"
    assert refused.value.message == f"{told} (not supported: cuNew)"
    assert not smoke.verdict_file(kept).exists()


ASK = """
import ctypes
from profiler.rehearsal.smoke_step import torch
torch.cuda.init()
process = ctypes.CDLL(None)
driver, status = ctypes.c_void_p(), ctypes.c_int()
process.cudaGetDriverEntryPointByVersion(b"cuNoSuchFunction", ctypes.byref(driver), 12000, 0, ctypes.byref(status))
found = {
    "libcublas": process.cublasSrotg_v2(),
    "libcudnn": process.cudnnRNNForward(),
    "libnccl": process.ncclGroupSimulateEnd(),
    "libcudart": process.cudaIpcGetMemHandle(),
    "libcuda": ctypes.CFUNCTYPE(ctypes.c_int)(driver.value)(),
    "known": process.cublasSgemm_v2(),
}
print(found)
"""


@pytest.mark.slow
def test_what_no_library_has_answers_that_it_is_not_supported_and_is_named(hollow):
    done = hollow.run(OPEN + ASK + LEAVE, HOLLOW_LOG="1")

    named = [line for line in done.stderr.splitlines() if line.startswith(smoke.UNSUPPORTED)]
    words = {line.removeprefix(smoke.UNSUPPORTED) for line in named}
    assert done.stdout.splitlines()[-1] == str(
        {"libcublas": 15, "libcudnn": 3000, "libnccl": 3, "libcudart": 801, "libcuda": 801, "known": 0}
    )
    assert words >= {
        "cublasSrotg_v2",
        "cudnnRNNForward",
        "ncclGroupSimulateEnd",
        "cudaIpcGetMemHandle",
        "cuNoSuchFunction",
    }
    assert not any("gemm" in word for word in words)
