"""pytest's plugin: a fixture that predicts a peak, a budget of a run, and no cost where it is not used."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.program import environment

PLUGIN = "profiler.workflows.in_process.pytest_plugin"
MODEL = """
import pytest, torch
from torch import nn

@pytest.fixture
def model():
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))

batch = torch.zeros(4096, 256), torch.zeros(4096, 256)
loss = nn.functional.mse_loss
"""
FITS = MODEL + "def test_it_fits(model, peak_memory):\n    peak_memory(model, batch, loss=loss, budget='1GiB')\n"
OVER = "def test_it_does_not(model, peak_memory):\n    peak_memory(model, batch, loss=loss)\n"


def run(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest with the plugin on a file of tests."""
    own = ("-p", "no:gcprof", "-p", PLUGIN, *(() if "-n" in words else ("-p", "no:xdist")))  # not an installed copy
    (folder / "test_mine.py").write_text(text)
    (folder / "pytest.ini").touch()  # no folder above decides
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *own, *words]
    more = environment(COLUMNS="200")
    return subprocess.run(command, cwd=folder, env=more, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_peaks_are_listed_after_the_tests_and_one_over_the_budget_of_the_run_fails_in_few_lines(tmp_path):
    done = run(tmp_path, FITS + OVER, "--gcprof-budget", "20MiB")

    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "peak memory by gcprof" in done.stdout
    assert "MiB rehearsed (Sequential under none" in done.stdout
    assert "over --gcprof-budget of 20.0 MiB" in done.stdout
    assert "Traceback" not in done.stdout
    assert "pytest_plugin.py" not in done.stdout


@pytest.mark.nightly
def test_a_call_has_its_own_budget_settings_and_evidence(tmp_path):
    text = f"""{MODEL}
def test_rehearsed(model, peak_memory):
    given = dict(loss=loss, device="h100", budget=2**30)
    none, cut = (peak_memory(model, batch, way, **given) for way in ("none", "segments:k=4"))
    assert (none.evidence, none.record.case.device) == ("rehearsed", "rehearse:h100")
    assert cut < none
    with pytest.raises(Exception, match="by: 'rehearsed' is not known"):
        peak_memory(model, batch, loss=loss, by="rehearsed")
    with pytest.raises(pytest.fail.Exception, match="over budget of 20.0 MiB"):
        peak_memory(model, batch, loss=loss, budget="20MiB")

def test_measured(model, peak_memory):
    measured = peak_memory(model, batch, loss=loss, by="measured", device="cpu", samples=1, budget="1GiB")
    assert measured.evidence == "measured"
    squares = batch[1].nbytes - 4  # of mse_loss, whose mean keeps their storage: an estimate does not know
    assert measured == peak_memory(model, batch, loss=loss, device="cpu", budget="1GiB") + squares
"""
    done = run(tmp_path, text, "--gcprof-budget", "1MiB")

    assert "2 passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_budget_that_no_test_heeds_is_said_and_no_success(tmp_path):
    done = run(tmp_path, "def test_nothing(): ...", "--gcprof-budget", "1GiB", "-n", "1")

    assert done.returncode == 4, done.stderr
    assert "--gcprof-budget had no effect: no test asked for the fixture peak_memory" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("words", "is_there"), [("", False), ("peak_memory", True)])
def test_only_a_test_that_asks_for_the_fixture_imports_torch(words, is_there, tmp_path):
    told = "def pytest_unconfigure():\n    print('TORCH', 'torch' in sys.modules, 'msgspec' in sys.modules)\n"
    (tmp_path / "conftest.py").write_text(f"import sys\n{told}")

    done = run(tmp_path, f"def test_it({words}): ...\n", "-s")

    assert f"TORCH {is_there} {is_there}" in done.stdout, done.stdout + done.stderr
