"""Segments are of forwards that call all of their blocks in order; another forward is refused, not computed."""

import copy

import pytest
import torch
from torch import nn

import profiler
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.engines.worker import attempt
from profiler.measuring.trial import measure
from profiler.training.models.user import as_workload
from tests import make
from tests.user_models import gradients


class Dropped(nn.Module):
    """Leaves out the layers that it is told to leave out, or half of them at random where it is told nothing."""

    def __init__(self, *left_out):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.left_out = set(left_out)
        self.share = 0.0

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if number not in self.left_out and float(torch.rand(())) >= self.share:
                x = torch.tanh(layer(x)) if number == 3 else layer(x)
        return x.sum()


class InterruptedBehindFirst:
    def __contains__(self, number):
        if number:
            raise KeyboardInterrupt
        return False


def cut():
    net, x = Dropped(), torch.randn(2, 4)
    profiler.apply(net, "segments:k=2", example=x)
    return net, x


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (0, "called 'layers.1' where 'layers.0' was expected.*--strategies all works"),
        (1, "the forward ended where 'layers.1' was expected"),
    ],
)
def test_a_block_that_is_left_out_is_told_at_once_or_when_the_forward_ends(number, told):
    net, x = cut()
    net.left_out = {number}

    with pytest.raises(Unsupported, match=told):
        net(x)


def test_a_forward_that_raised_between_two_blocks_leaves_the_next_one_to_run():
    net, x = cut()
    expected = net(x)
    net.left_out = InterruptedBehindFirst()
    with pytest.raises(KeyboardInterrupt), pytest.warns(RuntimeWarning, match="which run as one segment"):
        net(x)
    net.left_out = set()

    assert torch.equal(net(x), expected)


class Recursive(nn.Module):
    """Calls itself for the rest of its blocks."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x, at=0):
        return self(self.layers[at](x), at + 1) if at < 4 else x.sum()


def test_forwards_within_forwards_go_on_where_the_outer_one_is():
    net, x = Recursive(), torch.randn(2, 4)
    plain = copy.deepcopy(net)
    profiler.apply(net, "segments:k=2", example=x)

    for module in (net, plain):
        module(x).backward()

    assert all(torch.equal(a.grad, b.grad) for a, b in zip(net.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize(("strategy", "outcome"), [("all", "ok"), ("segments:k=2", "skipped")])
def test_a_run_refuses_what_leaves_blocks_out_at_random_and_checkpoints_each_block(strategy, outcome):
    def build():
        net = Dropped()
        net.share = 0.5
        return as_workload((net, torch.randn(2, 4)))

    def record_of(case, digests=None):
        trial = Trial(case=case, passes=("equality", "memory"), digests=digests)
        return attempt(trial, on_pass=lambda name: None, by=lambda trial, on_pass: measure(trial, build=build))

    case = make.case(strategy, batch_size=None, blocks="layers.*")

    assert record_of(case, record_of(case.baseline).equality.digests).outcome == outcome


IDLE = "average.0, average.1, average.2"
FROZEN = f"not counted as blocks, as they are frozen and no forward runs them: {IDLE}"
NOT_RUN = f"3 checkpointed blocks did not run in the step: {IDLE}; they are not recomputed"


@pytest.mark.parametrize(
    ("words", "blocks", "num_blocks", "note"),
    [("", None, 3, FROZEN), (":is_frozen=false", None, 6, NOT_RUN), ("", "layers.*,average.*", 6, NOT_RUN)],
)
def test_modules_that_no_forward_runs_are_no_blocks_where_they_are_frozen_and_told_otherwise(
    words, blocks, num_blocks, note
):
    case = make.case("all", model=Choice(f"{gradients.__file__}:averaged{words}"), batch_size=4, blocks=blocks)

    record = measure(Trial(case=case, passes=("equality", "flops")))

    (told,) = [note.text for note in record.notes if note.code == "GCP050"]
    assert told.startswith(note)
    assert record.built.num_blocks == num_blocks
    assert blocks or words or record.readings.block_calls == (2, 2, 2)
