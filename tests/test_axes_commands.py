"""The commands over axes, as words in and text out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core.case import Case
from profiler.views.tables.progress import trial_line, varying
from tests import examples, machines, make
from tests.commands import gcprof

RUN = "results/batches"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run over batches, and one of a single row; the commands run in it."""
    monkeypatch.chdir(tmp_path)
    examples.run(tmp_path / RUN, examples.batches())
    examples.run(tmp_path / "results" / "single", [make.record()])
    return tmp_path


@pytest.mark.slow
def test_show_prints_the_numbers_over_an_axis(here: Path, capsys: pytest.CaptureFixture[str]):
    assert answer(["show", RUN, "--over", "batch-size"]) == 0

    out, err = capsys.readouterr()
    assert "peak memory (MiB) by batch size" in out
    assert "the most samples a second up to a peak" in out
    assert err == f"next: gcprof plot {RUN} --kind heat --over batch-size -o heat.png\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show", RUN, "--over", "batchsize"], "did you mean 'batch_size'?"),
        (["show", RUN, "--over", "depth"], "its axes are strategy, batch_size"),
        (["show", RUN, "--over", "batch_size,strategy,seed"], "'seed' is not an axis"),
        (["show", RUN, "--over", "batch_size", "--samples"], "--over has no effect with --samples"),
        (["show", RUN, "--over", "batch_size", "--json"], "--over has no effect with --json"),
        (["show", "results/single", "--over", "batch_size"], "'batch_size' is not an axis of this run"),
        (["plot", "results/single", "--kind", "heat"], "a list on an option is an axis"),
        (["plot", "results/single", "--kind", "growth"], "a list on an option is an axis"),
        (["plot", RUN, "--kind", "growth", "--over", "strategy"], "of positive numbers"),
        (["plot", RUN, "--kind", "memory", "--over", "batch_size"], "--over has no effect"),
        (["plot", RUN, "--style", "slide"], "did you mean '--style slides'?"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(here: Path, capsys: pytest.CaptureFixture[str], words, complaint):
    assert answer(words) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert complaint in err
    assert not list(here.glob("*.p*"))


@pytest.mark.slow
def test_numbers_over_an_axis_need_no_matplotlib(here: Path):
    code = gcprof("--version").args[2].replace("main(sys.argv[1:])", "from profiler.cli import answer")
    script = f"{code}\nanswer(sys.argv[1:])\nsys.exit('matplotlib' in sys.modules)"

    def imports_it(*words: str) -> int:
        environment = {**os.environ, "PYTHONPATH": machines.python_path()}
        return subprocess.run(
            [sys.executable, "-c", script, *words], env=environment, capture_output=True, check=False
        ).returncode

    assert imports_it("show", RUN, "--over", "batch_size") == 0
    assert imports_it("plot", RUN, "--kind", "heat") == 1


@pytest.mark.slow
@pytest.mark.parametrize("words", [["show", RUN, "--over", "batch_size"], ["plot", RUN, "--kind", "heat"]])
def test_torch_is_not_needed(here: Path, words: list[str]):
    found = gcprof(*words, torch=False)

    assert found.returncode == 0, found.stderr


def told(*cases: Case) -> tuple[str, ...]:
    return varying(cases)


def test_what_varies_is_told_of_every_trial():
    cases = [make.case(batch_size=size, precision=word) for size in (8, 16) for word in ("fp32", "bf16")]
    record = make.record("all", case=cases[3])

    assert told(*cases) == ("batch_size", "precision")
    assert trial_line(record, varying=told(*cases)).startswith(
        "mnist-cnn:channels=32 none batch size 16 precision bf16 round 1: ok"
    )
