"""Several devices at once: one trial on each, what is compared within a round on one; and trials by themselves."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Barrier

import msgspec
import pytest

from profiler.core import device_choice
from profiler.core.case import Choice, Trial
from profiler.core.errors import UserError
from profiler.core.record import Environment
from profiler.engines.local import Local, run_on_devices
from profiler.measuring.devices import of_rank
from tests import lane_worker, make
from tests.program import PATIENCE_SECONDS

GPU = Environment(gcprof="1", python="3", system="Linux", device_name="H200", device_bytes=141 << 30, device_uuid="a")
DEVICES = {
    "cpu": msgspec.structs.replace(GPU, device_name="a CPU", device_uuid=None),
    "cuda:0": GPU,
    "cuda:1": msgspec.structs.replace(GPU, device_uuid="b"),
}


def trials(*rounds: int, models: tuple[str, ...] = ("mlp",), passes: tuple[str, ...] = ("time",)) -> list[Trial]:
    fields = {"batch_size": 4, "samples": 1, "warmup": 0}
    return [
        Trial(case=make.case(strategy, model=Choice(model), **fields), round=round_, passes=passes)
        for round_ in rounds
        for model in models
        for strategy in ("none", "segments:k=2")
    ]


def test_every_trial_is_run_once_and_what_is_compared_within_a_round_stays_in_one_lane_in_its_order():
    barrier, asked = Barrier(2), ([], [])
    plan = trials(2, 3, 4, models=("mlp", "mlp:width=8"))

    def run(number, trials):
        """Answers at once; not before the other device is asked too."""
        for trial in trials:
            asked[number].append(trial)
            if len(asked[number]) == 1:
                barrier.wait(timeout=PATIENCE_SECONDS)
            yield make.record(case=trial.case, round=trial.round)

    devices = [partial(run, number) for number in range(2)]
    records = list(run_on_devices(devices, plan, stop=lambda: pytest.fail("there is nothing to stop")))

    assert Counter((one.case, one.round) for one in records) == Counter((one.case, one.round) for one in plan)
    lanes = [{(one.case.baseline, one.round) for one in of} for of in asked]
    assert all(lanes)
    assert not lanes[0] & lanes[1]
    for of in asked:
        for first, second in pairwise(of):
            assert second.case == second.case.baseline or first.case.baseline == second.case.baseline


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    """An engine with two devices that a CPU stands in for; the workers leave word in the folder."""
    monkeypatch.setenv(lane_worker.FOLDER, str(tmp_path))
    with Local(stage_seconds=PATIENCE_SECONDS, entry="tests.lane_worker:run_trials") as engine:
        engine.devices = ("GPU-a", "GPU-b")
        yield engine


@pytest.mark.slow
def test_each_device_has_one_trial_at_a_time_and_sees_itself_alone(tmp_path, two):
    assert [record.outcome for record in two.run(trials(2, 3, 4, 5))] == ["ok"] * 8
    words = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*.json")]
    assert {word["seen"] for word in words} == {"GPU-a", "GPU-b"}
    for device in ("GPU-a", "GPU-b"):
        spans = sorted((word["began"], word["ended"]) for word in words if word["seen"] == device)
        assert all(first[1] <= second[0] for first, second in pairwise(spans))
    both = sorted((word["began"], word["ended"], word["seen"]) for word in words)
    assert any(second[0] < first[1] for first, second in pairwise(both)), "they never ran beside each other"


@pytest.mark.parametrize(
    ("text", "found", "why"),
    [
        ("0,0", DEVICES, "names a GPU twice"),
        ("0,1", {**DEVICES, "cuda:1": msgspec.structs.replace(GPU, device_name="T4", device_uuid="b")}, "H200 and T4"),
        ("0", {**DEVICES, "cuda:0": msgspec.structs.replace(GPU, device_uuid=None)}, "does not tell its UUID"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, found, why):
    with pytest.raises(UserError, match=why):
        device_choice.several(text, found)


def test_a_rank_takes_its_gpu_and_a_gpu_that_is_named_by_its_kind_is_the_first():
    assert of_rank(make.case("none", device="cuda:2"), 1).torch_device == "cuda:3"
    assert of_rank(make.case("none", device="cuda:h100"), 0).torch_device == "cuda:0"


# --- one child: real processes throughout


MINE = """
import torch

def make():
    return torch.nn.Linear(2, 2), (torch.ones(3, 2), torch.ones(3, 2)), torch.nn.MSELoss()
"""


def trial(model: str = "mlp", batch_size: int | None = None, **fields) -> Trial:
    return Trial(case=make.case(model=Choice(model), batch_size=batch_size, samples=1, warmup=0), **fields)


def test_a_record_from_a_child_is_whole(engine):
    (record,) = engine.run([trial(batch_size=4)])

    assert record.outcome == "ok"
    assert record.readings.peak_bytes > record.readings.start_bytes > 0
    assert record.environment.torch is not None
    assert set(record.stage_seconds) == {"start", "build", "equality", "flops", "memory", "time"}
    sample = record.readings.steps_per_sample
    in_turns = 2 * (1 + sample)  # settle, a sample; as often without the strategy
    assert record.num_steps == 1 + 2 + 2 + in_turns  # counting; settle, read; the same two steps again; time


def test_relative_paths_begin_where_the_client_is_now(engine, here):
    (here / "mine.py").write_text(MINE)

    (found,) = engine.run([trial("mine.py:make")])
    (here / "mine.py").unlink()
    (gone,) = engine.run([trial("mine.py:make")])

    assert found.outcome == "ok", found.detail
    assert gone.outcome != "ok"


@pytest.mark.parametrize(("model", "module", "is_there"), [
    ("dense-chain:widths=4+4", "profiler.training.models.built_in", True),
    ("tests.user_models.architectures:any_order", "tests.user_models.architectures", False),
])  # fmt: skip
def test_the_server_imports_a_model_of_the_table_once_for_all_children_and_never_a_users(
    engine, model, module, is_there
):
    list(engine.run([trial(model)]))

    assert engine.ask("tests.faults.trials:imported", module, failing="no answer") == {"is_there": is_there}
