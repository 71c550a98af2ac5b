"""`gcprof rehearse --strategies ... -- COMMAND`, held to copies of the scripts with checkpoints written in by hand."""

import copy
import random

import pytest
import torch
from torch import nn

from profiler.scripts import applying
from tests.scripts import checkpointed
from tests.scripts.runs import TABLE, control, rehearsed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy"),
    [pytest.param(*pair, marks=pytest.mark.nightly) if nth else pair for nth, pair in enumerate(checkpointed.EDITS)],
)
def test_a_strategy_takes_to_the_byte_what_checkpoints_written_by_hand_take(name, strategy, folder, kept):
    script = TABLE[name]
    if script.missing:
        pytest.skip(f"{', '.join(script.missing)}: not installed")
    path = folder / f"{name}.py"
    done = rehearsed(script.words, "--strategies", strategy, cwd=folder, num_gpus=script.num_gpus)
    path.write_text(checkpointed.checkpointed(name, strategy, path.read_text()))

    by_hand = control(script.words, cwd=folder, kept=kept, num_gpus=script.num_gpus, decided=script.decided)

    assert by_hand.exit_code == done.exit_code == 0, by_hand.said + done.said
    assert done.figures == by_hand.figures
    assert len(done.figures) == script.num_gpus
    assert [variant["words"]["strategy"] for variant in done.document["variants"]] == [strategy]


@pytest.mark.nightly
def test_of_two_models_the_one_that_is_chosen_is_changed(folder, kept):
    done = rehearsed(("python", "gan.py"), "--strategies", "sqrt", "--module", "Gener*", cwd=folder)
    path = folder / "gan.py"
    generator, discriminator = path.read_text().split("class Discriminator")
    edits = checkpointed.checkpointed("gan", "sqrt", generator)
    path.write_text(f"{edits}class Discriminator{discriminator}")
    by_hand = control(("python", "gan.py"), cwd=folder, kept=kept)

    (process,) = done.document["variants"][0]["processes"]
    chosen = {(made["module"], made["num_blocks"]) for made in process["applied"] if made["why"] is None}
    assert chosen == {("Generator", 6)}
    assert done.figures == by_hand.figures


OWN = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as ckpt

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6))

    def forward(self, x):
        for i, block in enumerate(self.h):
            x = ckpt(block, x, use_reentrant=False)
        return x

model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(64, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
AGAIN = "ckpt(block, x, use_reentrant=False)"
EVERY = OWN.replace(AGAIN, f"{AGAIN} if i % 2 else block(x)")


@pytest.mark.nightly
def test_own_checkpoints_are_named_under_none_and_replaced_by_other_strategies_unless_compiled(folder, kept):
    (folder / "own.py").write_text(OWN)
    (folder / "hand.py").write_text(EVERY)
    (folder / "compiled.py").write_text(OWN.replace("Net()", "torch.compile(Net(), backend='eager')"))

    done = rehearsed(("python", "own.py"), "--strategies", "none,every", cwd=folder)
    by_hand = control(("python", "hand.py"), cwd=folder, kept=kept)
    compiled = rehearsed(("python", "compiled.py"), "--strategies", "all", cwd=folder)

    none, every = done.document["variants"]
    assert none["processes"][0]["applied"][0]["own"] == ["h.*"]
    assert every["processes"][0]["applied"][0]["num_blocks"] == 3
    (expected,) = by_hand.figures
    assert every["processes"][0]["peak_bytes"] == expected.peak_bytes
    assert every["processes"][0]["reserved_bytes"] == expected.reserved_bytes
    (skipped,) = compiled.document["variants"]
    assert (compiled.exit_code, skipped["outcome"]) == (0, "skipped")
    assert "compiled" in skipped["detail"]


# ---- in this process, on the CPU


class Odd(nn.Module):
    """A chain with everything that a forward could leave behind."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)) for _ in range(6)
        )
        self.calls, self.seen = 0, []

    def forward(self, x, *, scale):
        self.calls += 1
        self.seen.append(random.random())
        for layer in self.layers:
            x = layer(x)
        return x * scale


def gradients(model, x):
    torch.manual_seed(1)
    random.seed(1)
    model.zero_grad()
    model(x, scale=2.0).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("strategy", ["sqrt", "segments:k=2,split=balanced"])
def test_applying_leaves_no_trace_and_gradients_as_they_are(strategy):
    torch.manual_seed(0)
    model, x = Odd(), torch.randn(4, 8)
    plain = copy.deepcopy(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    held = {name: id(parameter) for name, parameter in model.named_parameters()}
    states = torch.get_rng_state(), random.getstate()

    made = applying.apply(model, (x,), {"scale": 2.0}, strategy)

    assert made["why"] is None
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (model.calls, model.seen) == (0, [])
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == held
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(map(torch.equal, gradients(model, x), gradients(plain, x)))


def test_a_model_whose_forward_needs_values_is_left_as_it_is_with_the_reason():
    class Reads(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * int(self[0](x).abs().argmax())

    model = Reads(*(nn.Linear(8, 8) for _ in range(6)))

    made = applying.apply(model, (torch.randn(4, 8),), {}, "sqrt")

    assert "values" in made["why"]
    assert type(model) is Reads
    assert not any("_route" in vars(part) for part in model.modules())
