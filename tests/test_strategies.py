"""What strategies do to a module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from profiler.errors import Unsupported
from profiler.strategies import segments
from profiler.strategies.chain import checkpoint_runs
from profiler.workload import Workload
from tests.conftest import measured


class Counted(nn.Module):
    """Counts its calls and saves its output."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return (self.linear(x) * scale).sin()


class Looping(nn.Module):
    """A list of blocks and a loop with an argument beside the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Counted() for _ in range(6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return x


def workload(module: nn.Module, blocks: tuple[str, ...]) -> Workload:
    return Workload(module=module, blocks=blocks, batch=torch.ones(2, 3), loss=lambda module, x: module(x).sum())


def test_a_run_is_computed_again_in_the_backward_and_only_that_run():
    module = nn.Sequential(*[Counted() for _ in range(6)])
    work = workload(module, tuple("012345"))

    checkpoint_runs(work, [range(1, 3), range(3, 5)])
    work.loss(module, work.batch).backward()

    assert [block.calls for block in module] == [1, 2, 2, 2, 2, 1]


def test_a_loop_over_a_list_with_more_arguments_is_checkpointed_as_it_stands():
    torch.manual_seed(0)
    module = Looping()
    work = workload(module, tuple(f"layers.{i}" for i in range(6)))
    expected = torch.autograd.grad(work.loss(module, work.batch), list(module.parameters()))
    for layer in module.layers:
        layer.calls = 0

    checkpoint_runs(work, [range(2), range(2, 4)])
    work.loss(module, work.batch).backward()

    assert [layer.calls for layer in module.layers] == [2, 2, 2, 2, 1, 1]
    assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), expected, strict=True))


def test_names_of_parameters_stay_as_they_were():
    module = nn.Sequential(*[Counted() for _ in range(4)])
    before = list(module.state_dict())

    checkpoint_runs(workload(module, tuple("0123")), [range(3)])

    assert list(module.state_dict()) == before


def test_hooks_on_a_block_still_see_its_own_work():
    module = nn.Sequential(*[Counted() for _ in range(3)])
    seen = []
    module[1].register_forward_hook(lambda block, arguments, output: seen.append(torch.equal(output, arguments[0])))

    checkpoint_runs(workload(module, tuple("012")), [range(2)])
    module(torch.ones(2, 3))

    assert False in seen


def test_more_segments_than_modules_are_unsupported_with_both_numbers():
    module = nn.Sequential(Counted(), Counted())

    with pytest.raises(Unsupported, match="only 2 modules for 3 segments"):
        segments.apply(workload(module, ("0", "1")), k=3)


def test_one_segment_says_that_it_checkpoints_nothing():
    none, one = measured("mlp", "none").readings, measured("mlp", "segments:k=1")

    assert [note.code for note in one.notes] == ["GCP001"]
    assert "checkpoints nothing" in one.notes[0].text
    assert one.readings == none


def test_a_large_plain_remainder_is_noted_with_the_option_that_helps():
    uneven, even = measured("mnist-cnn:channels=4", "segments:k=32"), measured("mnist-cnn:channels=4", "segments:k=2")

    assert [note.code for note in uneven.notes] == ["GCP002"]
    assert "segments:k=32,split=balanced" in uneven.notes[0].text
    assert even.notes == ()


def test_segments_save_less_memory_between_forward_and_backward():
    saved = [measured("mnist-cnn:channels=4", s).readings.saved_bytes for s in ("none", "segments:k=2", "segments:k=8")]

    assert saved == sorted(saved, reverse=True)
    assert saved[-1] < saved[0] / 2
