"""Stored runs in experiment trackers: what is written is read back by the tracker's own reader."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from profiler.cli import answer
from profiler.integrations import trackers
from profiler.integrations.trackers import entries
from profiler.runs import store
from tests import examples, make
from tests.make import MIB
from tests.program import environment, gcprof

RECORDS = [
    make.record("none", peak=100 * MIB, seconds=(0.1, 0.2, 0.3)),
    make.record("segments:k=2", peak=50 * MIB, saved=30 * MIB, seconds=(0.2, 0.2, 0.6)),
    make.failed("segments:k=400", "skipped", "301 blocks cannot be cut into 400 segments"),
]
PREDICTED = make.record("all", peak=40 * MIB, saved=20 * MIB, case=make.case("all", device="fake:cuda"))


@pytest.fixture
def run(here: Path, monkeypatch: pytest.MonkeyPatch) -> store.Run:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_DIR", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return examples.run(here / "run", [*RECORDS, PREDICTED])


@pytest.mark.slow
def test_the_case_is_the_parameters_and_what_was_measured_the_metrics(run):
    none, half, skipped, _ = entries(run)

    assert half.parameters["strategy"] == "segments:k=2"
    assert half.parameters["batch_size"] == 64
    assert (half.metrics["peak_bytes"], half.metrics["peak_ratio"]) == (50 * MIB, 0.5)
    assert (half.metrics["saved_bytes"], half.metrics["static_bytes"]) == (30 * MIB, 20 * MIB)
    assert (none.metrics["step_seconds"], half.metrics["step_seconds"]) == (0.2, 0.2)
    assert half.samples["step_seconds"] == (0.2, 0.2, 0.6)
    assert (skipped.metrics, skipped.tags["outcome"]) == ({}, "skipped")


def test_what_is_predicted_says_so_in_every_name(run):
    *measured, predicted = entries(run)

    assert {name.startswith("predicted_") for name in (*predicted.metrics, *predicted.samples)} == {True}
    assert predicted.tags["kind"] == "predicted"
    assert not any(name.startswith("predicted_") for entry in measured for name in entry.metrics)


def test_tensorboard_reads_the_scalars_back(run):
    assert answer(["export", "run", "--to", "tensorboard", "-o", "board"]) == 0

    entry = entries(run)[1]
    read = EventAccumulator(f"board/segments-k=2-{entry.id}").Reload()
    assert [event.value for event in read.Scalars("peak_bytes")] == [50 * MIB]
    assert [(event.step, round(event.value, 6)) for event in read.Scalars("samples/step_seconds")] == [
        (0, 0.2),
        (1, 0.2),
        (2, 0.6),
    ]
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
    samples = client.get_metric_history(half.info.run_id, "sample_step_seconds")
    assert [one.value for one in samples] == [0.2, 0.2, 0.6]
    assert "wrote 0 rows to file://" in (err := capsys.readouterr().err)
    assert "4 rows there already" in err


def test_wandb_is_written_offline_without_an_account(run):
    pytest.importorskip("wandb")
    done = gcprof("export", "run", "--to", "wandb", "-o", "board", cwd=run.folder.parent)

    assert (done.returncode, done.stdout) == (0, "")
    files = sorted(Path("board/wandb").glob("offline-run-*/*.wandb"))
    assert {path.stem.removeprefix("run-") for path in files} == {entry.id for entry in entries(run)}
    (half,) = (wandb_records(path) for path in files if path.stem == f"run-{entries(run)[1].id}")
    config = {item.key: item.value_json for one in half for item in one.run.config.update}
    assert (config["strategy"], config["batch_size"]) == ('"segments:k=2"', "64")
    summary = {item.key: item.value_json for one in half for item in one.summary.update}
    assert float(summary["peak_bytes"]) == 50 * MIB
    steps = [
        item.value_json
        for one in half
        for item in one.history.item
        if (item.key or "/".join(item.nested_key)) == "sample/step_seconds"
    ]
    assert steps == ["0.2", "0.2", "0.6"]


def wandb_records(path: Path) -> list:
    """What is in a `.wandb` file: LevelDB's log format behind a head of 7 bytes, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    record = vars(wandb_internal_pb2)["Record"]  # made as it is imported
    text, at, whole, found = path.read_bytes(), 7, b"", []
    assert text.startswith(b":W&B")
    while at + 7 <= len(text):
        if 32768 - at % 32768 < 7:  # too little room for a head: the rest of the block is empty
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", text[at : at + 7])
        whole += text[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            found.append(record.FromString(whole))
            whole = b""
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", trackers.TRACKERS)
def test_trackers_are_written_where_torch_is_not_imported(kind, run):
    pytest.importorskip(kind)
    code = (
        f"import sys; from profiler.cli import answer; answer({['export', 'run', '--to', kind]!r}); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())

    assert done.returncode == 0, done.stderr
    assert kind in done.stdout.split()
    assert "torch" not in done.stdout.split()
