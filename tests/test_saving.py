"""Where the system lets nobody guard files, what a script saves is redirected, and the rest is said not to be."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from profiler.core.gpu_specs import REHEARSE, Device
from profiler.scripts import guard, launch, report
from profiler.scripts.report import Variant
from tests.scripts.runs import contents, environment

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
    "a.pt", "b.safetensors", "d/.metadata", "d/__0_0.distcp", "pre/config.json", "pre/model.safetensors",
    "out/model.safetensors", "out/trainer_state.json", "out/checkpoint-1/model.safetensors",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
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
def test_what_is_saved_leaves_every_file_as_it_was_and_is_read_back(way, folder, tmp_path):
    pytest.importorskip({"tensors": "safetensors", "transformers": "accelerate"}[way])
    before = contents(folder)
    saved = tmp_path / "saved"

    words, given = [sys.executable, "-c", PROGRAM + textwrap.dedent(SAVES[way])], environment(GCPROF_SAVING=str(saved))
    done = subprocess.run(words, cwd=folder, env=given, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert contents(folder) == before
    assert any(path.is_file() for path in saved.rglob("*"))


TRAINS = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
torch.save(model.state_dict(), "a.pt")
torch.load("a.pt")
open("log.txt", "w").write("written")
"""


@pytest.mark.nightly
def test_a_command_that_cannot_be_guarded_is_run_with_what_it_saves_redirected(folder, tmp_path, hollow, monkeypatch):
    (tmp_path / "refuses.py").write_text(REFUSES)
    (tmp_path / "train.py").write_text(TRAINS)
    monkeypatch.setattr(guard, "__file__", str(tmp_path / "refuses.py"))
    monkeypatch.chdir(folder)
    before = contents(folder)
    gpus = Device(prefix=REHEARSE, name="t4")
    lines = []

    asked = report.Asked(words=(sys.executable, str(tmp_path / "train.py")), gpus=gpus)
    end = launch.run(asked, on_line=lines.append)

    variant = Variant.of(end, asked, values={})
    (process,) = variant.processes
    after = contents(folder)
    assert (end.exit_code, variant.outcome, process.num_steps) == (0, "ok", 2)
    assert "saving" in [phase.name for phase in process.phases]
    assert "Operation not permitted" in variant.unguarded
    assert lines[0]["kind"] == "unguarded"
    assert after.pop(folder / "log.txt")[0] == b"written"  # which is why it is said
    assert after == before
