"""What becomes of a run whose model fails without checkpointing: one message, the user's own lines, nothing else."""

import pytest

from profiler.cli import answer
from profiler.runs import store
from tests.user_models import breaks

QUICK = ("--device", "cpu", "--samples", "1", "--warmup", "0")
PATH = breaks.__file__


def outcomes(folder):
    records = store.load(folder / "run").records
    return [(str(record.case.strategy), record.round, record.outcome) for record in records]


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("words", [("run", *QUICK, "--rounds", "2"), ("predict",)], ids=" ".join)
def test_a_model_whose_own_step_fails_is_told_once_in_the_users_frames_and_stops(here, capsys, words):
    code = answer([*words, f"{PATH}:make", "--strategies", "none,all,sqrt", "-o", "run"])

    out, err = capsys.readouterr()
    frames = [line.strip().rpartition("/")[2] for line in err.splitlines() if line.strip().startswith("File ")]
    assert (code, out) == (1, "")
    assert outcomes(here) == [("none", 1, "failed")]
    assert frames == ['breaks.py", line 13, in forward', 'breaks.py", line 16, in mix']
    assert err.count("RuntimeError: ") == 2  # of the row and of the traceback
    assert "nothing to compare; 2 other rows not run" in err
    assert answer(["run", "--resume", "run"]) == 1  # nothing is owed
    assert outcomes(here) == [("none", 1, "failed")]
