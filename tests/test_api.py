"""gcprof from Python."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import profiler
from profiler.core import plan_file
from profiler.core.errors import Unsupported, UserError
from tests.chain_models import Branching, Counted, Looping
from tests.plans import all_sorts, plan_of


def factory():
    """What a user has: a module, a batch and a loss."""
    return nn.Sequential(*[Counted() for _ in range(6)]), (torch.ones(4, 3), torch.zeros(4, 3)), nn.functional.mse_loss


def test_a_strategy_is_applied_to_a_module_as_it_stands():
    module = nn.Sequential(*[Counted() for _ in range(6)])

    applied = profiler.apply(module, "segments:k=3")
    module(torch.ones(2, 3)).sum().backward()

    assert applied.split == "2x2+2"
    assert [block.calls for block in module] == [2, 2, 2, 2, 1, 1]


def test_blocks_in_a_loop_are_run_together_after_a_look_at_an_example():
    module = Looping()

    profiler.apply(module, "segments:k=3", example=(torch.ones(2, 3),))
    for layer in module.layers:
        layer.calls = 0
    module(torch.ones(2, 3)).sum().backward()

    assert [layer.calls for layer in module.layers] == [2, 2, 2, 2, 1, 1]


def test_blocks_in_a_loop_without_an_example_ask_for_one():
    with pytest.raises(Unsupported, match="example"):
        profiler.apply(Looping(), "segments:k=3")


def test_a_module_is_not_checkpointed_twice():
    module = nn.Sequential(*[Counted() for _ in range(6)])
    profiler.apply(module, "segments:k=3")

    with pytest.raises(Unsupported, match="'0' is checkpointed already"):
        profiler.apply(module, "all")

    assert profiler.apply(copy.deepcopy(nn.Sequential(*[Counted() for _ in range(6)])), "all").split


def test_blocks_can_be_chosen_by_name():
    module = Branching()

    profiler.apply(module, "all", blocks="layers.[01]")
    module(torch.ones(2, 3)).sum().backward()

    assert [layer.calls for layer in module.layers] == [2, 2, 1]


@pytest.mark.parametrize(
    "strategy", ["all", "segments:k=2", "recursive", "from-start", "selective", "offload", "none", "plan"]
)
def test_a_deep_copy_computes_with_its_own_weights(strategy, here):
    module, x = nn.Sequential(*[Counted() for _ in range(4)]), torch.ones(2, 3)
    plan_file.write(plan_of(module, tuple("0123"), all_sorts(4)), here / "plan.json")
    profiler.apply(module, strategy)
    before = module(x)

    twin = copy.deepcopy(module)
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    twin(x).sum().backward()

    assert not twin(x).any()  # sin(0 x + 0)
    assert all(parameter.grad is not None for parameter in twin.parameters())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.equal(module(x), before)


def test_an_unknown_strategy_names_the_nearest():
    with pytest.raises(UserError) as caught:
        profiler.apply(nn.Sequential(Counted()), "segmnts:k=2")

    assert caught.value.hint == "did you mean 'segments'?"


def test_a_factory_is_measured_in_this_process():
    record = profiler.measure(factory, "segments:k=3", samples=2)

    assert record.outcome == "ok"
    assert record.built.split == "2x2+2"
    assert record.equality.gradients_equal
    assert record.readings.block_calls == (2, 2, 2, 2, 1, 1)
    assert len(record.readings.step_seconds) == 2
    assert record.readings.peak_bytes > 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"samples": 0}, "--samples: 0 is too small"),
        ({"warmup": -1}, "--warmup: -1 is too small"),
        ({"precision": "fp8"}, "--precision: 'fp8' is not known"),
        ({"precision": "fp32,bf16"}, "precision: 'fp32,bf16' is more than one"),
        ({"device": "cuda"}, "--device: there is no 'cuda'"),
        ({"device": "tpu"}, "--device: 'tpu' is not a device here"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, complaint, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(UserError) as caught:
        profiler.measure(factory, **words)

    assert caught.value.message.startswith(complaint)


class Childless(nn.Module):
    """It holds its weights itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).sin().sum()


@pytest.mark.parametrize("strategy", ["none", "offload"])
def test_a_model_without_children_is_measured_where_no_blocks_are_needed(strategy):
    record = profiler.measure(lambda: (Childless(), torch.ones(2, 3)), strategy, samples=1)

    assert (record.outcome, record.built.num_blocks) == ("ok", 0)
    assert record.equality.gradients_equal


@pytest.mark.parametrize("strategy", ["all", "sqrt", "recursive", "from-start", "selective", "compile-budget"])
def test_a_model_without_children_has_no_blocks_for_the_other_strategies(strategy):
    with pytest.raises(Unsupported, match="no blocks were found"):
        profiler.apply(Childless(), strategy)


def test_the_baseline_gives_its_noise_floor():
    assert profiler.measure(factory, samples=1).equality.noise_floor == 0.0


def test_importing_the_package_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, profiler; assert 'torch' not in sys.modules; profiler.apply; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
