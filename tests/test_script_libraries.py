"""Libraries with CUDA code of their own: what the hollow GPU lacks of theirs is named by its function."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.scripts.runs import rehearsed

COMPILER = shutil.which("cc") or shutil.which("gcc")
CALLS = """
int {function}();
int call(void) {{ return {function}(0, 0, 0, 0); }}
"""
LOADS = """
import ctypes, sys
import torch
model = torch.nn.Linear(8, 8).cuda()
model(torch.ones(2, 8, device="cuda")).sum().backward()
try:
    library = ctypes.CDLL("./library.so")
except OSError:
    print("goes on without it")
else:
    code = library.call()
    print("code", code)
    if "fails" in sys.argv:
        raise RuntimeError(f"CUDA error {code}")
    if "crashes" in sys.argv:
        ctypes.string_at(0)
"""


def loaded(folder, function, *words):
    """A script that loads a library, and calls of it what calls this function."""
    (folder / "library.c").write_text(CALLS.format(function=function))
    build = [COMPILER, "-shared", "-fPIC", "-w", "library.c", "-o", "library.so"]
    subprocess.run(build, cwd=folder, check=True)
    (folder / "loads.py").write_text(LOADS)
    done = rehearsed(("python", "loads.py", *words), cwd=folder)
    (process,) = done.document["variants"][0]["processes"]
    return done, process


@pytest.mark.parametrize(
    ("function", "code", "how"),
    [
        pytest.param("cudaIpcGetMemHandle", 801, "fails", marks=pytest.mark.slow),  # of the runtime
        pytest.param("cuMulticastCreate", 801, "fails", marks=pytest.mark.nightly),  # of the driver
        pytest.param("cublasSrotg_v2", 15, "fails", marks=pytest.mark.nightly),
        pytest.param("cuCtxCreate_v4", 801, "crashes", marks=pytest.mark.nightly),
    ],
)
def test_a_function_that_the_hollow_gpu_lacks_is_named_by_the_failure(function, code, how, hollow, tmp_path):
    done, process = loaded(tmp_path, function, how)

    assert f"code {code}" in done.said
    assert done.exit_code != 0
    assert process["outcome"] == ("failed" if how == "fails" else "crashed")
    assert process["detail"].endswith(f"a hollow GPU does not have {function}, which was called")


@pytest.mark.slow
def test_a_function_of_no_library_is_named_where_the_script_goes_on_without_it(hollow, tmp_path):
    done, process = loaded(tmp_path, "cudaNoSuchFunction")

    assert done.exit_code == 0
    assert "goes on without it" in done.said
    assert (
        "library.so does not load: it needs cudaNoSuchFunction, which the hollow GPU's libraries do not have"
        in process["notes"]
    )


@pytest.mark.nightly
def test_an_error_of_the_scripts_own_is_told_without_what_was_refused_before(hollow, tmp_path):
    """Functions that torch asks for and does without are no reason."""
    text = LOADS.replace('RuntimeError(f"CUDA error {code}")', 'KeyError("lost")')
    loaded(tmp_path, "cudaIpcGetMemHandle")
    (tmp_path / "loads.py").write_text(text)

    done = rehearsed(("python", "loads.py", "fails"), cwd=tmp_path)

    (process,) = done.document["variants"][0]["processes"]
    line = text[: text.index("KeyError")].count("\n") + 1
    assert process["detail"] == f"KeyError: 'lost' (loads.py:{line})"
