"""What is right in the first step and wrong in the second is found, as two steps in plain PyTorch show it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import profiler
from profiler.analysis.rows import verdict
from profiler.core.case import Choice, Trial
from profiler.measuring import measure
from profiler.training import plain_state
from tests import make
from tests.conftest import measured
from tests.user_models import keeps

FILE = Path(keeps.__file__)


def verified(factory: str, strategy: str):
    choice = Choice(f"{FILE}:{factory}")
    none = measured(choice, "none", batch_size=None, passes=("equality",))
    case = make.case(strategy, model=choice, batch_size=None)
    return none, measure(Trial(case=case, passes=("equality",), digests=none.equality.digests))


def two_steps(factory, *, under, count):
    """Gradients of two steps in plain PyTorch, the first `count` blocks under checkpoints of their own."""
    torch.manual_seed(0)
    net, x, loss = factory()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    gradients = []
    for _ in range(2):
        optimizer.zero_grad()
        value = x
        for index, block in enumerate(net):
            value = under(block, value) if index < count else block(value)
        loss(value).backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in net.named_parameters()})
        optimizer.step()
    return gradients


def largest(one, other):
    scales = {name: max(one[name].abs().max(), other[name].abs().max()) for name in one}
    return max(float((one[name] - other[name]).abs().max() / scales[name]) for name in one)


@pytest.mark.parametrize("factory", ["fading", "averaging", "caching"])
def test_what_is_right_in_the_first_step_and_wrong_in_the_second_is_invalid(factory):
    build = getattr(keeps, factory)
    plain = two_steps(build, under=lambda block, x: block(x), count=0)
    recomputed = two_steps(build, under=lambda block, x: checkpoint(block, x, use_reentrant=False), count=3)
    first, second = (largest(*pair) for pair in zip(plain, recomputed, strict=True))

    none, record = verified(factory, "all")

    assert (none.outcome, none.equality.noise_floor) == ("ok", 0.0)
    assert record.outcome == "invalid"
    assert record.equality.worst_step == 2
    assert first == 0 < second
    assert "of the second step, while those of the first agree" in record.detail
    assert "the recompute changes 0." in record.detail


def test_the_second_step_is_as_far_off_as_by_hand():
    plain = two_steps(keeps.fading, under=lambda block, x: block(x), count=0)
    recomputed = two_steps(keeps.fading, under=lambda block, x: checkpoint(block, x, use_reentrant=False), count=3)

    _, record = verified("fading", "all")

    assert record.equality.largest_difference == pytest.approx(largest(plain[1], recomputed[1]), rel=1e-6)
    assert record.equality.largest_difference > 0.6


@pytest.mark.parametrize(
    ("strategy", "moved"), [("all", ["0.calls", "1.calls", "2.calls"]), ("every:k=2", ["1.calls"])]
)
def test_a_counter_that_changes_nothing_is_named_and_the_row_counts(strategy, moved):
    none, record = verified("counting", strategy)

    assert (record.outcome, verdict(record)) == ("ok", "bit-equal")
    assert list(record.equality.moved) == moved
    (note,) = (note.text for note in record.notes if note.code == "GCP049")
    assert note.startswith(f"{', '.join(moved)}: ")
    assert "GCP049" not in [note.code for note in none.notes]


@pytest.mark.parametrize("factory", ["counting", "fading", "averaging", "caching"])
def test_a_forward_that_is_observed_leaves_plain_state_as_it_was(factory):
    net, x, _ = getattr(keeps, factory)()
    net(x)
    before = plain_state.image(net)

    profiler.apply(net, "recursive", example=x)

    assert plain_state.image(net) == before
    net(x)
    assert plain_state.moved(before, plain_state.image(net))


def test_the_image_is_of_plain_values_and_of_tensors_that_are_not_registered():
    net = nn.Linear(2, 2)
    net.count, net.words, net.cache, net.other = 1, {"a": [1, "b"]}, torch.zeros(2), object()
    before = plain_state.image(net)
    net.words["a"].append(2.5)
    net.cache += 1

    after = plain_state.image(net)

    assert {"count", "words", "cache", "in_features", "out_features"} == set(before)
    assert set(plain_state.moved(before, after)) == {"words", "cache"}
