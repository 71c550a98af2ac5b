"""What is compared is every tensor that a gradient reaches: each model goes wrong in a place that is easily missed."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from profiler.core.case import Choice, Trial
from profiler.core.record import Record
from profiler.measuring.trial import measure
from profiler.training.models.user import as_workload
from tests import make
from tests.conftest import measured
from tests.user_models import what_is_trained

# Calls of a layer are counted. With `all` the first step makes two, so that the second step's forward is the third call
# and its recompute the fourth; without, it is the second. What a factor saves is recomputed; a plain number is not.


def plain_leaf(kind: str, call: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The gradient of the leaf that is no parameter of the model after two plain steps; no optimizer frees it."""
    torch.manual_seed(0)
    module, (inputs, targets), loss, optimizer = what_is_trained.make(kind=kind)
    for number in (0, 1):
        torch.manual_seed(number)
        optimizer.zero_grad()
        value = inputs
        for layer in module:
            value = call(layer, value)
        loss(value, targets).backward()
        if number == 0:
            torch.optim.SGD(module.parameters(), lr=0.1).step()
    return (loss.scale if kind == "loss" else inputs).grad


@pytest.mark.parametrize(("kind", "name"), [("loss", "the loss's scale"), ("input", "input tensor 0")])
def test_a_leaf_that_is_no_parameter_of_the_model_is_compared_and_told(kind, name):
    right = plain_leaf(kind, lambda layer, value: layer(value))
    wrong = plain_leaf(kind, partial(checkpoint, use_reentrant=False))
    largest = max(float(right.abs().max()), float(wrong.abs().max()))
    choice = Choice.of(f"{what_is_trained.__file__}:make", {"kind": kind})

    none, every = (measured(choice, strategy, passes=("equality",)) for strategy in ("none", "all"))

    assert (none.outcome, none.equality.num_gradients) == ("ok", 2 * 3 + 1)  # of three layers
    assert next(note.text for note in none.notes if note.code == "GCP058").startswith(name)
    assert (every.outcome, every.equality.worst_parameter) == ("invalid", name)
    assert every.equality.largest_difference == pytest.approx(float((right - wrong).abs().max()) / largest, rel=1e-4)


def test_a_leaf_that_the_factory_returns_each_time_is_compared_by_the_gradients_of_its_own_steps():
    batch = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)

    def run(strategy: str, digests: dict[str, str] | None) -> Record:
        case = make.case(strategy, model=Choice("own"), batch_size=None)
        trial = Trial(case=case, passes=("equality", "memory"), digests=digests)
        module = lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))  # noqa: E731
        return measure(trial, build=lambda: as_workload((module(), batch, nn.MSELoss())))

    none = run("none", None)

    assert (none.outcome, none.equality.gradients_equal) == ("ok", True)
    assert run("all", none.equality.digests).equality.gradients_equal
