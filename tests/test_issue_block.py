"""Blocks for an issue: complete, and silent about whose machine it was."""

import getpass
import json
import platform
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.cli import answer
from profiler.core.record import Note
from profiler.engines.local import Local
from profiler.measuring import devices
from profiler.views.sanitize import hidden
from tests import examples, make

HERE = str(Path.home() / "secret" / "project" / "train.py")


@pytest.fixture
def block(here: Path, capsys: pytest.CaptureFixture[str]) -> str:
    model = f"{HERE}:make"
    records = [
        make.record("none", case=make.case("none", model=model), environment=examples.ENVIRONMENT),
        make.failed("all", "failed", f"cannot open '{HERE}'", case=make.case("all", model=model)),
    ]
    examples.run(here / "results" / "run", records)

    assert answer(["show", "--format", "md"]) == 0

    return capsys.readouterr().out


def test_the_block_of_a_run_holds_its_table_its_versions_and_its_device(block):
    assert "| strategy | saved" in block
    assert "| none | 60.0 | 100.0 | 20.0 |" in block
    assert block.endswith(
        "```text\ngcprof run mnist-cnn\n"
        "NVIDIA H200, 700 MiB, gcprof 0.1.0, python 3.11.7, torch 2.15.0, Linux\n"
        "a CPU, gcprof 0.1.0, python 3.11.7, torch 2.15.0, Linux\n```\n"
    )


def test_doctor_gives_a_block_with_versions_and_device(shared, capsys):
    assert answer(["doctor", "--paste"]) == 0

    out = capsys.readouterr().out
    lines = out.splitlines()
    assert (lines[0], lines[-1]) == ("```text", "```")
    assert any(line.startswith("torch ") for line in lines)
    assert any(line.startswith("cpu ") and "GiB" in line for line in lines)
    assert "a tiny trial: ok" in out
    assert "arithmetic: right" in out
    assert platform.node() not in out.split()
    assert getpass.getuser() not in out.split()
    assert str(Path.home()) not in out


def test_doctor_tells_whether_a_gpu_can_be_rehearsed(hollow, shared, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "gcc -m64")
    assert answer(["doctor", "--json"]) == 0
    unbuilt = json.loads(capsys.readouterr().out)["rehearsal"]
    monkeypatch.setenv("CC", "gone")
    assert answer(["doctor"]) == 0
    without = capsys.readouterr().out.splitlines()[-1]

    assert (
        unbuilt
        == f"not built yet: the first rehearsal compiles its libraries by `gcc -m64` into {tmp_path}/gcprof/hollow"
    )
    assert without.startswith(
        "rehearsal      no: rehearsing needs a C compiler: 'gone', which is not here; apt install gcc"
    )
    assert list(tmp_path.iterdir()) == []  # nothing is built for it


def test_a_device_that_computes_nothing_is_found_by_doctor(shared, monkeypatch, capsys):
    """The trial works on it: its gradients are all zero, and no strategy's differ."""
    monkeypatch.setattr(Local, "ask", answering(Local.ask))

    code = answer(["doctor"])

    assert code == 1
    assert "a tiny trial: ok" in (out := capsys.readouterr().out)
    assert "arithmetic: it computes nothing" in out


def answering(ask):
    """As an engine whose device leaves every result as it was."""

    def told(self, entry, text, *, failing):
        if entry != "profiler.engines.worker:compute":
            return ask(self, entry, text, failing=failing)
        with NoProducts():
            return {"wrong": devices.wrong_arithmetic(text)}

    return told


class NoProducts(TorchDispatchMode):
    """No product is computed: its result is zeros."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return torch.zeros_like(out) if func is torch.ops.aten.mm.default else out


def test_a_product_and_its_gradient_are_right_on_the_cpu_and_seen_to_be_wrong():
    assert devices.wrong_arithmetic("cpu") is None
    with NoProducts():
        assert "it computes nothing" in devices.wrong_arithmetic("cpu")


@pytest.mark.gpu
@pytest.mark.gpu_arithmetic
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")
def test_a_gpu_computes():
    assert devices.wrong_arithmetic("cuda:0") is None


# --- what tells of a machine or of a person is found in texts, and nothing else is


NUMBER = "GPU-3f9a1c22-77aa-4be1-9c1d-0123456789ab"
SHAPED = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
TELLING = [
    ("open /home/alice failed", "open [path] failed"),
    ("open ~/x/train.py:12 failed", "open [path]/train.py:12 failed"),
    ("cannot open '/home/alice/x/y.bin': no", "cannot open [path]/y.bin: no"),
    (f"File {HERE}, line 3", "File [path]/train.py, line 3"),
    ("../up/here.py and ./here/there.py", "[path]/here.py and [path]/there.py"),
    (r"C:\Users\alice\y.py", "[path]/y.py"),
    ("~bob/y.py", "[path]/y.py"),
    ("//srv/alice/a.py", "[path]/a.py"),
    ("src/alice/a.py", "[path]/a.py"),
    ("--data=/mnt/alice", "--data=[path]"),
    ("told alice@example.org", "told [hidden]"),
    (f"on {NUMBER}", "on [hidden]"),
    (f"with {SHAPED}", "with [hidden]"),
    ("see file:///home/alice/a b.py", "see [path]/b.py"),
    ("https://alice:tr0ub4dor@example.org/a/b.html", "[path]/b.html"),
    ('File "/srv/alice/a b/net.py", line 3', "File [path]/net.py, line 3"),
    ("open 'src/alice b/net.py'", "open [path]/net.py"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "told"), TELLING)
def test_of_a_path_only_the_name_of_a_file_is_told(text, told):
    assert hidden(text) == told
    assert hidden(told) == told


@pytest.mark.parametrize("words", [["show", "--format", "md"], ["report", "-o", "page.html"]])
def test_a_block_and_a_report_hide_the_same(here, capsys, words):
    detail = ", ".join(text for text, _ in TELLING)
    notes = (Note(code="GCP007", text=detail),)
    case = make.case("all", model=r"C:\Users\alice\net.py:make")
    records = [make.record("none"), make.failed("all", "failed", detail, case=case, notes=notes)]
    examples.run(here / "results" / "run", records)

    assert answer(words) == 0

    shown = capsys.readouterr().out + "".join(path.read_text() for path in here.glob("page.html"))
    assert [word for word in ("alice", "bob", "tr0ub4dor", SHAPED, NUMBER, "share", "secret") if word in shown] == []
    assert json.dumps("net.py:make").strip('"') in shown
