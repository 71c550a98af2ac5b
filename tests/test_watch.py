"""`with profiler.watch():` over loops of one's own: its phases, and that nothing of it stays."""

import json
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

import profiler
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from tests import make
from tests.scripts.runs import ROOT, environment


def made():
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def train(model, optimizer, *, steps=3, accumulate=1):
    for _ in range(steps):
        for _ in range(accumulate):
            model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def places():
    """Everything of torch and Python that a watch changes."""
    return {
        "hooks": [
            dict(hooks)
            for owner in (modules, optimizers)
            for name, hooks in vars(owner).items()
            if name.startswith("_global_") and isinstance(hooks, dict)
        ],
        "functions": [torch.save, torch.autograd.backward, sys.excepthook, *vars(torch._C).values()],
        "filters": list(warnings.filters),
        "path": list(sys.path),
    }


def counted(process):
    return {(phase.name, phase.is_first_step): phase.num for phase in process.phases}


def test_a_model_of_which_only_methods_are_called_is_named_by_its_own_class():
    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    agent = Agent()
    optimizer = torch.optim.SGD(agent.parameters(), 0.1)
    with profiler.watch() as watch:
        for _ in range(2):
            (agent.actor(torch.ones(4, 16)).sum() + agent.critic(torch.ones(4, 16)).sum()).backward()
            optimizer.step()

    assert watch.process.module == "Agent"


def test_a_loop_is_told_by_phases_and_steps_and_no_memory_is_made_up(tmp_path):
    model, optimizer = made()

    with profiler.watch() as watch:
        other = threading.Thread(target=train, args=made())  # what it does is not counted
        other.start()
        other.join()
        train(model, optimizer, steps=3, accumulate=2)
        with torch.no_grad():
            model(torch.ones(4, 16))
        torch.save(model.state_dict(), tmp_path / "weights.pt")

    num = counted(watch.process)
    assert watch.process.outcome == "ok"
    assert (watch.process.num_steps, watch.process.steps_are) == (3, "steps")
    assert num["forward", True] == num["backward", True] == 2
    assert num["forward", False] == num["backward", False] == 2 * 2
    assert (num["optimizer", True], num["optimizer", False]) == (1, 2)
    assert num["saving", False] == 1
    assert watch.process.peak_bytes is None
    assert {phase.peak_bytes for phase in watch.process.phases} == {None}
    assert all("test_watch.py" in phase.line for phase in watch.process.phases if phase.name != "start")
    assert "Sequential, 3 steps" in watch.table == str(watch)
    assert "evaluation" in watch._repr_html_()
    assert list(torch.load(tmp_path / "weights.pt")) == list(model.state_dict())


def test_a_gradient_of_a_gradient_is_a_backward_and_a_closure_has_its_phases_within_the_step():
    model, frozen, calls = nn.Linear(16, 1), nn.PReLU().requires_grad_(False), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        calls.append(optimizer.zero_grad())
        x = torch.ones(4, 16, requires_grad=True)
        (slopes,) = torch.autograd.grad(frozen(model(x)).sum(), x, create_graph=True)
        loss = (slopes.norm() - 1) ** 2
        loss.backward()
        return loss

    with profiler.watch() as watch:
        optimizer.step(closure)

    num, names = counted(watch.process), ("forward", "backward", "after the backward", "optimizer")
    assert (watch.process.module, watch.process.num_steps) == ("Linear", 1)  # a loss's own network is no model
    assert len(calls) > 1
    assert [num[name, True] for name in names] == [len(calls), 2 * len(calls), 2 * len(calls), 1 + len(calls)]


def test_nothing_of_a_watch_stays_when_it_ends():
    model, optimizer = made()
    with profiler.watch():
        pass  # what is imported with the first one
    before = places()

    with profiler.watch() as watch:
        during = places()
        train(model, optimizer)
    after = places()
    train(model, optimizer)

    assert after == before
    assert [during[name] != before[name] for name in ("hooks", "functions")] == [True, True]
    assert watch.process.num_steps == 3


BY_HAND = """
import contextlib, json, sys
from profiler.rehearsal.device import open_if_asked
open_if_asked()
import torch, profiler

by_hand, plain = sys.argv[1] == "by hand", torch._C._cuda_memoryStats
rows, now = [], ["start"]
def mark(phase):
    if by_hand:
        rows.append([now[0], torch.cuda.max_memory_allocated()])
        torch.cuda.reset_peak_memory_stats()
    now[0] = phase

model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
torch.empty(1 << 28, dtype=torch.uint8, device="cuda")  # a peak of before
reads = [torch.cuda.max_memory_allocated()]
mark("start")
rows.clear()
with contextlib.nullcontext() if by_hand else profiler.watch() as watch:
    for _ in range(3):
        batch = torch.ones(4096, 512, device="cuda")
        mark("forward")
        loss = model(batch).sum()
        mark("backward")
        loss.backward()
        mark("after the backward")
        mark("optimizer")
        optimizer.step()
        mark("after the step")
        optimizer.zero_grad()
        del loss
    reads.append(torch.cuda.max_memory_allocated())
mark("end")
reads.append(torch.cuda.max_memory_allocated())
if watch:
    rows = [[one.name, one.is_first_step, one.peak_bytes] for one in watch.process.phases]
torch.cuda.reset_peak_memory_stats()
left = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), torch._C._cuda_memoryStats is plain]
print(json.dumps({"rows": rows, "reads": reads, "left": left}))
"""


def ran(way, folder):
    (folder / "loop.py").write_text(BY_HAND)
    words, given = [sys.executable, "loop.py", way], environment(GCPROF_HOLLOW="t4", PYTHONPATH=str(ROOT))
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_peaks_are_those_of_counters_put_in_by_hand_and_what_one_reads_stays(hollow, tmp_path):
    watched, by_hand = (ran(way, tmp_path) for way in ("watched", "by hand"))

    most = {}
    for number, (name, peak) in enumerate(by_hand["rows"]):
        key = (name, name != "start" and number <= 5)  # five phases in the first step
        most[key] = max(most.get(key, 0), peak)
    assert {(name, is_first): peak for name, is_first, peak in watched["rows"]} == most
    assert watched["reads"] == [(1 << 28) + 4 * 4 * (512 * 512 + 512)] * 3  # the peak of before, beside the weights
    assert watched["left"] == by_hand["left"]


@pytest.mark.slow
def test_a_trainers_steps_are_those_of_its_script(here):
    hf_trainer = pytest.importorskip("profiler.workflows.published.hf_trainer")
    pytest.importorskip("accelerate")
    model = Choice("hf:bert:head=classification,hidden_size=8,num_attention_heads=2,num_hidden_layers=1,vocab_size=50")
    fields = {"optimizer": Choice("adamw"), "batch_size": 1, "accumulate": 2, "warmup": 1, "samples": 3}
    case = make.case("hf", model=model, device="cpu", verify="off", **fields)

    record = hf_trainer.measure(Trial(case=case, round=2), on_pass=lambda stage: None)

    assert (record.outcome, record.round, record.num_steps) == ("ok", 2, 1 + 1 + 3)
    assert len(record.readings.step_seconds) == 3
    assert record.readings.peak_bytes is None  # on a CPU it is not measured, and never 0
    assert [note.code for note in record.notes] == ["GCP020"]
    with pytest.raises(Unsupported, match="checkpoints nothing"):
        hf_trainer.measure(Trial(case=make.case("all", model=model)), on_pass=lambda stage: None)
