"""The GitHub Action: its inputs, and its script with gcprof and with a double of `gh`; and pytest's plugin."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.program import environment

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
RUNS = [step for step in ACTION["runs"]["steps"] if "run" in step]
INPUTS = (
    "MODEL", "COMMAND", "STRATEGIES", "DEVICE", "BATCH_SIZE", "PRECISION", "OPTIMIZER", "MAX_MEMORY", "BASELINE",
    "FAIL_ON",
)  # fmt: skip
EVIL = 'mlp"; touch hacked; $(touch hacked) `touch hacked` --help'
GH = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> calls
[ "${1}${2}" = apirepos/me/mine/issues/7/comments ] && [ "$3" = --paginate ] && { cat known; exit 0; }
[ ! -e refuses ] || exit 1
for word in "$@"; do case "$word" in body=@*) cat "${word#body=@}" > said ;; esac; done
"""
GCPROF = """#!/usr/bin/env bash
printf '%s\\n' "$@" >> words
env > variables
"""
TRAIN = """import torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(8, 512, device="cuda")).sum().backward()
optimizer.step()
"""
# a model whose code rewrites all that it can reach, and speaks to the runner
HOSTILE = """#!/usr/bin/env bash
echo 'touch "$RUNNER_TEMP/../hacked"; exit 0' | tee "$GITHUB_ACTION_PATH/.github/predict.sh" > /dev/null
echo '::error::told by the model'
printf '##[error]told by the model'
exit 5
"""


@pytest.fixture
def job(tmp_path):
    """A folder of a job: its checkout, and doubles of gh and gcprof."""
    folder = tmp_path / "job"
    folder.mkdir()
    real = f'#!/usr/bin/env bash\nexec "{sys.executable}" -m profiler "$@"\n'
    for name, text in (("gh", GH), ("fake-gcprof", GCPROF), ("hostile", HOSTILE), ("gcprof", real)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "known").touch()
    return folder


def step(job: Path, name: str, gcprof: str = "gcprof", **inputs: str) -> subprocess.CompletedProcess[str]:
    """The text of one step of action.yml as a runner starts it, with what the last `predict` has handed on."""
    (text,) = [one["run"] for one in RUNS if one["name"].split()[0].lower() == name]
    outputs = dict(line.split("=", 1) for line in handed_on(job))
    more = dict.fromkeys(INPUTS, "") | {
        "RUNNER_TEMP": str(job / "temp"),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_OUTPUT": str(job / "output"),
        "GITHUB_STEP_SUMMARY": str(job / "summary"),
        "GITHUB_TOKEN": "gho_secret",
        "GITHUB_ENV": str(job / "variables-of-the-job"),
        "GCPROF": str(job / gcprof),
        "REPOSITORY": "me/mine",
        "NUMBER": "7",
        "BODY": outputs.get("table", ""),
        "CODE": outputs.get("code", ""),
        "PATH": f"{job}{os.pathsep}{os.environ['PATH']}",
    }
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    return subprocess.run(words, cwd=job, env=environment(**more | inputs), capture_output=True, text=True, check=False)


def handed_on(job: Path) -> list[str]:
    """The outputs of the step `predict`, the later ones last."""
    return (job / "output").read_text().splitlines() if (job / "output").exists() else []


def obeyed(log: str) -> list[str]:
    """The lines of a step's output that a runner takes as commands: none between stop-commands and its word."""
    free = re.sub(r"^::stop-commands::(.+)\n(?s:.*?)\n::\1::$", "", log, flags=re.MULTILINE)
    return [line for line in free.splitlines() if line.lstrip().startswith("::") or "##[" in line]


def test_inputs_reach_gcprof_as_single_words_and_nothing_else_runs_or_sees_a_token(job):
    """An input in the text of `run` would be run as shell; in `env` it is data."""
    assert not any("${{" in one["run"] for one in RUNS)

    done = step(
        job, "predict", "fake-gcprof", MODEL=EVIL, STRATEGIES="none,all;ls", DEVICE="--json", MAX_MEMORY="11GiB"
    )

    words = (job / "words").read_text().splitlines()
    assert done.returncode == 0, done.stderr
    assert words[:3] == ["predict", f"--model={EVIL}", "--device=--json"]
    assert words[4:] == ["--strategies=none,all;ls", "fit", f"--model={EVIL}", "--device=--json", "--memory=11GiB"]
    assert not (job / "hacked").exists()
    variables = (job / "variables").read_text()
    assert "RUNNER_TEMP=" in variables
    assert "gho_secret" not in variables
    assert not re.search(r"^GITHUB_(ENV|PATH|OUTPUT|STEP_SUMMARY)=", variables, re.MULTILINE)


@pytest.mark.nightly
def test_a_model_is_predicted_commented_and_held_to_a_memory(job):
    within = {"MODEL": "mlp", "STRATEGIES": "none,all", "DEVICE": "t4", "MAX_MEMORY": "11GiB"}

    done = step(job, "predict", **within)
    commented = step(job, "comment")

    assert (done.returncode, commented.returncode) == (0, 0), done.stdout + commented.stderr
    said = (job / "said").read_text()
    assert said == (job / "summary").read_text()
    assert re.match(r"<!-- gcprof [0-9a-f]{16} -->\n## gcprof\n", said)
    assert "The gate `max-memory` holds." in said
    assert "--method POST repos/me/mine/issues/7/comments" in (job / "calls").read_text()
    table, code = handed_on(job)
    assert Path(table.removeprefix("table=")).read_text() == said
    assert (code, step(job, "gate").returncode) == ("code=0", 0)

    shutil.move(Path(table.removeprefix("table=")).parent / "run", job / "baseline")
    step(job, "predict", **within | {"BASELINE": "baseline", "FAIL_ON": "peak:>1%", "PRECISION": "fp32"})
    assert "### Against the baseline" in (job / "summary").read_text()
    assert step(job, "gate").returncode == 0
    step(job, "predict", **within | {"BASELINE": "--help"})
    assert step(job, "gate").returncode == 4


def test_a_command_is_rehearsed_by_a_shell_that_gets_it_as_one_word(job):
    done = step(job, "predict", "fake-gcprof", COMMAND=EVIL, DEVICE="t4", FAIL_ON="peak:>1GiB", MAX_MEMORY="11GiB")
    refused = step(job, "predict", "fake-gcprof", COMMAND="python train.py", MODEL="mlp")

    words = (job / "words").read_text().splitlines()
    assert (done.returncode, "not for a `command`" in refused.stdout) == (0, True)
    assert [words[0], words[1], *words[3:]] == [
        "rehearse", "--device=t4", "--fail-on=peak:>1GiB", "--", "bash", "-c", EVIL,
        "fit", "--device=t4", "--memory=11GiB", "--", "bash", "-c", EVIL,
    ]  # fmt: skip
    assert not (job / "hacked").exists()


@pytest.mark.nightly
def test_a_command_is_commented_and_held_to_a_peak(job):
    (job / "train.py").write_text(TRAIN)

    done = step(job, "predict", COMMAND=f"{sys.executable} train.py", DEVICE="t4", FAIL_ON="peak:>1MiB")

    said = (job / "summary").read_text()
    assert "| forward, first step | 1 |" in said, done.stdout
    assert "**Over the gate `fail-on`.**" in said
    assert step(job, "gate").returncode == 5


def test_what_the_models_code_rewrites_and_prints_reaches_no_step_with_a_token(job):
    """The runner has read action.yml before; the script that ran the model's code is never started again."""
    copy = job / "action"
    shutil.copytree(ROOT / ".github", copy / ".github")

    done = step(job, "predict", "hostile", MODEL="mlp", GITHUB_ACTION_PATH=str(copy))

    assert "touch" in (copy / ".github" / "predict.sh").read_text()  # it could
    assert obeyed(done.stdout) == []
    assert done.stdout.count("told by the model") == 2
    commented = step(job, "comment", GITHUB_ACTION_PATH=str(copy))
    gated = step(job, "gate", GITHUB_ACTION_PATH=str(copy))
    assert (commented.returncode, gated.returncode) == (0, 5)
    assert (job / "said").exists()
    assert not (job / "hacked").exists()

    (job / "refuses").touch()  # a fork's token may only read
    done = step(job, "comment")
    assert (done.returncode, done.stdout[:11]) == (0, "::warning::")


# --- pytest's plugin: a fixture that predicts a peak, a budget of a run, and no cost where it is not used


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
