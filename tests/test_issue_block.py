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


def test_doctor_gives_a_block_with_versions_and_device(shared, capsys):
    assert answer(["doctor", "--paste"]) == 0

    out = capsys.readouterr().out
    lines = out.splitlines()
    assert (lines[0], lines[-1]) == ("```text", "```")
    assert [word for word in ("\ntorch ", "\ncpu ", "a tiny trial: ok", "arithmetic: right") if word not in out] == []
    assert not {platform.node(), getpass.getuser()} & set(out.split())
    assert str(Path.home()) not in out


def test_doctor_tells_whether_a_gpu_can_be_rehearsed_and_builds_nothing_for_it(
    hollow, shared, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = []
    for compiler in ("gcc -m64", "gone"):
        monkeypatch.setenv("CC", compiler)
        assert answer(["doctor", "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out)["rehearsal"])

    assert f"by `gcc -m64` into {tmp_path}/gcprof/hollow" in told[0]
    assert told[1].startswith("no: rehearsing needs a C compiler: 'gone', which is not here")
    assert list(tmp_path.iterdir()) == []


class NoProducts(TorchDispatchMode):
    """No product is computed: its result is zeros."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return torch.zeros_like(out) if func is torch.ops.aten.mm.default else out


def test_a_device_that_computes_nothing_is_found_by_doctor(shared, monkeypatch, capsys):
    """The trial works on it: its gradients are all zero, and no strategy's differ."""
    ask = Local.ask

    def answered(self, entry, text, *, failing):
        if entry != "profiler.engines.worker:compute":
            return ask(self, entry, text, failing=failing)
        with NoProducts():
            return {"wrong": devices.wrong_arithmetic(text)}

    monkeypatch.setattr(Local, "ask", answered)

    assert answer(["doctor"]) == 1
    assert "arithmetic: it computes nothing" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.gpu_arithmetic
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")
def test_a_gpu_computes():
    assert devices.wrong_arithmetic("cuda:0") is None


# --- what tells of a machine or of a person is found in texts, and nothing else is


NUMBER = "GPU-3f9a1c22-77aa-4be1-9c1d-0123456789ab"
SHAPED = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
TELLING = [
    ("open ~/x/train.py:12 failed", "open [path]/train.py:12 failed"),
    ("cannot open '/home/alice/x/y.bin': no", "cannot open [path]/y.bin: no"),
    ("../up/here.py and ./here/there.py", "[path]/here.py and [path]/there.py"),
    (r"C:\Users\alice\y.py", "[path]/y.py"),
    ("//srv/alice/a.py", "[path]/a.py"),
    ("src/alice/a.py", "[path]/a.py"),
    ("--data=/mnt/alice", "--data=[path]"),
    ("told alice@example.org", "told [hidden]"),
    (f"on {NUMBER} with {SHAPED}", "on [hidden] with [hidden]"),
    ("see file:///home/alice/a b.py", "see [path]/b.py"),
    ("https://alice:tr0ub4dor@example.org/a/b.html", "[path]/b.html"),
    ('File "/srv/alice/a b/net.py", line 3', "File [path]/net.py, line 3"),
    ("open 'src/alice b/net.py'", "open [path]/net.py"),
    ("12 MiB/s at 3/4", "12 MiB/s at 3/4"),
]


def test_of_a_path_only_the_name_of_a_file_is_told():
    for text, told in TELLING:
        assert hidden(text) == hidden(told) == told


@pytest.mark.parametrize("words", [["show", "--format", "md"], ["report", "-o", "page.html"]])
def test_a_block_and_a_report_hide_the_same(here, capsys, words):
    detail = ", ".join(text for text, _ in TELLING)
    case = make.case("all", model=r"C:\Users\alice\net.py:make")
    noted = make.failed("all", "failed", detail, case=case, notes=(Note(code="GCP007", text=detail),))
    records = [make.record("none", environment=examples.ENVIRONMENT), noted]
    examples.run(here / "results" / "run", records, command="gcprof run --model alice/net.py:make alice/models/bob")

    assert answer(words) == 0

    shown = capsys.readouterr().out + "".join(path.read_text() for path in here.glob("page.html"))
    assert [word for word in ("alice", "tr0ub4dor", SHAPED, NUMBER) if word in shown] == []
    assert json.dumps("net.py:make").strip('"') in shown
    if words[0] == "show":
        assert "| none | 60.0 | 100.0 | 20.0 |" in shown
        assert shown.endswith(
            "```text\ngcprof run --model [path]/net.py:make [path]/bob\n"
            "NVIDIA H200, 700 MiB, gcprof 0.1.0, python 3.11.7, torch 2.15.0, Linux\n"
            "a CPU, gcprof 0.1.0, python 3.11.7, torch 2.15.0, Linux\n```\n"
        )
