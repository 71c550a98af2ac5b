"""Baselines that are wrong without a word: what plain PyTorch computes is held to float64 autograd written rightly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from profiler.core.case import Choice, Trial
from profiler.core.errors import Invalid
from profiler.core.record import Record
from profiler.measuring.meters import wrong_gradients
from profiler.measuring.trial import measure
from profiler.training.assemble import assemble
from profiler.training.models.user import as_workload
from tests import make
from tests.user_models import overwritten, step_in_backward


def measured(build: Callable[[], Any], strategy: str = "none", **fields: Any) -> Record:
    case = make.case(strategy, model=Choice("own"), batch_size=None, **fields)
    baseline = overwritten_digests(build, case.baseline) if strategy != "none" else None
    trial = Trial(case=case, passes=("equality",), digests=baseline)
    return measure(trial, build=lambda: as_workload(build()))


def overwritten_digests(build: Callable[[], Any], case: Any) -> dict[str, str]:
    equality = measure(Trial(case=case, passes=("equality",)), build=lambda: as_workload(build())).equality
    return equality.digests


def apart(right: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of a gradient, relative to the largest value of both."""
    sizes = {name: max(float(right[name].abs().max()), float(other[name].abs().max())) for name in right}
    return max(float((right[name] - other[name].double()).abs().max()) / sizes[name] for name in right)


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def plain(build: Callable[[], Any]) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    return build()


def of_autograd(build: Callable[[], Any], *, autocast: bool = False) -> dict[str, torch.Tensor]:
    module, (inputs, targets), loss = plain(build)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        value = loss(module(inputs), targets)
    value.backward()
    return gradients(module)


def of_float64_cast() -> dict[str, torch.Tensor]:
    """The second use of the weights is after they were written, in float64."""
    module, (inputs, targets), loss = plain(overwritten.rescaled)
    module, value = module.double(), inputs.double()
    before = module.fc.weight.detach().clone()
    value = torch.tanh(nn.functional.linear(value, before, module.fc.bias.detach()))
    with torch.no_grad():
        module.fc.weight.mul_(overwritten.SCALE)
    loss(module.out(module.fc(value)), targets.double()).backward()
    return gradients(module)


def test_a_baseline_whose_autocast_uses_an_old_cast_is_wrong_and_says_so():
    right, told = of_float64_cast(), of_autograd(overwritten.rescaled, autocast=True)
    assert apart(right, told) > 0.5

    record = measured(overwritten.rescaled, precision="amp-bf16")

    assert record.outcome == "invalid"
    assert "autocast" in record.detail


@pytest.mark.parametrize(
    ("build", "fields"),
    [
        (overwritten.kept, {}),
        (overwritten.looked_at, {"precision": "amp-bf16"}),
        (overwritten.rescaled, {}),
    ],
    ids=["what is on ctx is not written over", "a weight is only read where gradients are off", "without autocast"],
)
def test_a_baseline_that_looks_alike_and_is_right_is_ok(build, fields):
    assert measured(build, **fields).outcome == "ok"


def dropping() -> Any:
    module = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh()) for _ in range(3)))
    return module, (torch.randn(8, 8), torch.randn(8, 8)), nn.functional.mse_loss


def test_where_a_strategy_is_wrong_no_doubt_is_cast_on_none():
    record = measured(dropping, "_planted:fault=random-state")

    assert record.outcome == "invalid"
    assert "`none` that is wrong" not in record.detail
    assert "neither" not in record.detail


def squared() -> Any:
    """The loss is the square of each weight: its gradient is twice the weight, in any arithmetic."""
    module = nn.Module()
    module.weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    module.forward = lambda value: (module.weight**2).sum() * value
    return module, torch.ones(())


def mixed() -> Any:
    """The same where half of the forward is in a type of its own, so that it cannot be run in double."""
    module = nn.Module()
    module.weight, other = nn.Parameter(torch.tensor([1.0, -2.0, 3.0])), torch.eye(3)
    module.forward = lambda value: (other @ module.weight).square().sum() * value
    return module, torch.ones(())


@pytest.mark.parametrize("build", [squared, mixed])
def test_of_two_gradients_the_one_is_chosen_that_the_loss_has_and_neither_where_it_has_neither(build):
    case = make.case(model=Choice("own"), batch_size=None)

    def side(first: list[float], second: list[float]) -> str | None:
        built = assemble(case, build=lambda: as_workload(build()))
        before = built.workload.module.weight.detach().clone()
        found = wrong_gradients.side(built, {"weight": torch.tensor(first)}, {"weight": torch.tensor(second)})
        assert torch.equal(built.workload.module.weight, before)
        assert built.workload.module.weight.dtype == torch.float32
        return found

    right = [2.0, -4.0, 6.0]
    assert side(right, [2.0, -4.0, 6.1]) == "first"
    assert side([2.0, 0.0, 6.0], right) == "second"
    assert side([0.0, 0.0, 0.0], [4.0, -8.0, 12.0]) == "neither"


def weights(accumulate: int, in_backward: bool) -> list[torch.Tensor]:
    """What a plain loop makes of the weights in a step of so many micro-batches."""
    torch.manual_seed(0)
    module, (inputs, targets), loss, _ = step_in_backward.make(hooked=in_backward)
    for _ in range(accumulate):
        (loss(module(inputs), targets) / accumulate).backward()
    if not in_backward:
        torch.optim.SGD(module.parameters(), lr=step_in_backward.RATE).step()
    return [parameter.detach() for parameter in module.parameters()]


@pytest.mark.parametrize("strategy", ["none", "all"])
def test_an_optimizer_that_steps_in_the_backward_of_each_micro_batch_is_refused(strategy):
    assert all(map(torch.allclose, weights(1, True), weights(1, False)))
    assert not all(map(torch.allclose, weights(2, True), weights(2, False)))

    with pytest.raises(Invalid, match="steps in the backward"):
        measured(step_in_backward.make, strategy, accumulate=2)
    assert measured(step_in_backward.make, strategy).outcome == "ok"
    assert measured(lambda: step_in_backward.make(hooked=False), strategy, accumulate=2).outcome == "ok"
