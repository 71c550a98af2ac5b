"""Plain state that an observed forward moves is put back; what a recompute does not find again is told by its cause."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint, set_checkpoint_early_stop

import profiler
from profiler.core.case import Choice, Trial
from profiler.core.record import Record
from profiler.engines.worker import attempt
from profiler.measuring.trial import measure
from profiler.training import kept_state
from tests import make
from tests.user_models import keeps, outside_of_blocks


def test_a_forward_that_is_observed_leaves_plain_state_buffers_and_random_state_as_they_were():
    net, x, _ = keeps.caching()
    net.append(nn.BatchNorm1d(x.shape[-1])).append(nn.Dropout(0.5))
    net(x)
    before, kept = kept_state.image(net), [torch.get_rng_state(), *(buffer.clone() for buffer in net.buffers())]

    profiler.apply(net, "recursive", example=x)

    assert kept_state.image(net) == before
    assert all(map(torch.equal, kept, [torch.get_rng_state(), *net.buffers()]))
    assert all(parameter.grad is None for parameter in net.parameters())
    net(x)
    assert kept_state.moved(before, kept_state.image(net))


def test_unregistered_tensors_that_are_written_in_place_get_their_values_back():
    net = nn.Linear(2, 2)
    net.count, net.cache, net.weights = torch.zeros(()), {"rows": [torch.ones(3)]}, torch.ones(2, requires_grad=True)
    count, rows = net.count, net.cache["rows"][0]

    net.itself = [net.cache]
    net.itself.append(net.itself)
    net.row, net.sparse = torch.zeros(1).expand(3), torch.zeros(2).to_sparse()

    with kept_state.kept(net):
        net.count += 1
        net.cache["rows"][0].mul_(2)
        with torch.no_grad():
            net.weights.zero_()

    assert (net.count, net.count.item()) == (count, 0)
    assert torch.equal(net.cache["rows"][0], torch.ones(3))
    assert net.cache["rows"][0] is rows
    assert torch.equal(net.weights, torch.ones(2))


# --- what a recompute does not find again is named: held to plain PyTorch with checkpoints by hand


def by_hand(build: Callable[[], Any], *, checkpointed: bool) -> list[torch.Tensor]:
    """The gradients of a plain step, with each block under PyTorch's checkpoint, or without."""
    torch.manual_seed(0)
    module, batch, *loss = build()
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    for block in lists[0] if lists else module:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False) if checkpointed else block.forward
    torch.manual_seed(0)
    value = loss[0](module(batch[0]), batch[1]) if loss else module(*batch)
    value.backward()
    return [parameter.grad for parameter in module.parameters()]


def checkpointed(factory: str, blocks: str | None) -> Record:
    """The record of `all` beside that of `none`, which is ok."""
    fields = {"model": Choice(f"{outside_of_blocks.__file__}:{factory}"), "batch_size": None, "blocks": blocks}
    none = measure(Trial(case=make.case("none", **fields), passes=("equality",)))
    assert none.outcome == "ok"
    trial = Trial(case=make.case("all", **fields), passes=("equality",), digests=none.equality.digests)
    return attempt(trial, on_pass=lambda name: None, by=measure)


@pytest.mark.parametrize(
    ("factory", "blocks", "cause"),
    [("fast", "base.blocks.*", "functional_call"), ("noisy", None, "set_checkpoint_early_stop(False)")],
)
def test_a_recompute_that_is_silently_wrong_is_invalid_with_its_cause(factory, blocks, cause):
    build = getattr(outside_of_blocks, factory)
    plain, recomputed = by_hand(build, checkpointed=False), by_hand(build, checkpointed=True)
    assert not all(map(torch.allclose, plain, recomputed))

    record = checkpointed(factory, blocks)

    assert record.outcome == "invalid"
    assert cause in record.detail
    with set_checkpoint_early_stop(False):
        is_stopped = all(map(torch.allclose, plain, by_hand(build, checkpointed=True)))
    assert is_stopped == ("early_stop" in cause)


@pytest.mark.parametrize(
    ("factory", "cause"), [("dual", "forward_ad"), ("cached", "a dict that 'blocks.0' is called with")]
)
def test_a_recompute_that_fails_is_told_with_its_cause(factory, cause):
    build = getattr(outside_of_blocks, factory)
    by_hand(build, checkpointed=False)
    with pytest.raises(CheckpointError):
        by_hand(build, checkpointed=True)

    record = checkpointed(factory, "blocks.*")

    assert record.outcome == "failed"
    assert cause in record.detail
