"""Plans of a model that has checkpoints of its own: made of its plain form, and beside its own one."""

import json

import pytest

from profiler.cli import answer
from profiler.core.case import Choice, Trial
from profiler.predicting.prediction import predict
from profiler.predicting.stages import stages
from tests import make
from tests.user_models import by_hand

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
