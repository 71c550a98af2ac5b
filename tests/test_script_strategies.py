"""`gcprof rehearse --strategies ... -- COMMAND`, held to copies of the scripts with checkpoints written in by hand."""

import copy
import random

import pytest
import torch
from torch import nn

from profiler.scripts import applying
from tests.scripts import checkpointed
from tests.scripts.runs import TABLE, control, rehearsed

QUICK = [("nanogpt_like", "all")]


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        pytest.param(*pair, marks=pytest.mark.slow if pair in QUICK else pytest.mark.nightly)
        for pair in checkpointed.EDITS
    ],
)
def test_a_strategy_takes_to_the_byte_what_checkpoints_written_by_hand_take(name, strategy, folder, kept):
    script = TABLE[name]
    if script.missing:
        pytest.skip(f"{', '.join(script.missing)}: not installed")
    path = folder / f"{name}.py"
    path.write_text(checkpointed.deepened(name, path.read_text()))
    done = rehearsed(script.words, "--strategies", strategy, cwd=folder, num_gpus=script.num_gpus)
    path.write_text(checkpointed.checkpointed(name, strategy, path.read_text()))

    by_hand = control(script.words, cwd=folder, kept=kept, num_gpus=script.num_gpus, decided=script.decided)

    assert by_hand.exit_code == done.exit_code == 0, by_hand.said + done.said
    assert done.figures == by_hand.figures
    assert len(done.figures) == script.num_gpus
    (variant,) = done.document["variants"]
    assert variant["words"] == {"strategy": strategy, "device": "t4" if script.num_gpus == 1 else "t4:2"}
    assert variant["outcome"] == "ok"


TRAINS = """
import torch
from torch import nn
{more}
model = {model}.cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
{wraps}
for _ in range(3):
    loss = model(torch.ones(64, 256, device="cuda")).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CHAIN = "nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6)))"


def script(*, model=CHAIN, more="", wraps=""):
    return TRAINS.format(model=model, more=more, wraps=wraps)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("given", "strategy", "reason"),
    [
        ({"model": "nn.Linear(256, 256)"}, "all", "no modules"),
        ({"wraps": "model = torch.compile(model, backend='eager')"}, "all", "compiled"),
        ({"model": "nn.Sequential(nn.Linear(256, 256), nn.ReLU())"}, "sqrt", "nothing"),
    ],
)
def test_what_cannot_be_changed_is_skipped_with_the_reason(given, strategy, reason, folder):
    (folder / "odd.py").write_text(script(**given))

    done = rehearsed(("python", "odd.py"), "--strategies", strategy, cwd=folder)

    (variant,) = done.document["variants"]
    assert done.exit_code == 0, done.said
    assert variant["outcome"] == "skipped"
    assert reason in variant["detail"]


@pytest.mark.nightly
@pytest.mark.parametrize("pattern", ["netG", "Gener*", "__main__.Generator"])
def test_of_two_models_the_one_that_is_chosen_is_changed(pattern, folder, kept):
    done = rehearsed(("python", "gan.py"), "--strategies", "sqrt", "--module", pattern, cwd=folder)
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
from torch.utils.checkpoint import checkpoint as ckpt

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6))

    def forward(self, x):
        for block in self.h:
            x = ckpt(block, x, use_reentrant=False)
        return x
"""


@pytest.mark.nightly
def test_own_checkpoints_are_named_under_none_and_replaced_by_other_strategies(folder, kept):
    (folder / "own.py").write_text(script(more=OWN, model="Net()"))
    hand = script(more=OWN, model="Net()").replace("ckpt(block, x", "(ckpt if i < 3 else run)(block, x")
    hand = hand.replace("for block in self.h", "for i, block in enumerate(self.h)").replace("i < 3", "i % 2")
    (folder / "hand.py").write_text("def run(block, x, use_reentrant):\n    return block(x)\n" + hand)

    done = rehearsed(("python", "own.py"), "--strategies", "none,every", cwd=folder)
    by_hand = control(("python", "hand.py"), cwd=folder, kept=kept)

    none, every = done.document["variants"]
    assert none["processes"][0]["applied"][0]["own"] == ["h.*"]
    assert every["processes"][0]["applied"][0]["num_blocks"] == 3
    assert every["processes"][0]["peak_bytes"] == by_hand.figures[0].peak_bytes
    assert every["processes"][0]["reserved_bytes"] == by_hand.figures[0].reserved_bytes


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


@pytest.mark.parametrize("strategy", ["sqrt", "segments:k=2,split=balanced", "all"])
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
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

        def forward(self, x):
            for layer in self.layers[: int(self.layers[0](x).abs().argmax())]:
                x = layer(x)
            return x

    model = Reads()

    made = applying.apply(model, (torch.randn(4, 8),), {}, "sqrt")

    assert "values" in made["why"]
    assert type(model) is Reads
    assert not any("_route" in vars(part) for part in model.modules())
