"""Code of levers in loops that differ from the one that was measured, against the same loops without it."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from profiler.core.case import Choice
from profiler.planning.plan_code import Way, emit_way

CLASSES, ROWS = 11, 14
BATCH = torch.arange(4.0 * ROWS).reshape(ROWS, 4).sin(), torch.arange(ROWS) % CLASSES


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, values):
        return self.head(torch.tanh(self.first(values)) * self.scale)


def of(label: str) -> dict:
    code: dict = {}
    exec(emit_way(Way(label=label, levers=Choice(label).parts[1:], heads={"head.weight": ""}), "python"), code)
    return code


def both(label: str) -> tuple[Net, Net, dict]:
    """Return a model, the same with the code of a label, and that code."""
    torch.manual_seed(0)
    net, code = Net(), of(label)
    return net, copy.deepcopy(net), code


def autocast_outside(net, values, labels):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(values)
    return F.cross_entropy(logits.float(), labels)


def masked_in_place(net, values, labels):
    logits = net(values)
    logits[:, 0] = -3.0
    return F.cross_entropy(logits, labels)


def of_one(net, values, labels):
    return F.cross_entropy(net(values[0]), labels[0])


def parts_of_five() -> tuple[Net, Net]:
    net, changed, code = both("none+chunk-loss:rows=5,by=parts")
    code["apply_levers"](changed, torch.optim.SGD(changed.parameters()))
    return net, changed


@pytest.mark.parametrize("loss", [autocast_outside, masked_in_place, of_one])
def test_a_loss_in_parts_is_that_of_the_same_loop_without_it(loss):
    net, changed = parts_of_five()

    whole, parts = loss(net, *BATCH), loss(changed, *BATCH)
    whole.backward()
    parts.backward()

    off = 2**-6 if loss is autocast_outside else 1e-5  # bfloat16 rounds by 2**-8, several times
    assert parts.item() == pytest.approx(whole.item(), rel=off)
    for one, other in zip(net.parameters(), changed.parameters(), strict=True):
        assert (one.grad - other.grad).norm() <= off * one.grad.norm()


def test_a_second_derivative_that_would_be_wrong_is_refused():
    _, changed = parts_of_five()
    made = F.cross_entropy(changed(BATCH[0]), BATCH[1])

    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(made, changed.first.weight, create_graph=True)


@pytest.mark.parametrize(("size", "ignored"), [(3, 0), (7, 2), (8, 2)])
def test_micro_batches_without_a_sample_or_a_target_count_for_nothing(size, ignored):
    net, changed, code = both("none+micro-batches:n=4")
    labels = BATCH[1][:size].clone()
    labels[:ignored] = -100
    batch = BATCH[0][:size], labels
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731

    whole = loss(net, batch)
    whole.backward()
    parts = code["backward"](changed, batch, loss, lambda part: (part[1] != -100).sum())

    assert parts.item() == pytest.approx(whole.item())
    for one, other in zip(net.parameters(), changed.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-6)


def train(net, optimizer, steps: int) -> None:
    """Train as frameworks do that hand the optimizer their step, Lightning for example."""

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(BATCH[0]), BATCH[1])
        loss.backward()
        return loss

    for _ in range(steps):
        assert optimizer.step(closure) > 0


@pytest.mark.parametrize("lever", ["in-backward", "bf16-state"])
def test_an_optimizer_of_each_parameter_calls_a_closure_and_saves_its_state(lever):
    net, changed, code = both(f"none+{lever}")
    make = partial(torch.optim.AdamW, lr=0.01, foreach=False)
    plain, levered = make(net.parameters()), code["apply_levers"](changed, make(changed.parameters()))
    train(net, plain, 6)
    train(changed, levered, 3)

    fresh, saved = copy.deepcopy(changed.state_dict()), copy.deepcopy(levered.state_dict())
    again, code = Net(), of(f"none+{lever}")
    again.load_state_dict(fresh)
    resumed = code["apply_levers"](again, make(again.parameters()))
    resumed.load_state_dict(saved)
    train(again, resumed, 3)

    close = 0.005 if lever == "bf16-state" else 0.0  # of weights that moved by 0.06
    for one, other in zip(net.parameters(), again.parameters(), strict=True):
        assert (one - other).abs().max() <= close


def test_the_count_of_steps_is_no_state_in_bf16():
    """Of a weight that is a scalar it has the same shape; bfloat16 counts to 256."""
    _, changed, code = both("none+bf16-state")
    optimizer = code["apply_levers"](changed, torch.optim.AdamW(changed.parameters(), foreach=False))
    train(changed, optimizer, 260)

    assert {float(state["step"]) for state in optimizer.state_dict()["state"].values()} == {260.0}
