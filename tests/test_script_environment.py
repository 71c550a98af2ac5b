"""`gcprof rehearse -- COMMAND` where its interpreter is not gcprof's own, its libraries lack functions, or it hangs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.scripts.runs import rehearsed

TRAINS = """
import importlib.util, os, sys
import torch
import helping
print("found", *(name for name in sys.argv[1:] if importlib.util.find_spec(name)))
print("on the path", *(place for place in sys.path if place.endswith("inject")))
model = helping.made(torch).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
print("max memory allocated", torch.cuda.max_memory_allocated())
"""
HELPS = "def made(torch): return torch.nn.Linear(64, 64)\n"
OWN = ("msgspec", "typer", "rich", "psutil")  # what gcprof requires


@pytest.fixture
def folder(hollow, tmp_path):
    """A script, and a module of the user's in another folder."""
    for name, text in {"scripts/train.py": TRAINS, "own/helping.py": HELPS}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path / "scripts"


@pytest.fixture
def python(tmp_path):
    """An interpreter of an environment like this one, in which none of gcprof's own packages is."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "other")], check=True)
    site = next((tmp_path / "other" / "lib").glob("python*/site-packages"))
    for path in Path(torch.__file__).parents[1].iterdir():
        if path.suffix != ".pth" and path.name.partition("-")[0] not in OWN:
            (site / path.name).symlink_to(path)
    return str(tmp_path / "other" / "bin" / "python")


@pytest.mark.slow
def test_an_interpreter_needs_nothing_but_torch_and_finds_what_the_user_has_on_pythonpath(folder, python, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(folder.parent / "own"))

    done = rehearsed((python, "train.py", *OWN), cwd=folder)

    (process,) = done.document["variants"][0]["processes"]
    said = done.said.splitlines()
    assert done.exit_code == 0
    assert "found" in said  # none of gcprof's own packages
    assert "on the path" in said
    assert process["num_steps"] == 2
    assert done.printed == [max(phase["peak_bytes"] for phase in process["phases"])]
    assert process["phases"][-1]["line"].startswith("train.py:")


@pytest.mark.parametrize(
    "words",
    [("env", "-u", "PYTHONPATH", "python", "-c", "print('ran')"), ("sh", "-c", "python -I -c 'print(7)'"), ("true",)],
)
@pytest.mark.slow
def test_a_command_that_the_watch_does_not_reach_is_never_said_to_fit(words, folder):
    done = rehearsed(words, cwd=folder)

    assert done.exit_code == 3
    assert "used a GPU" in done.said
    assert not any(variant["processes"] for variant in done.document["variants"])


# ---- libraries with CUDA code of their own: what the hollow GPU lacks of theirs is named by its function

LACKS = """
import ctypes
import torch
model = torch.nn.Linear(8, 8).cuda()
model(torch.ones(2, 8, device="cuda")).sum().backward()
code = ctypes.CDLL(None).cudaIpcGetMemHandle(0, 0)
raise RuntimeError(f"CUDA error {code}")
"""


@pytest.mark.slow
def test_a_function_that_the_hollow_gpu_lacks_is_named_by_the_failure(hollow, tmp_path):
    (tmp_path / "lacks.py").write_text(LACKS)

    done = rehearsed(("python", "lacks.py"), cwd=tmp_path)

    (process,) = done.document["variants"][0]["processes"]
    assert "CUDA error 801" in done.said
    assert process["outcome"] == "failed"
    assert process["detail"].endswith("a hollow GPU does not have cudaIpcGetMemHandle, which was called")
