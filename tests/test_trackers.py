"""Stored runs in experiment trackers: what is written is read back by the tracker's own reader."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from profiler.cli import answer
from profiler.runs import store
from profiler.views.trackers import entries
from tests import examples, make
from tests.make import MIB
from tests.program import gcprof

RECORDS = [
    make.record("none", peak=100 * MIB, seconds=(0.1, 0.2, 0.3)),
    make.record("segments:k=2", peak=50 * MIB, saved=30 * MIB, seconds=(0.2, 0.2, 0.6)),
    make.failed("segments:k=400", "skipped", "301 blocks cannot be cut into 400 segments"),
    make.record("all", peak=40 * MIB, saved=20 * MIB, device="fake:cuda"),
]


@pytest.fixture
def run(here: Path, monkeypatch: pytest.MonkeyPatch) -> store.Run:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_DIR", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return examples.run(here / "run", RECORDS)


def test_the_case_is_the_parameters_what_was_measured_the_metrics_and_what_is_predicted_says_so(run):
    none, half, skipped, predicted = entries(run)

    assert (half.parameters["strategy"], half.parameters["batch_size"]) == ("segments:k=2", 64)
    assert (half.metrics["peak_bytes"], half.metrics["peak_ratio"]) == (50 * MIB, 0.5)
    assert (none.metrics["step_seconds"], half.samples["step_seconds"]) == (0.2, (0.2, 0.2, 0.6))
    assert (skipped.metrics, skipped.tags["outcome"]) == ({}, "skipped")
    assert {name.startswith("predicted_") for name in (*predicted.metrics, *predicted.samples)} == {True}
    assert not any(name.startswith("predicted_") for entry in (none, half) for name in entry.metrics)


def test_tensorboard_reads_the_scalars_back(run):
    assert answer(["export", "run", "--to", "tensorboard", "-o", "board"]) == 0

    read = EventAccumulator(f"board/segments-k=2-{entries(run)[1].id}").Reload()
    assert [event.value for event in read.Scalars("peak_bytes")] == [50 * MIB]
    assert [round(event.value, 6) for event in read.Scalars("samples/step_seconds")] == [0.2, 0.2, 0.6]
    assert len([path for path in Path("board").iterdir() if path.is_dir()]) == 4


def test_mlflow_reads_a_local_store_back_and_knows_what_is_there(run, capsys):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    assert answer(["export", "run", "--to", "mlflow", "-o", "store"]) == 0
    assert answer(["export", "run", "--to", "mlflow", "-o", "store"]) == 0

    client = MlflowClient(tracking_uri=Path("store").absolute().as_uri())
    found = client.search_runs([client.get_experiment_by_name("gcprof").experiment_id])
    assert len(found) == 4
    (half,) = (one for one in found if one.info.run_name == "segments:k=2")
    assert half.data.params["batch_size"] == "64"
    assert half.data.metrics["peak_bytes"] == 50 * MIB
    assert half.data.tags["outcome"] == "ok"
    assert [one.value for one in client.get_metric_history(half.info.run_id, "sample_step_seconds")] == [0.2, 0.2, 0.6]
    assert "wrote 0 rows to file://" in (err := capsys.readouterr().err)
    assert "4 rows there already" in err


def test_wandb_is_written_offline_without_an_account(run):
    pytest.importorskip("wandb")
    done = gcprof("export", "run", "--to", "wandb", "-o", "board", cwd=run.folder.parent)

    assert (done.returncode, done.stdout) == (0, "")
    files = sorted(Path("board/wandb").glob("offline-run-*/*.wandb"))
    assert {path.stem.removeprefix("run-") for path in files} == {entry.id for entry in entries(run)}
    (half,) = (path.read_bytes() for path in files if path.stem == f"run-{entries(run)[1].id}")
    for text in (b"batch_size", b"64", b"peak_bytes", str(50 * MIB).encode(), b"step_seconds", b"0.6"):
        assert text in half  # protocol buffers hold texts as they are
