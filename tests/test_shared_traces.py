"""Rows that are composed of one trace are what each is by a trace of its own, to the byte and to the second."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from profiler.core import plan_file
from profiler.core.case import Choice, Trial
from profiler.core.record import Record
from profiler.predicting import shared_traces
from profiler.predicting.prediction import predict
from profiler.predicting.shared_traces import SharedTraces
from profiler.predicting.traced_case import trace_case
from profiler.training.models import transformer
from tests import make
from tests.conftest import measured
from tests.plans import Saving, plan_of
from tests.user_models import forces

FORCES = Path(forces.__file__)
MODELS = (
    "mnist-cnn:channels=4,layers=6",
    "mlp",
    "cifar-resnet",
    pytest.param("transformer:layers=4,width=32", marks=pytest.mark.nightly),
    pytest.param("torchvision:vgg11:size=32", marks=pytest.mark.nightly),
    pytest.param("torchvision:resnet18:size=32", marks=pytest.mark.nightly),
)
STRATEGIES = (
    "none", "segments:k=1", "segments:k=2", "segments:k=3", "segments:k=4", "sqrt", "all", "every", "first:n=2",
    "segments:k=2,split=balanced", "selective", "recursive",
)  # fmt: skip
FOLLOWS = {"none", "segments:k=1", "segments:k=3", "segments:k=4", "sqrt", "all", "every", "first:n=2"}


def plan(model: str, strategies=STRATEGIES, **fields) -> list[Trial]:
    fields = {"batch_size": 2, **fields}
    cases = [make.case(strategy, model=Choice(model), **fields) for strategy in strategies]
    return [Trial(case=case, passes=("memory",)) for case in cases]


def bare(record: Record) -> Record:
    """Without when it was, and without the steps between views."""
    readings, timeline = record.readings, record.readings.timeline
    peak = msgspec.structs.replace(timeline, phases=(), nbytes={})
    environment = msgspec.structs.replace(record.environment, started=None)
    return msgspec.structs.replace(
        record, readings=msgspec.structs.replace(readings, timeline=peak), stage_seconds={}, environment=environment
    )


def traced_by_itself(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The strategies that are traced while rows are shared, but for the first."""
    names: list[str] = []

    def counted(case, **keywords):
        names.append(str(case.strategy))
        return trace_case(case, **keywords)

    monkeypatch.setattr(shared_traces, "trace_case", counted)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("device", ["fake:t4", "fake:cpu"])
@pytest.mark.parametrize("model", MODELS)
def test_a_composed_row_is_the_traced_one(model: str, device: str, monkeypatch: pytest.MonkeyPatch):
    shared, names = SharedTraces(), traced_by_itself(monkeypatch)

    for trial in plan(model, device=device):
        assert bare(predict(trial, shared=shared)) == bare(predict(trial)), trial.case.strategy

    assert names[0] == "none"
    assert not FOLLOWS.intersection(names[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [{"optimizer": Choice("adamw")}, {"precision": "amp-bf16"}, {"accumulate": 2, "keep_gradients": True}],
    ids=str,
)
def test_so_it_is_however_one_trains(fields):
    shared = SharedTraces()

    for trial in plan("mnist-cnn:channels=4,layers=6", STRATEGIES[:7], device="fake:t4", **fields):
        assert bare(predict(trial, shared=shared)) == bare(predict(trial)), trial.case.strategy


def test_where_the_forward_runs_a_backward_each_row_is_traced():
    shared, model = SharedTraces(), Choice(f"{FORCES}:potential")
    cases = [make.case(name, model=model, batch_size=None, device="fake:cpu") for name in ("none", "all")]

    predicted = [predict(Trial(case=case), shared=shared).readings.peak_bytes for case in cases]

    watched = [
        measured(model, name, batch_size=None, passes=("memory",)).readings.peak_bytes for name in ("none", "all")
    ]
    assert predicted[1] == pytest.approx(watched[1], rel=0.01)
    assert predicted[1] > 5 * predicted[0]  # every layer keeps its random state


@pytest.mark.slow
@pytest.mark.parametrize("is_of_its_blocks", [True, False])
@pytest.mark.parametrize(
    "runs", [[[0, 1], [3]], [[0, [1, 2]]], [Saving([1], "matmul")]], ids=["plain", "nested", "saving"]
)
def test_a_plan_is_composed_where_it_checkpoints_whole_blocks_of_the_model(
    runs, is_of_its_blocks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    workload = transformer.build(layers=4, width=32)
    blocks = workload.blocks if is_of_its_blocks else [*workload.blocks[1:], "head"]
    plan_file.write(plan_of(workload.module, blocks, runs), tmp_path / "plan.json")
    shared, names = SharedTraces(), traced_by_itself(monkeypatch)

    for trial in plan("transformer:layers=4,width=32", ("none", f"plan:file={tmp_path}/plan.json"), device="fake:cpu"):
        assert bare(predict(trial, shared=shared)) == bare(predict(trial)), trial.case.strategy

    is_composed = is_of_its_blocks and runs == [[0, 1], [3]]
    assert len(names) == (1 if is_composed else 2)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mnist-cnn:channels=4,layers=6", "transformer:layers=4,width=32", "cifar-resnet"])
def test_the_rows_of_a_process_are_what_each_is_by_a_trace_of_its_own(model: str, engine):
    trials = plan(model, ("none", "segments:k=2", "segments:k=4"), device="fake:t4")

    records = list(engine.run(trials))

    assert [bare(record) for record in records] == [bare(predict(trial)) for trial in trials]


def test_what_another_process_cannot_tell_is_looked_at_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_traces, "ForkedTask", Mock(return_value=Mock(result=Mock(return_value=None))))
    shared, names = SharedTraces(beside=True), traced_by_itself(monkeypatch)

    for trial in plan(MODELS[0], ("none", "segments:k=2"), device="fake:t4"):
        assert bare(predict(trial, shared=shared)) == bare(predict(trial)), trial.case.strategy

    assert names == ["none"]


@pytest.mark.slow
def test_blocks_that_run_several_times_are_traced(monkeypatch: pytest.MonkeyPatch):
    names = traced_by_itself(monkeypatch)
    shared = SharedTraces()

    for trial in plan("hf:albert:num_hidden_layers=4", ("none", "all", "segments:k=2"), device="fake:cpu"):
        assert bare(predict(trial, shared=shared)) == bare(predict(trial))

    assert names == ["none", "none", "all", "segments:k=2"]
