"""Trials over a real Ray cluster of two nodes on this machine: what they find, and what becomes of them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import exceptions

from profiler import engines
from profiler.cli import answer
from profiler.core import gpu_specs, optional_deps
from profiler.core.case import Choice, Trial, decode, encode
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.engines import ray_cluster
from profiler.engines.local import Local
from profiler.runs import store
from tests import examples, make, ray_nodes
from tests.killed import TAG, survivors
from tests.program import PATIENCE_SECONDS
from tests.ray_nodes import Nodes, await_, begun, is_gone, meanwhile, raylet

SECRET = "a-long-and-secret-word"
MINE = """
import os

from parts.layers import layer


def make(fail: bool = False):
    print("the token is", os.environ["GCPROF_TEST_TOKEN"])
    if fail:
        raise RuntimeError(f"not with {os.environ['GCPROF_TEST_TOKEN']}")
    import torch

    return torch.nn.Sequential(*[layer() for _ in range(4)]), torch.ones(2, 8), lambda output: output.mean()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def tag() -> str:
    return f"{os.getpid()}-{random.getrandbits(64):x}"


@pytest.fixture(scope="module")
def nodes(place, tag) -> Iterator[Nodes]:
    nodes = Nodes(GCPROF_TEST_PLACE=str(place), GCPROF_TEST_TOKEN=SECRET, **{TAG: tag})
    yield nodes
    nodes.close()


@pytest.fixture(autouse=True)
def _empty(place: Path) -> Iterator[None]:
    yield
    for path in place.iterdir():
        path.unlink()


def trial(strategy: str, model: str = "mlp:depth=6", **fields) -> Trial:
    case = make.case(strategy, model=Choice(model), batch_size=None, samples=1, warmup=0, **fields)
    return Trial(case=case)


def exact(record) -> tuple:
    """All that must not depend on where it was found."""
    readings = record.readings
    bytes_ = (readings.peak_bytes, readings.saved_bytes, readings.static_bytes, readings.phases, readings.block_calls)
    return (record.case, record.round, record.outcome, record.detail, bytes_, record.equality, record.built)


@pytest.mark.nightly
def test_a_sweep_over_two_nodes_finds_what_local_finds(nodes, here):
    (here / "parts").mkdir()
    (here / "parts" / "layers.py").write_text("import torch\n\n\ndef layer():\n    return torch.nn.Linear(8, 8)\n")
    (here / "mine.py").write_text(MINE)
    plan = [trial(strategy) for strategy in ("none", "segments:k=2", "segments:k=99", "all")]
    plan += [trial(strategy, "mine.py:make") for strategy in ("none", "all")]
    plan += [trial("none", "mine.py:make:fail=true"), trial("none", device="fake:h100")]

    with engines.connect(nodes.engine, stage_seconds=PATIENCE_SECONDS, logs=here / "far") as cluster:
        far = {(one.case, one.round): one for one in cluster.run(plan)}
    with Local(stage_seconds=PATIENCE_SECONDS, logs=here / "near") as local:
        near = {(one.case, one.round): one for one in local.run(plan)}

    assert [exact(far[key]) for key in near] == [exact(near[key]) for key in near]
    assert Counter(one.outcome for one in near.values()) == {"ok": 6, "skipped": 1, "failed": 1}
    logs = [{path.name: path.read_bytes() for path in (here / name).iterdir()} for name in ("far", "near")]
    assert logs[0].keys() == logs[1].keys()
    told = [name for name, text in logs[0].items() if b"the token is [hidden]\n" in text]
    assert len(told) == 3
    assert all(SECRET.encode() not in text for text in logs[0].values())


@pytest.mark.nightly
def test_each_kind_of_gpu_is_a_task_on_a_node_that_has_it(nodes, here, monkeypatch, capsys):
    monkeypatch.setattr(ray_cluster, "WORKER", "tests.ray_worker")
    words = ["--model", "mlp", "--segments", "2", "--rounds", "1", "--samples", "1", "--gpus", "h100,t4"]

    code = answer(["run", *words, "--engine", nodes.engine, "-o", "run"])

    assert code == 0, capsys.readouterr().err
    found = Counter((one.case.device, one.environment.device_uuid) for one in store.load(Path("run")).records)
    assert found == {
        ("cuda:h100", f"{raylet(nodes.head)} sees 0"): 2,
        ("cuda:t4", f"{raylet(nodes.other)} sees 0"): 2,
    }


@pytest.mark.nightly
def test_a_kind_that_the_cluster_does_not_have_or_cannot_use_is_refused(nodes):
    plan = [trial("none", device="cuda:a100"), trial("none", device="cuda:t4")]
    only_cpu, of_another = {"devices": {}}, {"devices": {"cuda:0": examples.ENVIRONMENT}}

    cluster: Any
    with engines.connect(nodes.engine, plan=plan) as cluster:
        with pytest.raises(UserError) as absent:
            cluster.survey()
        for answer, why in ((only_cpu, "torch sees no CUDA device there"), (of_another, "Ray gives a .* for it")):
            cluster._answer = lambda task, seconds, answer=answer: json.loads(encode(answer))
            with pytest.raises(UserError, match=f"--gpus: 't4' cannot be had: {why}"):
                cluster._surveyed("cuda:t4", None)
            assert cluster._surveyed("cuda:h100", None) == {}  # which nobody asked for

    assert (str(absent.value), absent.value.exit_code) == ("--gpus: the cluster has no 'a100'", 3)
    assert absent.value.hint == "it has h100, t4"


@pytest.mark.nightly
def test_ctrl_c_keeps_what_is_done_and_ends_what_is_at_work_and_resume_goes_on(nodes, here, place, capsys):
    (here / "waiting.py").write_text(ray_nodes.WAITING)
    words = ["--model", "mlp,waiting.py:make", "--segments", "1", "--rounds", "1", "--samples", "1", "--device", "cpu"]

    def interrupt() -> None:
        await_(lambda: list(here.glob("run/trials.jsonl")) and store.load(here / "run").records, "a record is there")
        await_(lambda: begun(place), "a trial waits")
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(interrupt):
        code = answer(["run", *words, "--engine", nodes.engine, "-o", "run"])
    kept = store.load(Path("run")).records
    waiting = begun(place)

    assert code == 130
    assert [str(one.case.model) for one in kept] == ["mlp"]
    await_(lambda: all(map(is_gone, waiting)), "what was at work is ended")

    (place / "go").touch()
    assert answer(["run", "--resume", "run", "--model", "mlp,waiting.py:make", "--engine", nodes.engine]) == 0

    found = store.load(Path("run")).records
    assert found[: len(kept)] == kept
    assert Counter((str(one.case.model), str(one.case.strategy)) for one in found) == dict.fromkeys(
        [(model, strategy) for model in ("mlp", "waiting.py:make") for strategy in ("none", "segments:k=1")], 1
    )


@pytest.mark.nightly
def test_of_a_node_that_is_killed_with_trials_at_work_nothing_is_lost_or_doubled(nodes, here, place, capfd):
    (here / "waiting.py").write_text(ray_nodes.WAITING)
    plan = [trial("none", f"waiting.py:make:number={number}") for number in range(12)]

    def kill() -> None:
        await_(lambda: begun(place, nodes.other) and begun(place, nodes.head), "both nodes are at work")
        nodes.kill(nodes.other)
        (place / "go").touch()

    cluster: Any
    with engines.connect(nodes.engine, stage_seconds=PATIENCE_SECONDS) as cluster, meanwhile(kill):
        found = list(cluster.run(plan))
        assert cluster._has_place("cuda:h100")
        await_(lambda: not cluster._has_place("cuda:t4"), "the cluster knows that the node is dead")

    assert Counter((one.case, one.outcome) for one in found) == {(one.case, "ok"): 1 for one in plan}
    assert capfd.readouterr().out == ""  # Ray would tell of the node there


@pytest.mark.nightly
def test_nothing_is_left_of_the_cluster(nodes, tag):
    assert len(survivors(tag, patience=0.0)) > 3  # the twin: they are seen

    nodes.close()

    assert survivors(tag, patience=PATIENCE_SECONDS) == []


@pytest.mark.slow
def test_nobody_listens_there():
    engine = engines.connect("ray:address=127.0.0.1:9")

    with pytest.raises(UserError, match=r"no Ray cluster at '127\.0\.0\.1:9'") as caught:
        engine.__enter__()

    assert (caught.value.exit_code, "ray start --head" in caught.value.hint) == (3, True)


class FakeRay:
    """Takes trials; each comes back at once as what `answer` returns or raises, or stays under way for None."""

    def __init__(self, answer: Callable[[Trial, int], Record | BaseException | None], *, num_nodes: int = 1) -> None:
        self.exceptions = exceptions
        self.sent: Counter[Trial] = Counter()
        self.cancelled: list[Trial] = []
        self._answer = answer
        self._nodes = [{"Alive": True, "Resources": {"CPU": 1}}] * num_nodes

    def remote(self, **options: Any) -> Any:
        return lambda function: SimpleNamespace(options=lambda **needs: SimpleNamespace(remote=self._send))

    def _send(self, request: bytes, **server: Any) -> Any:
        trial = decode(request, Trial)
        self.sent[trial] += 1
        future: Any = Future()
        future.object_ref = trial
        answer = self._answer(trial, self.sent[trial])
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        elif answer:
            future.set_result((encode(answer), b""))
        return SimpleNamespace(future=lambda: future)

    def cancel(self, reference: Any, *, force: bool) -> None:
        self.cancelled.append(reference)

    def nodes(self) -> list[dict[str, Any]]:
        return self._nodes


@pytest.fixture
def far(monkeypatch) -> Callable[[FakeRay], ray_cluster.RayCluster]:
    """Make an engine of a fake cluster that waits for no node."""
    monkeypatch.setattr(ray_cluster, "LOOK_SECONDS", 0.01)

    def made(fake: FakeRay) -> ray_cluster.RayCluster:
        monkeypatch.setattr(optional_deps, "load", lambda name: fake)
        return ray_cluster.connect(wait=0)

    return made


def many(number: int, device: str = "cpu") -> list[Trial]:
    return [trial("none", f"mlp:depth={depth}", device=device) for depth in range(1, number + 1)]


def fine(sent: Trial, attempt: int = 1) -> Record:
    return make.record(case=sent.case, round=sent.round)


def test_each_trial_comes_back_once_and_no_more_are_under_way_than_agreed(far, monkeypatch):
    monkeypatch.setattr(ray_cluster, "AHEAD", 4)
    fake, num_sent = FakeRay(fine), []

    found = [num_sent.append(fake.sent.total()) or record for record in far(fake).run(many(10))]

    assert Counter(one.case for one in found) == Counter(one.case for one in many(10))
    assert num_sent == [4, 5, 6, 7, 8, 9, 10, 10, 10, 10]


def test_a_device_does_not_wait_for_another_ones_trials(far, monkeypatch):
    monkeypatch.setattr(ray_cluster, "AHEAD", 4)
    plan = [*many(10, "cuda:h100"), *many(1, "cuda:t4")]
    engine = far(FakeRay(lambda sent, attempt: fine(sent) if sent.case.device == "cuda:t4" else None))

    assert next(iter(engine.run(plan))).case.device == "cuda:t4"


@pytest.mark.parametrize(("lost_times", "outcome"), [(ray_cluster.ATTEMPTS - 1, "ok"), (99, "crashed")])
def test_a_trial_whose_place_is_lost_is_sent_again_a_few_times(far, lost_times, outcome):
    lost = exceptions.WorkerCrashedError()
    fake = FakeRay(lambda sent, attempt: lost if attempt <= lost_times else fine(sent))

    (record,) = far(fake).run(many(1))

    assert (record.outcome, fake.sent.total()) == (outcome, ray_cluster.ATTEMPTS)
    assert ("lost, 3 times" in (record.detail or "")) == (outcome == "crashed")


@pytest.mark.parametrize(
    ("cause", "outcome", "detail"),
    [
        (ValueError("it is broken"), "failed", "ValueError: it is broken"),
        (UserError("no torch", hint="install it"), "crashed", "on the node: no torch; install it"),
    ],
)
def test_what_goes_wrong_otherwise_is_not_tried_again(far, cause, outcome, detail):
    fake = FakeRay(lambda sent, attempt: exceptions.RayTaskError("run_trial", "", cause))

    (record,) = far(fake).run(many(1))

    assert (record.outcome, record.detail, fake.sent.total()) == (outcome, detail, 1)


def test_closing_ends_all_that_is_under_way_and_nothing_else(far):
    fake = FakeRay(lambda sent, attempt: fine(sent) if sent.case == many(1)[0].case else None)
    records = far(fake).run(many(3))

    next(records)
    records.close()

    assert [one.case for one in fake.cancelled] == [one.case for one in many(3)[1:]]


def test_where_no_node_can_take_them_any_more_trials_have_crashed(far, monkeypatch):
    monkeypatch.setattr(ray_cluster, "AHEAD", 4)
    fake = FakeRay(lambda sent, attempt: None, num_nodes=0)

    found = list(far(fake).run(many(6)))

    assert [(one.case, one.outcome) for one in found] == [(one.case, "crashed") for one in many(6)]
    assert len(fake.cancelled) == 4


# What is sent


def test_the_folder_is_sent_for_code_in_it_alone(here, monkeypatch):
    (here / "pack").mkdir()
    (here / "pack" / "models.py").write_text("def make(): ...")
    (here / "plan.json").write_text("{}")
    monkeypatch.syspath_prepend(str(here))

    def sends(model: str, strategy: str = "none") -> bool:
        return ray_cluster._has_own_code([make.case(strategy, model=Choice(model))])

    assert sends("pack/models.py:make")
    assert sends("pack.models:make")
    assert sends("mlp", "plan:file=plan.json")
    assert not (sends("torch.nn:Linear"))
    assert not (sends("torchvision:resnet18"))
    assert not (sends("mlp"))


@pytest.mark.parametrize("name", ["/somewhere/mine.py", "../mine.py", "code/../../mine.py"])
def test_a_file_that_is_not_below_the_present_folder_is_refused(here, name):
    with pytest.raises(UserError, match="cannot be sent to a cluster"):
        ray_cluster._has_own_code([make.case(model=Choice(f"{name}:make"))])


def test_the_package_that_travels_works_by_itself_and_knows_the_gpus(tmp_path):
    ray_cluster.pack_package(tmp_path)

    lines = "import profiler; from profiler.core import gpu_specs; print(profiler.__file__, *gpu_specs.names())"
    environment = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == [str(tmp_path / "profiler" / "__init__.py"), *gpu_specs.names()]


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(UserError, match="this needs ray") as caught:
        engines.connect("ray")

    assert caught.value.hint == "pip install 'gcprof[ray]'"
