"""`gcprof rehearse -- COMMAND` where its interpreter is not gcprof's own, functions are missing, or files unguarded."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from profiler.core.gpu_specs import REHEARSE, Device
from profiler.core.units import MIB
from profiler.scripts import launch
from profiler.scripts.report import Asked, Variant
from tests.scripts.runs import FOLDER, contents, environment, gcprof, rehearsed

TRAINS = """
import importlib.util, sys
import torch
print("found", *(name for name in sys.argv[1:] if importlib.util.find_spec(name)))
print("on the path", *(place for place in sys.path if place.endswith("inject")))
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
print("max memory allocated", torch.cuda.max_memory_allocated())
"""
CUSTOM = "import os, sys\nif 'GCPROF_WATCH' in os.environ: print('the own one', file=sys.stderr)\n"
OWN = ("msgspec", "typer", "rich", "psutil")  # what gcprof requires


@pytest.mark.slow
def test_an_interpreter_needs_nothing_but_torch_and_finds_what_is_on_pythonpath(hollow, tmp_path, monkeypatch):
    """That of an environment like this one, in which none of gcprof's own packages is."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "other")], check=True)
    site = next((tmp_path / "other" / "lib").glob("python*/site-packages"))
    for path in Path(torch.__file__).parents[1].iterdir():
        if path.suffix != ".pth" and path.name.partition("-")[0] not in OWN:
            (site / path.name).symlink_to(path)
    for name, text in {"scripts/train.py": TRAINS, "own/sitecustomize.py": CUSTOM}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))

    done = rehearsed((str(tmp_path / "other/bin/python"), "train.py", *OWN), cwd=tmp_path / "scripts")

    (process,) = done.document["variants"][0]["processes"]
    said = done.said.splitlines()
    assert done.exit_code == 0
    assert "found" in said  # none of gcprof's own packages
    assert "on the path" in said
    assert "the own one" in said
    assert process["num_steps"] == 2
    assert done.printed == [max(phase["peak_bytes"] for phase in process["phases"])]
    assert process["phases"][-1]["line"].startswith("train.py:")


@pytest.mark.parametrize(
    "words",
    [("env", "-u", "PYTHONPATH", "python", "-c", "print('ran')"), ("sh", "-c", "python -I -c 'print(7)'"), ("true",)],
)
@pytest.mark.slow
def test_a_command_that_the_watch_does_not_reach_is_never_said_to_fit(words, hollow, tmp_path):
    done = rehearsed(words, cwd=tmp_path)

    assert done.exit_code == 3
    assert "used a GPU" in done.said
    assert not any(variant["processes"] for variant in done.document["variants"])


# ---- libraries with CUDA code of their own: what the hollow GPU lacks of theirs is named by its function

LACKS = """
import ctypes
import torch
model = torch.nn.Linear(8, 8).cuda()
model(torch.ones(2, 8, device="cuda")).sum().backward()
calls = ctypes.CDLL(None)
codes = calls.cublasSrotg_v2(), calls.cudnnRNNForward(), calls.ncclGroupSimulateEnd(), calls.cudaImportExternalMemory()
raise RuntimeError(f"CUDA errors {codes}, and {calls.cublasSgemm_v2()}")
"""


@pytest.mark.slow
def test_a_function_that_the_hollow_gpu_lacks_is_named_by_the_failure(hollow, tmp_path):
    (tmp_path / "lacks.py").write_text(LACKS)

    done = rehearsed(("python", "lacks.py"), cwd=tmp_path)

    (process,) = done.document["variants"][0]["processes"]
    assert "CUDA errors (15, 3000, 3, 801), and 0" in done.said
    assert process["outcome"] == "failed"
    assert process["detail"].endswith("a hollow GPU does not have cudaImportExternalMemory, which was called")


SHARED = """
import torch
import torch.multiprocessing

def train(weights):
    print("received", weights.device, (weights * 2).shape, torch.cuda.max_memory_allocated())

if __name__ == "__main__":
    weights = torch.ones(1024, 1024, device="cuda")
    process = torch.multiprocessing.get_context("spawn").Process(target=train, args=(weights,))
    process.start()
    process.join()
    print("sent", torch.cuda.max_memory_allocated())
"""


@pytest.mark.slow
def test_a_tensor_that_another_process_is_sent_takes_the_memory_of_its_owner_alone(hollow, tmp_path):
    (tmp_path / "shared.py").write_text(SHARED)

    said = gcprof("rehearse", "--device", "t4", "--", "python", "shared.py", cwd=tmp_path).stdout

    assert f"received cuda:0 torch.Size([1024, 1024]) {4 * MIB}" in said
    assert f"sent {4 * MIB}" in said
    assert "2 processes used 1 GPU" in said


# ---- what a script saves is redirected where the system lets nobody guard files


INJECT = Path(launch.INJECT)
REFUSES = """
import os, sys
os.write(int(sys.argv[2]), b"unshare: Operation not permitted")
sys.exit(125)
"""
SAVES = {
    "tensors": """
        from safetensors import safe_open
        from safetensors.torch import save_model
        import torch.distributed.checkpoint as checkpoint
        torch.save({"x": 1}, "a.pt")
        torch.save({"x": 2}, f=pathlib.Path("a.pt"))
        assert torch.load("a.pt") == {"x": 2}
        save_model(torch.nn.Linear(3, 4), "b.safetensors")
        with safe_open("b.safetensors", "pt") as file:
            assert file.get_tensor("weight").shape == (4, 3)
        for _ in range(2):
            checkpoint.save({"x": torch.ones(3)}, checkpoint_id="d")
        state = {"x": torch.zeros(3)}
        checkpoint.load(state, checkpoint_id="d")
        assert state["x"].sum() == 3
        """,
    "transformers": """
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1))
        model.save_pretrained("pre")
        rows = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 8
        quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True}
        arguments = TrainingArguments("out", max_steps=3, save_steps=1, save_total_limit=1, **quiet)
        trainer = Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        trainer.save_model("out")
        trainer.save_state()
        """,
}
FILES = (
    "a.pt", "resume.pt", "b.safetensors", "d/.metadata", "d/__0_0.distcp", "pre/config.json", "pre/model.safetensors",
    "out/model.safetensors", "out/trainer_state.json", "out/checkpoint-1/model.safetensors",
)  # fmt: skip


@pytest.fixture
def mine(tmp_path):
    """A folder with checkpoints of last week; one of them is large."""
    here = tmp_path / "mine"
    for name in FILES:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(b"weights of last week")
    (here / "out" / "large.bin").write_bytes(bytes(3 << 20))
    return here


PROGRAM = f"""
import pathlib, runpy, sys
finder = runpy.run_path({str(INJECT / "sitecustomize.py")!r})["Finder"]
sys.path.insert(0, {str(INJECT)!r})
import torch, gcprof_saving
gcprof_saving.begin(finder)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tensors", pytest.param("transformers", marks=pytest.mark.nightly)])
def test_what_is_saved_leaves_every_file_as_it_was_and_is_read_back(way, mine, tmp_path):
    pytest.importorskip({"tensors": "safetensors", "transformers": "accelerate"}[way])
    before = contents(mine)
    saved = tmp_path / "saved"

    words, given = [sys.executable, "-c", PROGRAM + textwrap.dedent(SAVES[way])], environment(GCPROF_SAVING=str(saved))
    done = subprocess.run(words, cwd=mine, env=given, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert contents(mine) == before
    assert any(path.is_file() for path in saved.rglob("*"))


@pytest.mark.nightly
def test_a_command_that_cannot_be_guarded_is_run_with_what_it_saves_redirected(mine, tmp_path, hollow, monkeypatch):
    (tmp_path / "refuses.py").write_text(REFUSES)
    script = f"{sys.executable} {FOLDER / 'resume.py'} && echo written > log.txt"
    monkeypatch.setattr(launch, "GUARD", tmp_path / "refuses.py")
    monkeypatch.chdir(mine)
    before = contents(mine)
    lines = []

    asked = Asked(words=("sh", "-c", script), gpus=Device(prefix=REHEARSE, name="t4"))
    end = launch.run(asked, on_line=lines.append)

    variant = Variant.of(end, asked, values={})
    (process,) = variant.processes
    after = contents(mine)
    assert (end.exit_code, variant.outcome, process.num_steps) == (0, "ok", 2 + 3)
    assert "saving" in [phase.name for phase in process.phases]
    assert "Operation not permitted" in variant.unguarded
    assert lines[0]["kind"] == "unguarded"
    assert after.pop(mine / "log.txt")[0] == b"written\n"  # which is why it is said
    assert after == before
