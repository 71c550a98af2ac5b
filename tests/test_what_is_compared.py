"""What is compared is every tensor that a gradient reaches: each model goes wrong in a place that is easily missed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from profiler.core.case import Choice
from profiler.measuring.meters import tensor_values
from tests.conftest import measured
from tests.user_models import what_is_trained

FILE = Path(what_is_trained.__file__)
LAYERS = 3


def compared(kind: str, strategy: str):
    return measured(Choice.of(f"{FILE}:make", {"kind": kind}), strategy, passes=("equality",))


# Calls of a layer are counted. With `all` the first step makes two, so that the second step's forward is the third call
# and its recompute the fourth; without, it is the second. What a factor saves is recomputed; a plain number is not.
WRONG = {
    "complex": (("0.phase", "1.phase", "2.phase"), (4 - 2) / 4),
    "optimizer": (("optimizer.param_groups[0][6]",), (3 - 2) / 3),
    "subclass": (("0.own", "1.own", "2.own"), (3 - 2) / 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRONG)
def test_a_gradient_that_is_wrong_there_alone_makes_the_row_invalid(kind):
    names, difference = WRONG[kind]

    none, every = compared(kind, "none"), compared(kind, "all")

    assert (none.outcome, none.equality.num_gradients) == ("ok", 2 * LAYERS + (LAYERS if kind != "optimizer" else 1))
    assert every.outcome == "invalid"
    assert every.equality.worst_parameter in names
    assert every.equality.largest_difference == pytest.approx(difference)


def test_a_buffer_is_compared_whatever_its_name():
    none, every = compared("buffer", "none"), compared("buffer", "all")

    assert none.equality.buffers_equal
    assert (every.outcome, every.equality.buffers_equal, every.equality.buffers_difference) == ("ok", False, 1 / 2)


def test_a_difference_in_the_imaginary_part_alone_is_one():
    reference, other = torch.tensor([3 + 4j]), torch.tensor([3 - 4j])

    assert tensor_values.difference(reference, other) == 8 / 5


def test_a_tensor_that_holds_others_is_compared_by_what_they_hold():
    held = TwoTensor(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))

    assert tensor_values.copied(held).tolist() == [1, 2, 3, 4]
