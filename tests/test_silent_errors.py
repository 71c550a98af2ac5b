"""Baselines that are wrong without a word: what plain PyTorch computes is held to float64 autograd written rightly."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from profiler.core.case import Choice
from profiler.core.errors import Invalid
from profiler.measuring.meters import wrong_gradients
from profiler.training.assemble import assemble
from profiler.training.models.user import as_workload
from tests import make
from tests.conftest import measured_build
from tests.user_models import optimizers, overwritten


def test_a_baseline_whose_autocast_uses_an_old_cast_is_wrong_and_says_so():
    """The second use of the weights is after they were written: the truth is that step in float64."""
    torch.manual_seed(0)
    module, (inputs, targets), loss = overwritten.rescaled()
    right = copy.deepcopy(module).double()
    before = right.fc.weight.detach().clone()
    hidden = torch.tanh(nn.functional.linear(inputs.double(), before, right.fc.bias.detach()))
    with torch.no_grad():
        right.fc.weight.mul_(overwritten.SCALE)
    loss(right.out(right.fc(hidden)), targets.double()).backward()
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(module(inputs), targets)
    value.backward()
    truth, told = right.out.weight.grad, module.out.weight.grad
    assert float((truth - told).abs().max()) > 0.5 * float(torch.maximum(truth.abs().max(), told.abs().max()))

    record = measured_build(overwritten.rescaled, precision="amp-bf16")

    assert record.outcome == "invalid"
    assert "autocast" in record.detail


@pytest.mark.parametrize(
    ("build", "fields"),
    [
        (partial(overwritten.on_ctx, is_shared=False), {}),
        (partial(overwritten.rescaled, 1), {"precision": "amp-bf16"}),
        (overwritten.rescaled, {}),
    ],
    ids=["what is on ctx is not written over", "a weight is only read where gradients are off", "without autocast"],
)
def test_a_baseline_that_looks_alike_and_is_right_is_ok(build, fields):
    assert measured_build(build, **fields).outcome == "ok"


SQUARES = {  # the gradient is twice the weight, in any arithmetic
    "plain": lambda weight: (weight**2).sum(),
    "not to be run in double": lambda weight: (torch.eye(3) @ weight).square().sum(),  # with a part in its own type
}


@pytest.mark.parametrize("square", SQUARES.values(), ids=SQUARES)
def test_of_two_gradients_the_one_is_chosen_that_the_loss_has_and_neither_where_it_has_neither(square):
    case = make.case(model=Choice("own"), batch_size=None)

    def build() -> Any:
        module = nn.Module()
        module.weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        module.forward = lambda value: square(module.weight) * value
        return as_workload((module, torch.ones(())))

    def side(first: list[float], second: list[float]) -> str | None:
        built = assemble(case, build=build)
        before = built.workload.module.weight.detach().clone()
        found = wrong_gradients.side(built, {"weight": torch.tensor(first)}, {"weight": torch.tensor(second)})
        assert torch.equal(built.workload.module.weight, before)
        assert built.workload.module.weight.dtype == torch.float32
        return found

    right = [2.0, -4.0, 6.0]
    assert side(right, [2.0, -4.0, 6.1]) == "first"
    assert side([2.0, 0.0, 6.0], right) == "second"
    assert side([0.0, 0.0, 0.0], [4.0, -8.0, 12.0]) == "neither"


PLAIN = partial(optimizers.make, wraps=False)


def weights(accumulate: int, in_backward: bool) -> list[torch.Tensor]:
    """What a plain loop makes of the weights in a step of so many micro-batches."""
    torch.manual_seed(0)
    module, (inputs, targets), loss, _ = optimizers.in_backward() if in_backward else PLAIN()
    for _ in range(accumulate):
        (loss(module(inputs), targets) / accumulate).backward()
    if not in_backward:
        torch.optim.Adam(module.parameters()).step()
    return [parameter.detach() for parameter in module.parameters()]


@pytest.mark.parametrize("strategy", ["none", "all"])
def test_an_optimizer_that_steps_in_the_backward_of_each_micro_batch_is_refused(strategy):
    assert all(map(torch.allclose, weights(1, True), weights(1, False)))
    assert not all(map(torch.allclose, weights(2, True), weights(2, False)))

    with pytest.raises(Invalid, match="steps in the backward"):
        measured_build(optimizers.in_backward, strategy, accumulate=2)
    assert measured_build(optimizers.in_backward, strategy).outcome == "ok"
    assert measured_build(PLAIN, strategy, accumulate=2).outcome == "ok"
