"""Several strategies on one model, timed in turn: none knows of the others, and what fails is measured by itself."""

import os
from typing import Any

import msgspec
import pytest

from profiler.core import schedule
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.core.stats import Sampling
from profiler.engines.local import MOST_TIMED, grouped
from profiler.measuring.meters import time as timing
from profiler.measuring.passes import measure_together
from profiler.measuring.trial import measure
from tests import make
from tests.scripted_steps import Scripted, step


def later(*strategies: str, model: str = "mlp", **fields: Any) -> list[Trial]:
    """Trials of a later round."""
    cases = [make.case(name, **{"model": Choice(model), "samples": 3, **fields}) for name in strategies]
    return [Trial(case=case, round=2, passes=("time",)) for case in cases]


class Switched(Scripted):
    """A device on which a step takes 1 s, and one with the n-th strategy n + 1 s."""

    def __init__(self) -> None:
        super().__init__([])
        self.on, self.order = 0, []

    def switch(self, number: int) -> Any:
        def switch(on: bool) -> None:
            assert (self.on == 0) == on  # never two of them
            self.on = number if on else 0

        return switch

    def run(self, mark: Any) -> None:
        self.order.append(self.on)
        self.left.append(1.0 + self.on)
        step(mark)


def together(device: Switched, count: int, **how: Any) -> list[dict[str, Any]]:
    switches = [device.switch(number) for number in range(1, count + 1)]
    return timing.read(device, device.run, switches, **{"warmup": 1, "samples": 4, **how})


def test_strategies_share_the_steps_without_one_in_every_cycle():
    device = Switched()

    found = together(device, 3)

    assert [one["step_seconds"] for one in found] == [(2.0,) * 4, (3.0,) * 4, (4.0,) * 4]
    assert all(one["plain_step_seconds"] == (1.0,) * 4 for one in found)
    assert [one["warmup_seconds"] for one in found] == [(2.0,), (3.0,), (4.0,)]
    cycles = [device.order[at : at + 4] for at in range(4, len(device.order), 4)]
    assert device.order[:4] == [1, 0, 2, 3]
    assert all(sorted(cycle) == [0, 1, 2, 3] for cycle in cycles)
    assert cycles[1] == cycles[0][::-1]
    assert device.on == 0


def test_what_is_sure_enough_leaves_the_cycles():
    class Noisy(Switched):
        def run(self, mark: Any) -> None:
            self.order.append(self.on)
            self.left.append(1.0 + (1.0 + 0.5 * (len(self.order) % 3) if self.on == 2 else 0.0))
            step(mark)

    device = Noisy()

    sure, unsure = together(device, 2, samples=4, sampling=Sampling(max_seconds=60, max_samples=16))

    assert (sure["stopped"], len(sure["step_seconds"])) == ("target", 2)
    assert (unsure["stopped"], len(unsure["step_seconds"])) == ("samples", 8)
    assert device.order.count(1) == 3
    assert len(unsure["conditions"]) > len(sure["conditions"])

    sampling = Sampling(max_seconds=60, max_samples=16, ends_together=True)
    held = together(Noisy(), 2, samples=4, sampling=sampling)
    assert [(one["stopped"], len(one["step_seconds"])) for one in held] == [("target", 8), ("samples", 8)]
    cut = together(Noisy(), 2, samples=4, sampling=sampling, until=50.0, clock=iter(range(1000)).__next__)
    assert [one["stopped"] for one in cut] == ["target", "limit"]


def test_steps_too_long_for_all_of_them_are_not_begun():
    device, now = Switched(), iter(range(1000))

    with pytest.raises(Unsupported, match="too long"):
        together(device, 3, until=30.0, clock=lambda: next(now))

    assert device.order == [1]


def test_records_of_strategies_together_are_those_of_each_but_for_their_times():
    trials = later("none", "segments:k=1", "segments:k=2", "all", "offload")

    for trial, record in zip(trials, measure_together(trials), strict=True):
        without_times = {"readings": None, "stage_seconds": {}, "num_steps": 0, "environment": None}
        alone, shared = (msgspec.structs.replace(one, **without_times) for one in (measure(trial), record))
        assert shared == alone
        assert len(record.readings.step_seconds) == len(record.readings.plain_step_seconds) == 3


def test_later_rounds_of_one_baseline_share_a_child_up_to_so_many():
    def planned(*strategies, **fields):
        return list(schedule.in_rounds([make.case(name, **fields) for name in strategies], 2))

    plan = planned("none", "all", "compile-budget", "sqrt", "segments:k=2")
    other = planned("none", "all", batch_size=3)
    many = [trial for trial in planned(*(f"segments:k={k}" for k in range(1, 18))) if trial.round == 2]

    groups = [(kind, [trial.case.strategy for trial in group]) for kind, group in grouped([*plan, *other])]

    shared = [names for kind, names in groups if kind == "timed"]
    assert shared == [["segments:k=2", "sqrt"], ["all", "none"], ["all", "none"]]
    assert sum(len(names) for _, names in groups) == len(plan) + len(other)
    assert [len(group) for _, group in grouped(many)] == [MOST_TIMED, MOST_TIMED, 1]


@pytest.mark.parametrize(
    "fields", [{"ranks": 2}, {"repair_batchnorm": True}, {"device": "fake:cpu"}, {"device": "rehearse:t4"}]
)
def test_others_do_not(fields):
    assert not schedule.is_time_alone(later("all", **fields)[0])
    assert schedule.is_time_alone(later("all")[0])
    assert not schedule.is_time_alone(msgspec.structs.replace(later("all")[0], is_paired=False))


def test_they_run_in_one_process_and_what_fails_there_runs_by_itself(engine, tmp_path):
    log = tmp_path / "pids"
    file = tmp_path / "train.py"
    file.write_text(
        "import os, torch\n"
        "def alone(module, given):\n"
        f"    made = open({str(log)!r}).read().split().count(str(os.getpid()))\n"
        "    assert made > 1, 'a trial by itself makes one model for each pass'\n"
        "def make(breaks=False, batch_size=2):\n"
        f"    open({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        "    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(6)))\n"
        "    if breaks:\n"
        "        model.register_forward_pre_hook(alone)\n"
        "    return model, (torch.ones(batch_size, 4), torch.ones(batch_size, 4)), torch.nn.functional.mse_loss\n"
    )
    fine = later("none", "segments:k=2", "all", model=f"{file}:make", batch_size=2)
    broken = later("none", "first:n=2", "all", model=f"{file}:make:breaks=true", batch_size=2)

    records = list(engine.run(fine))
    pids = log.read_text().split()
    log.unlink()
    by_themselves = list(engine.run(broken))

    assert [record.outcome for record in records] == ["ok"] * 3
    assert [record.case for record in records] == [trial.case for trial in fine]
    assert len(pids) == len(set(pids)) == 1
    assert len(set(log.read_text().split())) == 4  # one for all, then one each
    assert [(record.case, record.outcome) for record in by_themselves] == [(trial.case, "ok") for trial in broken]
    assert os.getpid() not in map(int, pids)
