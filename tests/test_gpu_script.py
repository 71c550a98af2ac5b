"""The first minutes on a GPU (`benchmarks.gpu`): no step costs another one its results."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import Step

LATER = ("tests", "compiled")  # for a second call


def test_the_limits_of_the_first_call_fit_into_it(tmp_path: Path):
    steps = gpu.steps(tmp_path, "cuda:0")

    assert [step.name for step in steps][-len(LATER) :] == list(LATER)
    assert sum(step.seconds for step in steps if step.name not in LATER) <= gpu.SECONDS


def python(name: str, code: str) -> dict[str, tuple[str, ...]]:
    return {name: (sys.executable, "-c", code)}


@pytest.mark.slow
def test_what_was_printed_is_in_the_archive_of_steps_that_end_fail_and_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hangs = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('hangs', flush=True); "
    monkeypatch.setattr(gpu, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(gpu, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(gpu, "steps", lambda *given, **more: [
        Step("fails", 60, python("fails", "print('failed'); raise SystemExit(3)")),
        Step("hangs", 1, {**python("hangs", f"{hangs}signal.pause()"), **python("beside", "print('is whole')")}),
        Step("ends", 60, python("ends", "print('ended')")),
    ])  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["gpu", str(tmp_path)])

    assert gpu.main() == 1

    with tarfile.open(tmp_path / "evidence.tar.gz") as archive:
        texts = {name: archive.extractfile(f"evidence/{name}.txt").read().decode() for name in
                 ("fails", "hangs", "beside", "ends", "steps")}  # fmt: skip
    printed = [texts[name].strip() for name in ("fails", "hangs", "beside", "ends")]
    assert printed == ["failed", "hangs", "is whole", "ended"]
    assert [line.split(",")[0] for line in texts["steps"].splitlines()] == [
        "fails: exit code 3", "hangs: exit code -9", "beside: exit code 0", "ends: exit code 0"
    ]  # fmt: skip


def test_a_step_that_no_time_is_left_for_is_left_out_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "steps", lambda *given, **more: [Step("late", 60, python("late", "print('ran')"))])
    monkeypatch.setattr(sys, "argv", ["gpu", str(tmp_path), "--seconds", str(gpu.LEAST_SECONDS)])

    gpu.main()

    with tarfile.open(tmp_path / "evidence.tar.gz") as archive:
        assert archive.getnames() == ["evidence", "evidence/steps.txt"]
