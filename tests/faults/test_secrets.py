"""Secrets in the environment, in a command, in what a model says (row 58): knows nothing of what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiler import secrecy, spec, store, worker
from profiler.cli import answer, bug, words
from profiler.engines import child
from profiler.errors import UserError
from profiler.spec import Request
from tests.program import gcprof

SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "correct-horse-battery",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCY",
    "DB_PASSWORD": "hunter2-3fa9c1",
}
SHAPED = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
ADDRESS = "https://alice:tr0ub4dor@example.org/models"
MODEL = f"""
import os
import torch

def make(batch_size=4, where="here"):
    for name in {list(SECRETS)!r}:
        print(name, os.environ[name], flush=True)
    print("at {ADDRESS} with {SHAPED}", end="")
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), torch.randn(batch_size, 4), LOSS

def good(output, batch):
    return output.sum()

def bad(output, batch):
    raise RuntimeError("refused " + " ".join(os.environ[name] for name in {list(SECRETS)!r}) + " {ADDRESS}")
"""
EXPORTS = ("csv", "json", "md", "latex", "parquet", "tensorboard")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the real program with secrets all around, and everything that can be made of it."""
    home = tmp_path_factory.mktemp("secrets")
    (home / "mine.py").write_text(MODEL.replace("LOSS", "bad"))
    (home / "good.py").write_text(MODEL.replace("LOSS", "good"))
    words = ["--strategies", "none", "--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0"]
    model = "mine.py:make,good.py:make"
    done = gcprof("run", "--model", model, *words, "-o", "run", cwd=home, **SECRETS)
    assert done.returncode == 1, done.stderr
    (home / "told.txt").write_text(done.stdout + done.stderr)
    return home


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return next(path.parent for path in home.rglob("manifest.json"))


def found(*places: Path, secrets: tuple[str, ...] = (*SECRETS.values(), SHAPED, "tr0ub4dor")) -> list[tuple[str, str]]:
    """Which secrets stand in which files."""
    files = [path for place in places for path in (place.rglob("*") if place.is_dir() else [place]) if path.is_file()]
    assert files
    return [(secret, path.name) for path in files for secret in secrets if secret.encode() in path.read_bytes()]


def test_fault_58_no_file_of_a_run_holds_one_nor_what_was_printed(folder: Path):
    assert [record.outcome for record in store.load(folder).records] == ["failed", "ok"]
    assert found(folder, Path("told.txt")) == []
    assert any(path.stat().st_size for path in (folder / "logs").iterdir())


@pytest.mark.parametrize("kind", EXPORTS)
def test_fault_58_nor_does_an_export(kind: str, folder: Path, tmp_path: Path):
    assert answer(["export", str(folder), "--to", kind, "-o", str(tmp_path / "exported")]) == 0

    assert found(tmp_path / "exported") == []


@pytest.mark.parametrize("level", ["none", "default", "all"])
def test_fault_58_nor_does_a_report(level: str, folder: Path, tmp_path: Path):
    assert answer(["report", str(folder), "-o", str(tmp_path / "report.html"), "--redact", level]) == 0

    assert found(tmp_path / "report.html") == []


def test_fault_58_nor_does_a_picture_or_a_block_to_paste(folder: Path, tmp_path: Path, capsys: Any):
    assert answer(["plot", str(folder), "-o", str(tmp_path / "memory.svg"), "--kind", "memory"]) == 0
    assert answer(["show", str(folder), "--format", "md"]) == 0
    (tmp_path / "pasted.md").write_text(capsys.readouterr().out)

    assert found(tmp_path) == []


def test_fault_58_nor_does_the_doctor_tell_one(tmp_path: Path):
    done = gcprof("doctor", "--paste", cwd=tmp_path, **SECRETS)
    (tmp_path / "pasted.md").write_text(done.stdout + done.stderr)

    assert done.returncode == 0
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    "model",
    [
        "good.py:make:token=swordfish",
        "good.py:make:api_key=swordfish",
        f"good.py:make:where={SHAPED}",
        f"good.py:make:where={ADDRESS}",
        "good.py:make:where=hunter2-3fa9c1",
    ],
)
def test_fault_58_one_in_the_command_is_refused_without_repeating_it(
    model: str, here: Path, no_server: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    monkeypatch.setenv("DB_PASSWORD", SECRETS["DB_PASSWORD"])

    assert answer(["run", "--model", model, "-o", "run"]) == 2

    first, hint = capsys.readouterr().err.splitlines()
    assert first == "gcprof: --model holds what looks like a secret, and every record would hold it too"
    assert hint == "hint: let your file read it from the environment"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("text", ["transformer:token=5", "mine.py:f:tokens=many", "mlp:width=3", "hf:bert", "a@b/c"])
def test_fault_58_what_is_no_secret_is_left_alone(text: str):
    assert not secrecy.is_in(text)
    assert secrecy.hide(text) == text


@pytest.mark.parametrize("cut", [1, 20, 4000])
def test_fault_58_a_log_hides_one_that_comes_in_pieces(cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", SECRETS["HF_TOKEN"])
    data = b"\x00\xff" + b"." * 5000 + SECRETS["HF_TOKEN"].encode() + b"\nthe end"
    log = child._Log(tmp_path / "trial.log")

    for start in range(0, len(data), cut):
        log.write(data[start : start + cut])
    log.close()

    assert (tmp_path / "trial.log").read_bytes() == b"\x00\xff" + b"." * 5000 + b"[hidden]\nthe end"


def test_fault_58_the_log_of_our_own_error_hides_it_too(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", SECRETS["HF_TOKEN"])
    monkeypatch.setattr(bug, "FOLDER", str(here))

    path = bug.keep(RuntimeError(f"401 for {SECRETS['HF_TOKEN']}"))

    assert Path(str(path)).read_text() == "RuntimeError: 401 for [hidden]\n"


def test_twin_58_without_hiding_a_failure_and_a_log_would_tell_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", SECRETS["HF_TOKEN"])
    error = RuntimeError(f"401 for {SECRETS['HF_TOKEN']}")
    hidden = worker._first_line(error)
    for module in (worker, child):
        monkeypatch.setattr(module, "hide", lambda text: text)

    log = child._Log(tmp_path / "trial.log")
    log.write(SECRETS["HF_TOKEN"].encode())
    log.close()

    assert hidden == "401 for [hidden]"
    assert SECRETS["HF_TOKEN"] in worker._first_line(error)
    assert found(tmp_path) != []


def test_twin_58_without_hiding_the_stored_command_would_hold_it(monkeypatch: pytest.MonkeyPatch):
    words.COMMAND.set(("run", "--model", f"a.py:b:where={ADDRESS}"))
    hidden = words.command_line()
    monkeypatch.setattr(secrecy, "hide", lambda text: text)

    assert "tr0ub4dor" not in hidden
    assert "tr0ub4dor" in words.command_line()


def test_twin_58_without_the_check_every_case_would_hold_it(monkeypatch: pytest.MonkeyPatch):
    request = Request(model="mlp", blocks=f"layers.{SHAPED}")
    with pytest.raises(UserError, match="looks like a secret"):
        spec.plan(request, lambda word: "cpu")

    monkeypatch.setattr(secrecy, "is_in", lambda text: False)

    assert {trial.case.blocks for trial in spec.plan(request, lambda word: "cpu").trials} == {f"layers.{SHAPED}"}
