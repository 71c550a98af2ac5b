"""What a recompute does not find again is named: held to plain PyTorch with checkpoints by hand."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint, set_checkpoint_early_stop

from profiler.core.case import Choice, Trial
from profiler.engines.worker import attempt
from profiler.measuring.trial import measure
from tests import make
from tests.user_models import outside_of_blocks


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


def asked(factory: str, blocks: str | None) -> Any:
    case = make.case(model=Choice(f"{outside_of_blocks.__file__}:{factory}"), batch_size=None, blocks=blocks)
    none = measure(Trial(case=case, passes=("equality",)))
    assert none.outcome == "ok"
    every = make.case("all", model=case.model, batch_size=None, blocks=blocks)
    trial = Trial(case=every, passes=("equality",), digests=none.equality.digests)
    return attempt(trial, on_pass=lambda name: None, by=measure)


@pytest.mark.parametrize(
    ("factory", "blocks", "cause"),
    [("fast", "base.blocks.*", "functional_call"), ("noisy", None, "set_checkpoint_early_stop(False)")],
)
def test_a_recompute_that_is_silently_wrong_is_invalid_with_its_cause(factory, blocks, cause):
    build = getattr(outside_of_blocks, factory)
    plain, recomputed = by_hand(build, checkpointed=False), by_hand(build, checkpointed=True)
    assert not all(map(torch.allclose, plain, recomputed))

    record = asked(factory, blocks)

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

    record = asked(factory, "blocks.*")

    assert record.outcome == "failed"
    assert cause in record.detail
