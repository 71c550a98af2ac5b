"""A baseline that is broken says so: parameters without a gradient, PyTorch's warnings, checkpoints of the model's own.

The truth is a plain loop in PyTorch, without gcprof.
"""

import json

import msgspec
import pytest
import torch

from profiler.analysis import progress
from profiler.analysis.rows import rows as rows_of
from profiler.analysis.rows import verdict
from profiler.cli import answer
from profiler.core import schedule
from profiler.core.case import Choice, Trial
from profiler.core.record import Note
from profiler.engines.local import in_waves
from profiler.measuring import failure_causes
from profiler.predicting.prediction import predict
from profiler.predicting.stages import stages
from profiler.runs import store
from tests import make
from tests.conftest import measured, notes
from tests.program import row_names
from tests.user_models import broken, by_hand, gradients, own_checkpoint, switched

QUICK = ("--device", "cpu", "--samples", "1", "--warmup", "0")


def plain(build, *arguments, **options):
    """The gradients of one plain step from seed 0."""
    torch.manual_seed(0)
    module, batch = build(*arguments, **options)
    module(batch).backward()
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.requires_grad}


@pytest.mark.filterwarnings("default:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_over_a_frozen_prefix_is_told_by_number_name_and_cause():
    truth = plain(own_checkpoint.prefix)
    lost = [name for name, gradient in truth.items() if gradient is None]

    none, record = (
        measured(f"{own_checkpoint.__file__}:prefix", strategy, passes=("equality",)) for strategy in ("none", "own")
    )

    assert (len(lost), len(truth)) == (12, 14)
    assert (none.equality.num_without_gradient, none.outcome, notes(none, "GCP045")) == (0, "ok", [])
    assert record.equality.num_without_gradient == 12
    assert (record.outcome, set(record.equality.missing)) == ("invalid", set(lost))
    named = f"{', '.join(lost[:3])} and 9 more ({failure_causes.REENTRANT})"
    assert notes(record, "GCP045") == [f"12 of 14 trainable parameters get no gradient: {named}"]
    assert ["None of the inputs have requires_grad=True" in text for text in notes(record, "GCP046")] == [True]


def test_each_parameter_without_a_gradient_is_told_with_its_own_cause():
    lost = {name for name, gradient in plain(gradients.lossy).items() if gradient is None}
    causes = {"detached": failure_causes.DETACHED, "off": failure_causes.OFF, "unused": failure_causes.UNUSED}
    expected = {f"{module}.{kind}": causes[module] for module in causes for kind in ("weight", "bias")}

    record = measured(f"{gradients.__file__}:lossy", "none", passes=("equality",))

    assert lost == set(expected)
    assert record.equality.num_without_gradient == 6
    (text,) = notes(record, "GCP045")
    assert text.startswith("6 of 8 trainable parameters get no gradient: ")
    assert all(f"{module}.weight, {module}.bias ({cause})" in text for module, cause in causes.items())


WAYS = ("module", "partial", "reentrant", "keywords", "sequential")


def wrapped(way):
    return Choice.of(f"{own_checkpoint.__file__}:wrapped", {"way": way})


@pytest.mark.parametrize("way", WAYS)
def test_own_checkpoints_are_off_but_under_own_in_whatever_way_they_are_imported(way):
    """The blocks are called as often as they are: twice under a checkpoint, once without."""
    blocks, checkpointed = 4, 2 if way == "sequential" else 4
    truths = [plain(own_checkpoint.wrapped, way, batch_size=8) for way in ("none", way)]
    assert all(torch.equal(truths[0][name], truths[1][name]) for name in truths[0])

    none, own, every = (
        measured(wrapped(way), strategy, passes=("equality", "flops", "memory")) for strategy in ("none", "own", "all")
    )

    assert none.readings.block_calls == (1,) * blocks
    assert own.readings.block_calls == (2,) * checkpointed + (1,) * (blocks - checkpointed)
    assert every.readings.block_calls == (2,) * blocks
    assert (none.outcome, own.outcome, every.outcome) == ("ok", "ok", "ok")
    assert {verdict(row) for row in (none, own, every)} == {"bit-equal"}
    assert none.readings == measured(wrapped("none"), "none", passes=("equality", "flops", "memory")).readings
    between, within = 8 * 16 * 4, 2 * 8 * 32 * 4  # bytes: a block's input; what its GELU and second layer are given
    assert none.readings.saved_bytes == 5 * between + 4 * within + 4  # the head's input and the loss are there too
    if way == "sequential":  # the first two blocks are one segment, whose input and random state are kept
        assert own.readings.saved_bytes == 4 * between + 2 * within + 5056 + 4
    else:
        assert own.readings.saved_bytes == 5 * between + 4 * 5056 + 4
    calls = 1 if way == "sequential" else 4
    assert [f"({calls} calls in a forward)" in text for text in notes(none, "GCP047")] == [True]
    assert notes(own, "GCP047") == notes(every, "GCP047") == []
    for row in (none, own, every):
        predicted = predict(Trial(case=msgspec.structs.replace(row.case, device="fake:cpu")))
        assert predicted.readings.peak_bytes == row.readings.peak_bytes
        assert predicted.readings.saved_bytes == row.readings.saved_bytes
        assert len(notes(predicted, "GCP047")) == (row is none)


@pytest.mark.slow
def test_switches_of_libraries_are_off_but_under_own_and_hf():
    model, passes = f"{switched.__file__}:bert", ("equality", "flops", "memory")
    none, plain = (measured(choice, "none", passes=passes) for choice in (model, f"{model}:is_on=false"))

    assert none.readings == plain.readings
    assert len(notes(none, "GCP047")) == 1
    assert notes(plain, "GCP047") == []
    for strategy in ("own", "hf"):
        record = measured(model, strategy, passes=passes)
        assert record.readings.saved_bytes < none.readings.saved_bytes
        assert record.readings.backward_flops > none.readings.backward_flops
        assert verdict(record) == "bit-equal"
        predicted = predict(Trial(case=msgspec.structs.replace(record.case, device="fake:cpu"))).readings
        assert predicted.saved_bytes == record.readings.saved_bytes


def outcomes(folder):
    return [(str(record.case.strategy), record.round, record.outcome) for record in store.load(folder / "run").records]


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("words", [("run", *QUICK, "--rounds", "2"), ("predict",)], ids=" ".join)
def test_a_model_whose_own_step_fails_is_told_once_in_the_users_frames_and_stops(here, capsys, words):
    code = answer([*words, f"{broken.__file__}:no_product", "--strategies", "none,all,sqrt", "-o", "run"])

    out, err = capsys.readouterr()
    frames = [line.strip().rpartition("/")[2] for line in err.splitlines() if line.strip().startswith("File ")]
    assert (code, out) == (1, "")
    assert outcomes(here) == [("none", 1, "failed")]
    assert frames == ['broken.py", line 41, in <lambda>', 'broken.py", line 37, in mixed']
    assert err.count("RuntimeError: ") == 2  # of the row and of the traceback
    assert "nothing to compare; 2 other rows not run" in err
    assert answer(["run", "--resume", "run"]) == 1  # nothing is owed
    assert outcomes(here) == [("none", 1, "failed")]


# the row `own` stands beside `none` where the model calls checkpoints itself, and nowhere else; nobody asks for it


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

    assert answer(["run", "--model", model, "--strategies", "all", *QUICK, "--rounds", "2", "-o", "run"]) == 1

    printed = capsys.readouterr()
    rows = {str(row.case.strategy): row.outcome for row in rows_of(store.load(here / "run").records)}
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
    case = make.case(strategy, model=Choice.of(MODEL, options), batch_size=None, blocks=BLOCKS, device="fake:cpu")
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

    assert answer(["plan", MODEL, "--blocks", BLOCKS, "--device", "cpu", "--budget", f"{own + 1000}B", "--json"]) == 5

    printed = capsys.readouterr()
    assert json.loads(printed.out)["own_peak_bytes"] == own
    assert "the model's own checkpoints fit" in printed.err
    assert "no plan fits" not in printed.err
    assert printed.err.splitlines()[-1].endswith("--strategies own")
