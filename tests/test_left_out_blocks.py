"""Segments are of forwards that call all of their blocks in order; another forward is refused, not computed."""

import copy

import pytest
import torch
from torch import nn

import profiler
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.core.record import Record
from profiler.engines.worker import attempt
from profiler.measuring.trial import measure
from profiler.training.models.user import as_workload
from tests import make
from tests.user_models import averaged as averaged_copy


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


@pytest.mark.slow
def test_a_block_that_is_called_without_those_before_it_is_refused_at_once():
    net, x = cut()
    net.left_out = {0}

    with pytest.raises(Unsupported, match=r"called 'layers.1' where 'layers.0' was expected.*--strategies all works"):
        net(x)


def test_blocks_that_were_not_called_are_told_when_the_forward_ends():
    net, x = cut()
    net.left_out = {1}

    with pytest.raises(Unsupported, match=r"the forward ended where 'layers.1' was expected"):
        net(x)


def test_a_forward_that_raised_between_two_blocks_leaves_the_next_one_to_run():
    net, x = cut()
    expected = net(x)
    net.left_out = InterruptedBehindFirst()
    with (
        pytest.raises(KeyboardInterrupt),
        pytest.warns(RuntimeWarning, match=r"between 'layers.0' and 'layers.1', which run as one segment"),
    ):
        net(x)
    net.left_out = set()

    assert torch.equal(net(x), expected)


class Recursive(nn.Module):
    """Calls itself between its blocks: for the rest of them, or for something without any."""

    def __init__(self, way):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.way = way

    def forward(self, x, at=0):
        if at < 0:
            return x.mean()
        if self.way == "rest":
            return self(self.layers[at](x), at + 1) if at < 4 else x.sum()
        for layer in self.layers:
            x = layer(x)
            self(torch.zeros(1), -1)
        return x.sum()


@pytest.mark.parametrize("way", ["rest", "between"])
def test_forwards_within_forwards_go_on_where_the_outer_one_is(way):
    net, x = Recursive(way), torch.randn(2, 4)
    plain = copy.deepcopy(net)
    profiler.apply(net, "segments:k=2", example=x)

    for module in (net, plain):
        module(x).backward()

    assert all(torch.equal(a.grad, b.grad) for a, b in zip(net.parameters(), plain.parameters(), strict=True))


def test_a_users_hook_before_the_forward_may_call_blocks():
    net, x = Dropped(0), torch.randn(2, 4)
    net.register_forward_pre_hook(lambda module, arguments: (module.layers[0](*arguments),))
    expected = net(x)
    profiler.apply(net, "segments:k=2", example=x)

    assert torch.equal(net(x), expected)


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
    record = record_of(case, record_of(case.baseline).equality.digests)

    assert record.outcome == outcome


def averaged(strategy: str, words: str = "", **fields: object) -> Record:
    case = make.case(strategy, model=Choice(f"{averaged_copy.__file__}:make{words}"), batch_size=4, **fields)
    return measure(Trial(case=case, passes=("equality", "flops")))


def idle_notes(record: Record) -> list[str]:
    return [note.text for note in record.notes if note.code == "GCP050"]


def test_frozen_modules_that_no_forward_runs_are_no_blocks():
    records = [averaged(strategy) for strategy in ("none", "all", "segments:k=2")]

    words = "not counted as blocks, as they are frozen and no forward runs them: average.0, average.1, average.2"
    assert [idle_notes(record) for record in records] == [[words]] * 3
    assert [record.built.num_blocks for record in records if record.built] == [3, 3, 3]
    assert records[1].built is not None
    assert records[1].built.split == "3 of 3"
    assert records[1].readings.block_calls == (2, 2, 2)


@pytest.mark.parametrize(("words", "blocks"), [(":is_frozen=false", None), ("", "layers.*,average.*")])
def test_blocks_that_train_or_are_named_stay_and_are_told_where_the_step_does_not_run_them(words, blocks):
    record = averaged("all", words, blocks=blocks)

    assert record.built is not None
    assert record.built.num_blocks == 6
    assert idle_notes(record) == [
        "3 checkpointed blocks did not run in the step: average.0, average.1, average.2; they are not recomputed; "
        "--blocks chooses others"
    ]
