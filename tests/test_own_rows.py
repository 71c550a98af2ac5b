"""The row `own` stands beside `none` where the model calls checkpoints itself, and nowhere else; nobody asks for it."""

import json

import pytest

from profiler.analysis import progress
from profiler.analysis.rows import rows as rows_of
from profiler.cli import answer
from profiler.core import schedule
from profiler.core.case import Choice, Trial
from profiler.core.record import Note
from profiler.engines.local import in_waves
from profiler.predicting.prediction import predict
from profiler.predicting.stages import stages
from profiler.runs import store
from tests import make
from tests.program import row_names
from tests.user_models import by_hand, own_checkpoint

QUICK = ("--device", "cpu", "--samples", "1", "--warmup", "0", "--rounds", "2")
USERS = Choice("mine.py:make")
FOUND = Note(code=progress.HAS_OWN, text="the model's own checkpoints (2 calls in a forward) are switched off")


def planned(rounds):
    trials = schedule.in_rounds([make.case(strategy, model=USERS) for strategy in ("none", "all")], rounds)
    return schedule.with_own_rows(trials, lambda model: model.startswith("mine.py"))


def of(trials):
    return [(str(trial.case.strategy), trial.round) for trial in trials]


def record(trial, notes=()):
    return make.record(case=trial.case, round=trial.round, notes=notes)


@pytest.mark.parametrize("finds", [True, False])
def test_it_is_planned_after_each_baseline_and_runs_where_that_finds_checkpoints(finds):
    plan = planned(rounds=2)
    given = []

    def run(trials):
        for trial in trials:
            given.append(trial)
            yield record(trial, (FOUND,) if finds and trial.case == trial.case.baseline else ())

    list(in_waves(run, plan, ()))

    assert of(plan) == [("none", 1), ("own", 1), ("all", 1), ("all", 2), ("none", 2), ("own", 2)]
    assert of(given) == [one for one in of(plan) if finds or one[0] != "own"]


def test_a_run_is_complete_without_the_row_where_the_model_calls_none():
    plan = planned(rounds=1)
    found, nothing = ([record(plan[0], notes), record(plan[2])] for notes in ((FOUND,), ()))

    for records, status, expected in ((nothing, "complete", "none all"), (found, "partial", "none own all")):
        assert progress.status(plan, records) == status
        assert [case.strategy for case in progress.rows_of(plan, records)] == expected.split()


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_a_run_shows_it_counts_it_and_has_nothing_left_to_do(here, capsys):
    model = f"{own_checkpoint.__file__}:wrapped:way=lossy,drop=0.5"

    code = answer(["run", "--model", model, "--strategies", "all", *QUICK, "-o", "run"])

    printed = capsys.readouterr()
    rows = {str(row.case.strategy): row.outcome for row in rows_of(store.load(here / "run").records)}
    assert code == 1  # it is invalid
    assert rows == {"none": "ok", "own": "invalid", "all": "ok"}
    assert row_names(printed.out) == ["none", "own", "all"]
    numbers = [line.partition("]")[0] for line in printed.err.splitlines() if line.startswith("[")]
    assert numbers == ["[1/6", "[2/5", "[3/5", "[4/5", "[5/5"]  # its second round is not run, as the first is invalid
    assert answer(["run", "--resume", "run", "--model", model]) == 1
    assert "nothing left to do" in capsys.readouterr().err


# --- plans are made of such a model's plain form, and beside its own one


MODEL = f"{by_hand.__file__}:finer"
BLOCKS = "blocks.[0-2]"


def trial(strategy="none", **options):
    chosen = Choice.of(MODEL, options)
    case = make.case(strategy, model=chosen, batch_size=None, blocks=BLOCKS, device="fake:cpu")
    return Trial(case=case, passes=("memory",))


@pytest.mark.slow
def test_the_stages_of_a_model_with_checkpoints_are_those_of_the_model_without():
    with_own, without = (stages(trial(own=own)) for own in ("true", "false"))

    assert with_own == without
    wide, batch = 8 * 16, 64
    assert with_own.stages[0].saved_bytes >= 12 * wide * batch * 4  # what tanh keeps of each of twelve parts


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_where_no_plan_fits_and_the_models_own_checkpoints_do_that_is_said_with_its_bytes(here, capsys):
    own, every = (predict(trial(strategy)).readings.peak_bytes for strategy in ("own", "all"))
    assert own < every
    words = ["plan", MODEL, "--blocks", BLOCKS, "--device", "cpu", "--budget", f"{own + 1000}B", "--json"]

    assert answer(words) == 5

    printed = capsys.readouterr()
    assert json.loads(printed.out)["own_peak_bytes"] == own
    assert "the model's own checkpoints fit" in printed.err
    assert "no plan fits" not in printed.err
    assert printed.err.splitlines()[-1].endswith("--strategies own")
