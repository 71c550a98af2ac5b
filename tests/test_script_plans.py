"""`gcprof plan -- COMMAND`: held to the script without the watch, and to a plain rehearsal of it under the plan."""

import pytest

from profiler.core.units import MIB
from tests.scripts.runs import TABLE, Answer, control, rehearsed

PERCENT = {  # of the script's own peak, most of which is cuBLAS's workspace in models as small as these
    "nanogpt_like": 90,
    "trainer": 90,
    "timm_like": 93,
    "accelerate_loop": 97,
}
WIDENED = {"accelerate_loop": (("96", "6144"), ("batch_size=16", "batch_size=1024"))}  # its activations are 100 KiB
QUICK = {"nanogpt_like"}


def planned(words, *options, cwd):
    return Answer("plan", "--device", "t4", *options, command=words, cwd=cwd)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in QUICK else pytest.mark.nightly) for name in PERCENT]
)
def test_a_script_under_its_plan_takes_at_most_the_budget_evaluation_included(name, folder, kept):
    script = TABLE[name]
    if script.missing:
        pytest.skip(f"{', '.join(script.missing)}: not installed")
    path = folder / f"{name}.py"
    for before, after in WIDENED.get(name, ()):
        path.write_text(path.read_text().replace(before, after))
    as_it_is = control(script.words, cwd=folder, kept=kept, decided=script.decided)
    (figures,) = as_it_is.figures
    budget = figures.peak_bytes * PERCENT[name] // 100

    plan = planned(script.words, "--budget", f"{PERCENT[name]}%", "-o", "plan.json", "--json", cwd=folder)
    done = rehearsed(script.words, "--strategies", "plan:file=plan.json", cwd=folder)

    assert plan.exit_code == 0, plan.said
    assert plan.document["budget_bytes"] == pytest.approx(budget, abs=1)
    assert done.exit_code == 0, done.said
    (variant,) = done.document["variants"]
    assert variant["outcome"] == "ok"
    (under_plan,) = done.figures
    assert under_plan.peak_bytes <= budget < figures.peak_bytes
    assert done.printed in ([], [under_plan.peak_bytes])
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
    loss = model(torch.ones({batch}, 256, device="cuda")).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if {large}:
        with torch.no_grad():
            model(torch.ones({large}, 256, device="cuda"))
print("max memory allocated", torch.cuda.max_memory_allocated())
"""


def written(folder, *, batch=16384, large=0):
    (folder / "mine.py").write_text(TRAINS.format(batch=batch, large=large))
    return ("python", "mine.py")


@pytest.mark.nightly
def test_the_code_of_a_plan_takes_in_plain_pytorch_what_the_plan_was_said_to_take(folder, kept):
    words = written(folder)
    (as_it_is,) = control(words, cwd=folder, kept=kept).figures
    plan = planned(words, "--budget", "75%", "--emit", "python", cwd=folder)
    (folder / "plan.py").write_text(plan.out)
    text = (folder / "mine.py").read_text()
    (folder / "mine.py").write_text(
        text.replace("model = Net().cuda()", "from plan import apply_plan\nmodel = Net().cuda()\napply_plan(model)")
    )

    (kept / "planned").mkdir()
    done = control(words, cwd=folder, kept=kept / "planned")

    assert plan.exit_code == 0, plan.said
    assert done.exit_code == 0, done.said
    (figures,) = done.figures
    assert figures.peak_bytes <= 0.75 * as_it_is.peak_bytes


@pytest.mark.nightly
def test_a_budget_below_what_training_can_reach_is_refused_with_what_it_can(folder):
    plan = planned(written(folder), "--budget", "64MiB", "--json", cwd=folder)

    assert plan.exit_code == 5
    assert plan.document["plan"] is None
    assert "smallest plan" in plan.document["why"]


@pytest.mark.nightly
def test_a_script_that_runs_out_of_memory_is_planned_onto_its_gpu(folder):
    words = written(folder)
    (process,) = rehearsed(words, cwd=folder).document["variants"][0]["processes"]
    room = process["peak_bytes"] * 9 // 10 + 600 * MIB  # and CUDA's context

    plan = planned(words, "--device", f"t4:memory={room}", "--budget", "75%", "--json", cwd=folder)

    assert plan.exit_code == 0, plan.said
    assert "out of memory" in plan.said
    assert plan.document["whole"]["outcome"] == plan.document["planned"]["outcome"] == "ok"


@pytest.mark.parametrize(
    ("words", "noun"),
    [
        (("--optimizer", "adam"), "--optimizer"),
        (("--budget", "lots"), "--budget"),
        (("--budget", "1GiB", "-o", "frontier.png"), "frontier.png"),
        (("--budget", "1GiB", "--emit", "python", "--json"), "--json"),
        ((), "budget"),
        (("--emit", "python"), "budget"),  # which begins no command
    ],
)
def test_options_without_effect_on_a_command_are_refused_before_it_runs(words, noun, tmp_path):
    plan = planned(("python", "absent.py"), *words, cwd=tmp_path)

    assert plan.exit_code == 2
    assert noun in plan.said
