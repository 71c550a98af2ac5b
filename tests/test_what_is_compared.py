"""What is compared is every tensor that a gradient reaches: each model goes wrong in a place that is easily missed."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from profiler.core.case import Choice, Trial
from profiler.core.record import Record
from profiler.measuring.meters import equality
from profiler.measuring.trial import measure
from profiler.training import kept_state
from profiler.training.models.user import as_workload
from tests import make
from tests.conftest import measured
from tests.user_models import what_is_trained

FILE = Path(what_is_trained.__file__)
LAYERS = 3


def compared(kind: str, strategy: str):
    return measured(Choice.of(f"{FILE}:make", {"kind": kind}), strategy, passes=("equality",))


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

    none, every = compared(kind, "none"), compared(kind, "all")

    assert (none.outcome, none.equality.num_gradients) == ("ok", 2 * LAYERS + 1)
    assert next(note.text for note in none.notes if note.code == "GCP058").startswith(name)
    assert (every.outcome, every.equality.worst_parameter) == ("invalid", name)
    assert every.equality.largest_difference == pytest.approx(float((right - wrong).abs().max()) / largest, rel=1e-4)


def test_a_leaf_that_the_factory_returns_each_time_is_compared_by_the_gradients_of_its_own_steps():
    batch = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
    case = make.case(model=Choice("own"), batch_size=None)

    def run(strategy: str, digests: dict[str, str] | None) -> Record:
        trial = Trial(case=replace(case, strategy=Choice(strategy)), passes=("equality", "memory"), digests=digests)
        module = lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))  # noqa: E731
        return measure(trial, build=lambda: as_workload((module(), batch, nn.MSELoss())))

    none = run("none", None)

    assert none.outcome == "ok"
    assert none.equality.gradients_equal
    assert run("all", none.equality.digests).equality.gradients_equal


def test_a_tensor_that_holds_others_is_compared_by_what_they_hold():
    held = TwoTensor(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))

    assert equality.copied(held).tolist() == [1, 2, 3, 4]


def test_the_users_own_global_states_are_put_back():
    random.seed(5)
    np.random.seed(5)
    expected = random.Random(5).random(), np.random.RandomState(5).rand()

    with kept_state.kept_generators():
        kept_state.seed(0)
        random.random()

    assert (random.random(), np.random.rand()) == expected
