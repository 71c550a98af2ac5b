"""Where chains are cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from profiler.training.observed_forward import ChainBytes, observe
from profiler.training.strategies import peak, split_as_torch, split_balanced, split_text
from profiler.training.workload import Workload
from tests.chain_models import Counted
from tests.unpatched import plain


@pytest.mark.parametrize(
    ("length", "segments", "text"),
    [(5, 1, "5"), (5, 5, "4x1+1"), (9, 4, "3x2+3"), (50, 32, "31x1+19"), (100, 32, "31x3+7")],
)
def test_the_split_is_that_of_checkpoint_sequential(length, segments, text):
    """Its early stop leaves out what comes after the last saved tensor, so every module here saves one."""
    chain = nn.Sequential(*(Counted() for _ in range(length)))
    x = torch.randn(1, 3, requires_grad=True)

    split = split_as_torch(length, segments)

    checkpoint_sequential(chain, segments, x, use_reentrant=False).sum().backward()
    assert [block.calls for block in chain] == [1 + any(index in run for run in split) for index in range(length)]
    assert split_text(split, length) == text


def largest(saved: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    return max(sum(saved[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(len(sizes)))


def every_cut(length: int, segments: int):
    """All ways to cut a chain into at most so many segments."""
    if segments == 1 or length == 1:
        yield (length,)
        return
    yield (length,)
    for first in range(1, length):
        for rest in every_cut(length - first, segments - 1):
            yield (first, *rest)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 5), st.integers(0, 30))
def test_balanced_has_the_smallest_possible_largest_segment(saved, segments, tail):
    chain = ChainBytes(saved=tuple(saved), inputs=(1,) * len(saved), tail=tail)

    split = split_balanced(chain, min(segments, len(saved)))

    sizes = [len(run) for run in split]
    sizes += [len(saved) - sum(sizes)] if sum(sizes) < len(saved) else []
    best = min(largest(chain.saved, sizes) for sizes in every_cut(len(saved), min(segments, len(saved))))
    assert largest(chain.saved, sizes) == best
    assert [place for run in split for place in run] == list(range(sum(map(len, split))))
    assert len(sizes) <= segments


def test_the_last_segment_is_checkpointed_only_where_head_and_loss_hold_much():
    little = ChainBytes(saved=(10, 10, 10, 10), inputs=(1, 1, 1, 1), tail=0)
    much = ChainBytes(saved=(10, 10, 10, 10), inputs=(1, 1, 1, 1), tail=50)

    plain_end, checkpointed_end = split_balanced(little, 2), split_balanced(much, 2)

    assert (split_text(plain_end, 4), split_text(checkpointed_end, 4)) == ("2+2", "2x2+0")
    at_loss = peak(little, [range(2), range(2, 4)], is_whole=False)
    assert at_loss == 1 + 1 + 20  # both inputs and the plain end
    assert peak(much, checkpointed_end, is_whole=True) == 1 + 1 + 50


def test_an_observation_counts_what_each_block_saves():
    module, batch, loss = plain("mlp", 64)()
    chain = observe(Workload(module=module, blocks=("0", "1", "2", "3", "4"), batch=batch, loss=loss)).chain

    relu = 64 * 20 * 4
    assert chain.saved == (0, relu, 0, relu, 0)  # Linear saves its input, which is the batch or is counted already
    state = torch.get_rng_state().nbytes  # every checkpoint keeps it, on the CPU in the memory that is measured
    assert chain.inputs == (64 * 10 * 4 + state, *[relu + state] * 4)
    assert chain.tail == 64 * 5 * 4 + 4  # log-softmax and the loss's weight


def test_the_words_of_a_blocks_call_are_its_own():
    class Block(nn.Module):
        def forward(self, x, given=1, output=2):
            return x * given + output

    class Model(nn.Sequential):
        def forward(self, x):
            return self[1](self[0](x, given=2, output=1), given=2, output=1).sum()

    batch, module = torch.ones(2, requires_grad=True), Model(Block(), Block())
    workload = Workload(module=module, blocks=("0", "1"), batch=batch, loss=lambda module, x: module(x))

    assert observe(workload).linked[0]
