"""What becomes of a run whose model fails without checkpointing: one message, the user's own lines, nothing else."""

import pytest

from profiler.cli import answer
from profiler.runs import store
from tests.user_models import breaks

QUICK = ("--device", "cpu", "--samples", "1", "--warmup", "0", "-o", "run")
PATH = breaks.__file__
STRATEGIES = ("--strategies", "none,all,sqrt")


def outcomes(folder):
    records = store.load(folder / "run").records
    return [(str(record.case.strategy), record.round, record.outcome) for record in records]


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("command", ["run", "predict"])
def test_a_model_whose_own_step_fails_is_told_once_in_the_users_frames_and_stops(here, capsys, command):
    words = ["run", "--model", f"{PATH}:make", *STRATEGIES, *QUICK, "--rounds", "2"]
    if command == "predict":
        words = ["predict", f"{PATH}:make", *STRATEGIES, "-o", "run"]

    code = answer(words)

    printed = capsys.readouterr()
    frames = [line.strip().rpartition("/")[2] for line in printed.err.splitlines() if line.strip().startswith("File ")]
    assert code == 1
    assert outcomes(here) == [("none", 1, "failed")]
    assert printed.out == ""
    assert frames == ['breaks.py", line 13, in forward', 'breaks.py", line 16, in mix']
    assert printed.err.count("breaks.py:make none round 1: failed, RuntimeError: ") == 1
    assert printed.err.count("RuntimeError: ") == 2  # of that line and of the traceback
    assert "nothing to compare; 2 other rows not run" in printed.err
    assert "all" in {trial.case.strategy for trial in store.load(here / "run").manifest.plan}
    assert answer(["run", "--resume", "run"]) == 1  # nothing is owed
    assert outcomes(here) == [("none", 1, "failed")]


@pytest.mark.usefixtures("shared")
def test_a_baseline_that_is_out_of_memory_still_lets_checkpointed_rows_run(here):
    assert answer(["run", "--model", f"{PATH}:too_large", "--strategies", "none,all", *QUICK, "--rounds", "1"]) == 1

    assert outcomes(here) == [("none", 1, "out_of_memory"), ("all", 1, "out_of_memory")]
