"""Models whose gradients are missing, wrong or never twice the same, and models that change more than is theirs."""

from __future__ import annotations

import pytest

from profiler.analysis.rows import Row, rows
from profiler.measuring.bench import switches
from profiler.runs import store
from profiler.views.tables import grid
from profiler.views.tables.columns import main
from tests.conftest import measured
from tests.faults.trials import outcomes, run, trial

PASSES = ("equality",)


def table(folder) -> dict[str, Row]:
    return {str(row.case.strategy): row for row in rows(store.load(folder).records)}


def codes(record) -> list[str]:
    return [note.code for note in record.notes]


def is_dimmed(row: Row) -> bool:
    return any(span.style == "dim" for span in grid.text(main([row])).spans)


def check_invalid(folder, strategy: str) -> None:
    """Its numbers are there, greyed; they are no saving, and no point that any other is measured by."""
    row = table(folder)[strategy]
    assert row.outcome == "invalid"
    assert row.readings.peak_bytes is not None
    assert (row.peak_ratio, row.time_ratio, row.on_frontier) == (None, None, False)
    assert is_dimmed(row)


@pytest.mark.slow
def test_fault_25_missing_gradients_make_a_setting_invalid_and_are_named(here, shared, capsys):
    code = run("nograd", "all,segments:k=1")

    assert code == 1
    assert outcomes(here / "run") == {"none": "ok", "all": "invalid", "segments:k=1": "ok"}
    assert "all: invalid: 1 of 5 parameters have no gradient: 2.scale" in capsys.readouterr().out
    check_invalid(here / "run", "all")


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_fault_25_a_reentrant_checkpoint_of_an_input_without_gradient_names_the_parameters():
    record = measured("mlp", "_planted:fault=reentrant", passes=PASSES)

    assert record.outcome == "invalid"
    assert record.equality.missing == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert record.detail == "4 of 6 parameters have no gradient: 0.weight, 0.bias, 2.weight, ..."


@pytest.mark.slow
def test_fault_26_gradients_beyond_the_floor_make_a_setting_invalid_and_name_the_worst(here, shared, capsys):
    code = run("dropout_norng", "all,segments:k=1")

    assert code == 1
    assert outcomes(here / "run") == {"none": "ok", "all": "invalid", "segments:k=1": "ok"}
    told = table(here / "run")["all"]
    assert f"gradients differ by {told.equality.largest_difference:.1e}" in told.detail
    assert f"worst in {told.equality.worst_parameter}" in told.detail
    assert "two runs without checkpointing differ by 0.0e+00" in capsys.readouterr().out
    check_invalid(here / "run", "all")


def test_fault_26_dropout_without_its_random_state_is_invalid_and_names_the_worst_parameter():
    record = measured("tests.faulty:build:kind=dropout", "_planted:fault=random-state", passes=PASSES)

    assert record.outcome == "invalid"
    assert record.equality.loss_equal
    assert record.equality.worst_parameter in record.detail
    assert record.equality.largest_difference > 0.01


@pytest.mark.slow
def test_fault_27_a_model_that_is_never_twice_the_same_is_measured_by_its_own_floor(here, shared, capsys):
    code = run("noise", "all")

    found = table(here / "run")
    assert code == 0
    assert 0 < found["none"].equality.noise_floor < 0.1
    assert found["all"].equality.noise_floor > 0
    assert [row.gradients for row in found.values()] == ["within noise", "within noise"]
    assert "within noise" in capsys.readouterr().out


@pytest.mark.slow
def test_fault_28_a_recompute_of_other_shapes_is_lost_alone_and_says_so(here, shared, capsys):
    code = run("shape", "all,segments:k=1")

    assert code == 1
    assert outcomes(here / "run") == {"none": "ok", "all": "failed", "segments:k=1": "ok"}
    words = "all: failed: checkpoint mismatch: the recompute gives different tensors: the forward changes 2.is_rec"
    assert words in " ".join(capsys.readouterr().out.split())


def test_fault_29_switches_that_a_model_changes_are_told_and_the_next_trial_has_its_own(engine):
    mine = switches()["threads"]

    spoilt, clean = engine.run([trial("flags"), trial()])

    (note,) = (note for note in spoilt.notes if note.code == "GCP019")
    assert f"threads {mine} -> 3" in note.text
    assert "cudnn.benchmark False -> True" in note.text
    assert (spoilt.outcome, clean.outcome) == ("ok", "ok")
    assert "GCP019" not in codes(clean)
    assert clean.environment.num_threads == int(mine)


@pytest.mark.slow
def test_fault_30_statistics_that_a_recompute_updates_again_are_a_note_and_no_failure(here, shared, capsys):
    code = run("batchnorm", "all")

    assert code == 0
    assert outcomes(here / "run") == {"none": "ok", "all": "ok"}
    assert not table(here / "run")["all"].equality.buffers_equal
    assert table(here / "run")["all"].gradients == "bit-equal"
    out = capsys.readouterr().out
    assert "GCP004 all: buffers differ by" in out
    assert "--repair-batchnorm mends it" in out
