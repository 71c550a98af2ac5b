"""Callbacks write the same records from a training loop that is not ours; the frameworks are played here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from profiler.analysis.rows import rows
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.integrations.trainers import lightning_callback
from profiler.integrations.trainers import steps as trainer_steps
from profiler.integrations.trainers.steps import Steps, add
from profiler.measuring.devices import Span
from profiler.runs import run_diff, store
from profiler.runs.writer import Writer
from profiler.training.assemble import assemble
from tests import make

KINDS = (("silent", None), ("told", 9))  # what the device tells of what is reserved


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


def fit(callback: Any, *, batches: int, **facts: Any) -> None:
    """Lightning's order of calls."""
    module = model()
    optimizers = [torch.optim.AdamW(module.parameters())]
    trainer = SimpleNamespace(optimizers=optimizers, accumulate_grad_batches=2, precision="32-true", **facts)
    callback.on_train_start(trainer, module)
    for index in range(batches):
        callback.on_train_batch_start(trainer, module, None, index)
        callback.on_train_batch_end(trainer, module, None, None, index)
    callback.on_train_end(trainer, module)


def arguments(**fields: Any) -> Any:
    """What the callback reads of TrainingArguments."""
    known = {"bf16": False, "fp16": False, "device": "cpu", "gradient_checkpointing": False, "optim": "adamw_torch"}
    more = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "seed": 7}
    return SimpleNamespace(**{**known, **more, **fields})


def test_an_optimizer_step_is_all_its_micro_batches(tmp_path):
    callback = lightning_callback.RecordingCallback(tmp_path / "run", warmup=1, samples=100)

    fit(callback, batches=12)

    (record,) = store.load(tmp_path / "run").records
    assert record == callback.record
    assert record.num_steps == 6
    assert len(record.readings.step_seconds) == 6 - 2  # the first settles, and one more warms up
    assert (record.case.accumulate, record.case.optimizer, record.case.model) == (2, "adamw", "Sequential")
    assert record.built.num_parameters == 2 * 3 + 3 + 3 + 1
    assert record.readings.peak_bytes is None  # on a CPU it is not measured, and never 0


def test_no_more_steps_are_watched_than_were_asked_for(tmp_path):
    callback = lightning_callback.RecordingCallback(tmp_path / "run", warmup=0, samples=2)

    fit(callback, batches=20)

    assert len(callback.record.readings.step_seconds) == 2
    assert callback.record.num_steps == 10


def test_only_one_process_of_many_writes(tmp_path):
    callback = lightning_callback.RecordingCallback(tmp_path / "run", warmup=0)

    fit(callback, batches=4, is_global_zero=False)

    assert not (tmp_path / "run").exists()
    assert callback.record.outcome == "ok"


def test_training_that_ends_while_it_settles_is_no_result(tmp_path):
    callback = lightning_callback.RecordingCallback(tmp_path / "run", warmup=2)

    fit(callback, batches=4)

    assert (callback.record.outcome, callback.record.readings.step_seconds) == ("failed", None)
    assert callback.record.detail == "training ended after 2 steps; the first 3 settle"


def test_runs_with_and_without_checkpointing_in_one_folder_are_compared(tmp_path, a_second_a_mark):
    for strategy in ("none", "all", "all"):
        callback = lightning_callback.RecordingCallback(tmp_path / "run", strategy=strategy, warmup=0)
        fit(callback, batches=8)

    none, full = rows(store.load(tmp_path / "run").records)
    assert (none.case.strategy, full.case.strategy) == ("none", "all")
    assert full.time_ratio == 1.0  # a second a step, with and without
    assert [record.round for record in store.load(tmp_path / "run").records] == [1, 1, 2]


def test_a_training_run_holds_the_digest_of_its_models_file(tmp_path):
    (tmp_path / "mine.py").write_text("def make(): ...")
    name = str(tmp_path / "mine.py")
    record = Steps(make.case(model=Choice(f"{name}:make"))).record(nn.Linear(1, 1))

    add(record, tmp_path / "run", command="a test")

    found = store.load(tmp_path / "run").manifest.sources
    assert found == {name: run_diff.digest(b"def make(): ...")}


def test_a_folder_of_another_device_is_left_alone(tmp_path):
    steps = Steps(make.case(warmup=0, samples=1))
    for _ in range(2):
        steps.begin()
        steps.end()
    record = steps.record(nn.Linear(1, 1))
    add(record, tmp_path / "run", command="a test")
    elsewhere = msgspec.structs.replace(record.environment, device_name="another")

    with pytest.raises(UserError, match="holds a run on"):
        add(msgspec.structs.replace(record, environment=elsewhere), tmp_path / "run", command="a test")

    assert len(store.load(tmp_path / "run").records) == 1


def test_what_a_device_does_not_tell_is_missing_and_never_0():
    steps = Steps(make.case(warmup=0, samples=1))
    spans = {name: Span(start_bytes=1, peak_bytes=7, end_bytes=1, reserved_bytes=nbytes) for name, nbytes in KINDS}

    def readings(*names):
        steps._spans = [spans[name] for name in names]
        return steps.record(nn.Linear(1, 1)).readings

    assert (readings("silent").peak_bytes, readings("silent").reserved_bytes) == (7, None)
    assert readings("silent").device_bytes is None
    assert readings("silent", "told").reserved_bytes == 9


def test_a_round_that_another_process_writes_meanwhile_is_counted(tmp_path, monkeypatch):
    steps = Steps(make.case(warmup=0, samples=1))
    record = steps.record(nn.Linear(1, 1))
    add(record, tmp_path / "run", command="a test")

    def after_another(folder):
        """Its lock was held by one that wrote the same case."""
        monkeypatch.setattr(trainer_steps, "Writer", Writer)
        add(record, folder, command="a test")
        return Writer(folder)

    monkeypatch.setattr(trainer_steps, "Writer", after_another)

    assert add(record, tmp_path / "run", command="a test").round == 3
    assert [one.round for one in store.load(tmp_path / "run").records] == [1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "strategy", "precision"),
    [
        ({}, "none", "fp32"),
        ({"gradient_checkpointing": True}, "hf", "fp32"),
        ({"activation_checkpointing": True, "bf16": True}, "hf", "amp-bf16"),
        ({"fp16": True}, "none", "amp-fp16"),
    ],
)
def test_a_trainers_arguments_are_a_case(fields, strategy, precision):
    transformers_callback = pytest.importorskip("profiler.integrations.trainers.transformers_callback")

    case = transformers_callback.case_of(arguments(**fields), model(), warmup=2, samples=5)

    assert (case.strategy, case.precision, case.optimizer) == (strategy, precision, "adamw_torch")
    assert (case.batch_size, case.accumulate, case.device, case.seed) == (1, 4, "cpu", 7)


@pytest.mark.slow
@pytest.mark.parametrize(("enabled", "strategy"), [(True, "hf"), (False, "none")])
def test_a_model_that_was_switched_on_by_the_user_is_not_called_none(enabled, strategy):
    transformers_callback = pytest.importorskip("profiler.integrations.trainers.transformers_callback")
    module = make_bert()
    if enabled:
        module.gradient_checkpointing_enable()

    case = transformers_callback.case_of(arguments(), module, warmup=2, samples=5)

    assert case.strategy == strategy


def make_bert() -> Any:
    """A tiny one of transformers."""
    case = make.case("none", model=Choice("hf:bert:hidden_size=8,num_attention_heads=2,num_hidden_layers=1"))
    return assemble(case).workload.module


def test_a_trainers_steps_are_recorded_in_its_order_of_calls(tmp_path):
    transformers_callback = pytest.importorskip("profiler.integrations.trainers.transformers_callback")
    callback = transformers_callback.RecordingCallback(tmp_path / "run", warmup=0)
    module, state, control = model(), SimpleNamespace(is_world_process_zero=True), None

    callback.on_train_begin(arguments(), state, control, model=module)
    for _ in range(3):
        callback.on_step_begin(arguments(), state, control)
        callback.on_step_end(arguments(), state, control)
    callback.on_train_end(arguments(), state, control, model=module)

    (record,) = store.load(tmp_path / "run").records
    assert (record.outcome, record.num_steps, len(record.readings.step_seconds)) == ("ok", 3, 2)
