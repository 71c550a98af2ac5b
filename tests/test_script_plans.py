"""`gcprof plan -- COMMAND`: held to the script without the watch, and to a plain rehearsal of it under the plan."""

import pytest

from profiler.core.units import MIB
from tests.scripts.runs import TABLE, Answer, control, rehearsed

PERCENT = 90  # of the script's own peak, most of which is cuBLAS's workspace in a model as small as this


def planned(words, *options, cwd):
    return Answer("plan", "--device", "t4", *options, command=words, cwd=cwd)


@pytest.mark.slow
def test_a_script_under_its_plan_takes_at_most_the_budget_evaluation_included(folder, kept):
    words = TABLE["nanogpt_like"].words
    (figures,) = control(words, cwd=folder, kept=kept).figures
    budget = figures.peak_bytes * PERCENT // 100

    plan = planned(words, "--budget", f"{PERCENT}%", "-o", "plan.json", "--json", cwd=folder)
    done = rehearsed(words, "--strategies", "plan:file=plan.json", cwd=folder)

    assert plan.exit_code == done.exit_code == 0, plan.said + done.said
    assert plan.document["budget_bytes"] == pytest.approx(budget, abs=1)
    (variant,) = done.document["variants"]
    (under_plan,) = done.figures
    assert variant["outcome"] == "ok"
    assert under_plan.peak_bytes <= budget < figures.peak_bytes
    assert done.printed == [under_plan.peak_bytes]
    assert [applied["num_blocks"] > 0 for process in variant["processes"] for applied in process["applied"]] == [True]


TRAINS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Tanh()) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.ones(16384, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WORDS = ("python", "mine.py")


@pytest.mark.nightly
def test_a_script_that_runs_out_of_memory_is_planned_onto_its_gpu_unless_no_plan_fits(folder):
    (folder / "mine.py").write_text(TRAINS)
    (process,) = rehearsed(WORDS, cwd=folder).document["variants"][0]["processes"]
    room = process["peak_bytes"] * 9 // 10 + 600 * MIB  # and CUDA's context

    plan = planned(WORDS, "--device", f"t4:memory={room}", "--budget", "75%", "--json", cwd=folder)
    none = planned(WORDS, "--budget", "64MiB", "--json", cwd=folder)

    assert plan.exit_code == 0, plan.said
    assert "out of memory" in plan.said
    assert plan.document["whole"]["outcome"] == plan.document["planned"]["outcome"] == "ok"
    assert none.exit_code == 5
    assert none.document["plan"] is None
    assert "smallest plan" in none.document["why"]


@pytest.mark.parametrize(
    ("words", "noun"),
    [
        (("--optimizer", "adam"), "--optimizer"),
        (("--budget", "1GiB", "-o", "frontier.png"), "frontier.png"),
        (("--budget", "1GiB", "--emit", "python", "--json"), "--json"),
        (("--emit", "python"), "budget"),  # which begins no command
    ],
)
def test_options_without_effect_on_a_command_are_refused_before_it_runs(words, noun, tmp_path):
    plan = planned(("python", "absent.py"), *words, cwd=tmp_path)

    assert plan.exit_code == 2
    assert noun in plan.said
