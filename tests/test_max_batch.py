"""`gcprof max-batch`: the largest batch that a memory holds, foreseen, measured there and one further."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from profiler.cli import answer
from profiler.core import catalogue, plan_file
from profiler.core.case import Choice, Trial
from profiler.core.gpu_specs import CONTEXT_BYTES as CONTEXT
from profiler.core.gpu_specs import is_hollow
from profiler.core.record import Readings, Record, bytes_needed
from profiler.runs import store
from profiler.training import models
from profiler.workflows import max_batch, stages
from profiler.workflows.max_batch import Largest
from profiler.workflows.planner import GATE
from tests import make
from tests.conftest import run_folder
from tests.program import next_words

pytestmark = pytest.mark.usefixtures("shared")

SMALL = "transformer:layers=4,width=32"
FLAGS = ("--device", "cpu")


@pytest.fixture(scope="module")
def peaks(engine: Any) -> dict[int, int]:
    """The predicted peaks of two batches without checkpointing."""
    found = {}
    for size in (4, 5):
        case = make.case(model=catalogue.resolve(Choice(SMALL), models.TABLE), batch_size=size)
        fake = Trial(case=case.foreseen, passes=("memory",))
        (record,) = engine.run([fake])
        assert record.outcome == "ok"
        found[size] = record.readings.peak_bytes
    return found


@pytest.mark.nightly
def test_each_gets_its_largest_batch_and_it_is_measured_there_and_one_further(here, peaks, capsys):
    each = peaks[5] - peaks[4]
    limit = peaks[4] + 2 * each + each // 2  # so that none has six samples, and not seven

    code = answer(["max-batch", SMALL, "--memory", f"{limit}B", *FLAGS, "--rounds", "1", "--json"])

    said = capsys.readouterr()
    found = json.loads(said.out)
    none, every, planned = found["strategies"]
    assert code == 0
    assert (found["schema"], found["memory_bytes"]) == (1, limit)
    assert [one["strategy"] for one in found["strategies"]] == ["none", "all", "plan"]
    assert none["batch_size"] == 6
    assert 6 < every["batch_size"] <= planned["batch_size"]
    for one in found["strategies"]:
        assert one["measured_bytes"] == one["predicted_bytes"] <= limit < one["beyond_bytes"]
        assert one["samples_per_second"] > 0
    run = store.load(run_folder(here / "results"))
    sizes = [(record.case.strategy.name, record.case.batch_size) for record in run.records]
    assert sizes == [
        *((one["strategy"], one["batch_size"]) for one in found["strategies"]),
        *((one["strategy"], one["batch_size"] + 1) for one in found["strategies"]),
    ]
    file = dict(run.records[2].case.strategy.options)["file"]
    assert plan_file.read(Path(file)).segments
    assert Path(file) == run.folder.relative_to(here) / "plans" / "plan.json"
    assert [one.name for one in (here / "results").iterdir()] == [run.folder.name]
    assert f"{SMALL} plan batch size {planned['batch_size']} round 1: ok" in said.err
    assert run.manifest.sources == store.code_digests(record.case for record in run.records)
    assert list(run.manifest.sources) == [file]
    words = next_words(said.err)
    assert words[-4:] == ["--batch-size", str(planned["batch_size"]), "--budget", f"{limit}B"]
    assert words[:2] == ["plan", SMALL]


@pytest.mark.nightly
def test_a_gpu_that_is_not_there_is_foreseen_with_what_cuda_itself_takes(here, capsys):
    words = [SMALL, "--device", "fake:t4", "--strategies", "none", "--json", "--memory"]

    assert answer(["max-batch", *words, f"{CONTEXT - 1}B"]) == GATE
    without = json.loads(capsys.readouterr().out)["strategies"]
    assert answer(["max-batch", *words, f"{CONTEXT + 100 * 2**20}B"]) == 0
    within = json.loads(capsys.readouterr().out)["strategies"]

    assert [one["batch_size"] for one in without] == [0, 0]
    assert all(one["batch_size"] > 0 for one in within)
    assert all(one["measured_bytes"] is None for one in within)
    assert all(CONTEXT < one["predicted_bytes"] <= CONTEXT + 100 * 2**20 for one in within)
    assert within[1]["batch_size"] > within[0]["batch_size"]


def test_what_cuda_takes_is_measured_where_the_device_is(engine):
    readings = Readings(peak_bytes=5, reserved_bytes=70, device_bytes=470)
    answers = {"ok": make.record(readings=readings), "without": make.record(readings=Readings(peak_bytes=5))}

    def measured(kind: str, device: str) -> int | None:
        return stages.measured_context(Answering(answers[kind]), make.case(device=device))

    assert measured("ok", "cuda:0") == 400
    assert measured("without", "cuda:0") is None
    assert measured("ok", "cpu") is None
    assert measured("ok", "fake:h100") is None


class Answering:
    """An engine with one answer."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def run(self, plan: Iterable[Trial]) -> Iterator[Record]:
        return (self._record for _ in plan)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")
def test_on_a_device_that_is_there_its_own_context_is_counted_and_on_a_hollow_one_it_is_assumed(here, capsys):
    words = ["max-batch", SMALL, "--device", "cuda:0", "--strategies", "none", "--memory", "1GiB", "--rounds", "1"]

    assert answer(words) == 0

    title = " ".join(capsys.readouterr().out.split()).partition(" strategy ")[0]
    how = "assumed" if is_hollow(torch.cuda.get_device_name()) else "measured"
    assert re.search(rf"of that CUDA itself takes \d\S* \w+, {how}", title)


def test_what_a_device_needs_is_what_its_allocator_reserves_and_cuda_itself():
    readings = Readings(peak_bytes=5, reserved_bytes=7)

    assert bytes_needed(readings, "cpu") == 5
    assert bytes_needed(readings, "fake:cpu") == 5
    assert bytes_needed(readings, "cuda:0") == 7 + CONTEXT
    assert bytes_needed(Readings(peak_bytes=5), "fake:t4") == 5 + CONTEXT
    assert bytes_needed(Readings(), "cuda:0") is None
    assert bytes_needed(Readings(), "cpu") is None


class Sized:
    """An engine whose steps need so many bytes a sample, measured and foreseen."""

    def __init__(self, measured: int, foreseen: int, outcome: str = "ok") -> None:
        self.bytes_of = {False: measured, True: foreseen}
        self.outcome = outcome

    def run(self, trials: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        for trial in trials:
            size = trial.case.batch_size * self.bytes_of[trial.case.is_predicted]
            outcome = "ok" if trial.case.is_predicted else self.outcome
            yield make.record(case=trial.case, outcome=outcome, readings=Readings(peak_bytes=size))


@pytest.mark.parametrize(
    ("measured", "outcome", "batch_size", "foreseen"),
    [
        (10, "ok", 10, 100),
        (11, "ok", 9, 90),
        (25, "ok", 4, 40),
        (101, "ok", 0, 100),
        (1, "out_of_memory", 0, 100),
        (25, "crashed", 10, 100),  # the run shows it
    ],
)
def test_a_batch_whose_step_does_not_fit_is_not_the_largest(measured, outcome, batch_size, foreseen):
    engine = Sized(measured=measured, foreseen=10, outcome=outcome)
    predicted = Largest(strategy=Choice("none"), batch_size=10, predicted_bytes=100)

    found = max_batch.Search(engine, make.case(), 100).confirmed(predicted)

    assert (found.batch_size, found.predicted_bytes) == (batch_size, foreseen)


FIXED = Path(__file__).parent / "user_models" / "broken.py"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["mlp", "--memory", "60"], "--memory cannot be '60': 60 B or 60 %?"),
        (["mlp", "--memory", "1GiB", "--context", "600"], "--context cannot be '600': 600 B or 600 GiB?"),
        (["mlp", "--memory", "60%", "--device", "fake:cuda"], "--memory cannot be a share: how much 'fake:cuda' has"),
        (["mlp"], "missing option '--memory'"),
        (["mlp", "--memory", "1GiB", "--no-measure", "--rounds", "2"], "--rounds has no effect where no step is timed"),
        ([f"{FIXED}:no_loss", "--memory", "1GiB", "--device", "cpu"], "makes its own batch, of one size"),
    ],
)
def test_what_has_no_largest_batch_is_refused(here, shared, capsys, words, complaint):
    assert answer(["max-batch", *words]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert complaint in said.err
