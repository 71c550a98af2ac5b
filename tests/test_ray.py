"""Trials over a Ray cluster, a real one on this machine and a fake one: what they find, and what becomes of them."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from ray import exceptions

from profiler import engines
from profiler.core import gpu_specs
from profiler.core.case import Choice, Trial, decode, encode
from profiler.core.record import Record
from profiler.engines import ray_cluster
from profiler.engines.local import Local
from tests import examples, make, ray_nodes
from tests.program import PATIENCE_SECONDS

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


@pytest.fixture
def address() -> Iterator[str]:
    """A real cluster of two nodes: the head claims an H100, the other a T4."""
    with ray_nodes.nodes("H100", "T4", GCPROF_TEST_TOKEN=SECRET) as found:
        yield found


def trial(strategy: str, model: str = "mlp:depth=6", **fields) -> Trial:
    return Trial(case=make.case(strategy, model=Choice(model), batch_size=None, samples=1, warmup=0, **fields))


@pytest.mark.nightly
def test_a_sweep_over_two_nodes_finds_what_local_finds(address, here):
    (here / "parts").mkdir()
    (here / "parts" / "layers.py").write_text("import torch\n\n\ndef layer():\n    return torch.nn.Linear(8, 8)\n")
    (here / "mine.py").write_text(MINE)
    plan = [trial(strategy) for strategy in ("none", "segments:k=2", "segments:k=99", "all")]
    plan += [trial(strategy, "mine.py:make") for strategy in ("none", "all")]
    plan += [trial("none", "mine.py:make:fail=true"), trial("none", device="fake:h100")]

    with engines.connect(f"ray:address={address}", stage_seconds=PATIENCE_SECONDS) as cluster:
        cluster.logs = here / "far"
        far = {(one.case, one.round): one for one in cluster.run(plan)}
    with Local(stage_seconds=PATIENCE_SECONDS, logs=here / "near") as local:
        near = {(one.case, one.round): one for one in local.run(plan)}

    assert [examples.exact(far[key]) for key in near] == [examples.exact(near[key]) for key in near]
    assert Counter(one.outcome for one in near.values()) == {"ok": 6, "skipped": 1, "failed": 1}
    logs = [{path.name: path.read_bytes() for path in (here / name).iterdir()} for name in ("far", "near")]
    assert logs[0].keys() == logs[1].keys()
    assert len([name for name, text in logs[0].items() if b"the token is [hidden]\n" in text]) == 3
    assert all(SECRET.encode() not in text for text in logs[0].values())


class FakeRay:
    """Takes trials; each comes back at once as what `answer` returns or raises, or stays under way for None."""

    exceptions = exceptions

    def __init__(self, answer: Callable[[Trial, int], Record | BaseException | None], *, num_nodes: int = 1) -> None:
        self.sent: Counter[Trial] = Counter()
        self.cancelled: list[Trial] = []
        self._answer = answer
        self.nodes = lambda: [{"Alive": True, "Resources": {"CPU": 1}}] * num_nodes

    def remote(self, **options: Any) -> Any:
        return lambda function: SimpleNamespace(options=lambda **needs: SimpleNamespace(remote=self._send))

    def _send(self, request: bytes, stage_seconds: float) -> Any:
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


def run_by(fake: FakeRay, monkeypatch: pytest.MonkeyPatch, *trials: Trial) -> list[Record]:
    """The records of an engine of a fake cluster that waits for no node."""
    monkeypatch.setattr(ray_cluster, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(ray_cluster, "load_module", lambda name: fake)
    return list(ray_cluster.connect(wait=0).run(trials))


def test_trials_that_no_node_can_take_are_given_up(monkeypatch):
    fake = FakeRay(lambda sent, attempt: None, num_nodes=0)

    found = run_by(fake, monkeypatch, trial("none"), trial("all"))

    assert [record.outcome for record in found] == ["crashed", "crashed"]
    assert len(fake.cancelled) == 2


@pytest.mark.parametrize(("lost_times", "outcome"), [(ray_cluster.ATTEMPTS - 1, "ok"), (99, "crashed")])
def test_a_trial_whose_place_is_lost_is_sent_again_a_few_times(monkeypatch, lost_times, outcome):
    lost = exceptions.WorkerCrashedError()
    fake = FakeRay(lambda sent, attempt: lost if attempt <= lost_times else make.record(case=sent.case))

    (record,) = run_by(fake, monkeypatch, trial("none"))

    assert (record.outcome, fake.sent.total()) == (outcome, ray_cluster.ATTEMPTS)
    assert ("lost, 3 times" in (record.detail or "")) == (outcome == "crashed")


@pytest.mark.parametrize(
    ("model", "strategy", "is_sent"),
    [
        ("pack/models.py:make", "none", True),
        ("pack.models:make", "none", True),
        ("mlp", "plan:file=plan.json", True),
        ("torch.nn:Linear", "none", False),
        ("mlp", "none", False),
    ],
)
def test_the_folder_is_sent_for_code_in_it_alone(here, monkeypatch, model, strategy, is_sent):
    (here / "pack").mkdir()
    (here / "pack" / "models.py").write_text("def make(): ...")
    (here / "plan.json").write_text("{}")
    monkeypatch.syspath_prepend(str(here))

    assert ray_cluster._has_own_code([trial(strategy, model).case]) == is_sent


def test_the_package_that_travels_works_by_itself_and_knows_the_gpus(tmp_path):
    ray_cluster.pack_package(tmp_path)

    lines = "import profiler; from profiler.core import gpu_specs; print(profiler.__file__, *gpu_specs.names())"
    said = subprocess.check_output(
        [sys.executable, "-c", lines], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, text=True
    )

    assert said.split() == [str(tmp_path / "profiler" / "__init__.py"), *gpu_specs.names()]
