"""The costs of stages, against steps that are traced, measured, or counted by hand."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from profiler.core import catalogue, plan_file
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported, UserError
from profiler.core.trace_data import live
from profiler.planning.candidates import largest_stage
from profiler.planning.chain import Chain
from profiler.planning.plan import Plan
from profiler.planning.plan import recipe as recipe_of
from profiler.planning.simulator import simulate
from profiler.planning.solver import frontier
from profiler.predicting.staging import stage_seconds
from profiler.predicting.staging.stage_operators import spans
from profiler.predicting.staging.stage_seconds import NOTHING
from profiler.predicting.staging.stages import stages
from profiler.predicting.trace.compose import RANDOM_STATE
from profiler.predicting.traced_case import observe_case, trace_case
from profiler.training import models
from profiler.training.workload import Workload
from tests import make

FORCES = Path(__file__).parent / "user_models" / "forces.py"
MODELS = (
    "mlp",
    "transformer:layers=4,width=32",  # embeddings before the blocks, a head behind them
    "mnist-cnn:channels=4,layers=12",  # ReLUs do not keep what they are given
    "cifar-resnet",  # gradients come where what is saved goes
    "torchvision:vgg11:size=64",  # activations in place
    "torchvision:resnet18:size=64",
    "hf:bert:num_hidden_layers=3,hidden_size=32,intermediate_size=64,num_attention_heads=2,vocab_size=100",
)


def case(model: str, **fields):
    return make.case(model=catalogue.resolve(Choice(model), models.TABLE), **{"batch_size": 4, **fields})


@cache
def chain_of(model: str, device: str = "fake:t4") -> Chain:
    return stages(Trial(case=case(model, device=device)))


def plans(chain: Chain) -> list[Plan]:
    """Everything kept; every stage by itself; every second; two and then all in one run, as far as pins let."""
    free = [index for index, stage in enumerate(chain.stages) if not stage.pinned]
    number = len(chain.stages)
    together = tuple(free) if free == list(range(free[0], free[-1] + 1)) else tuple(free[:1])

    def of(*runs: tuple[int, ...]) -> Plan:
        begins = {run[0]: run for run in runs}
        inside = {index for run in runs for index in run[1:]}
        return Plan(items=tuple(begins.get(index, index) for index in range(number) if index not in inside))

    return [of(), of(*((index,) for index in free)), of(*((index,) for index in free[::2])), of(together)]


def traced_peak(model: str, chain: Chain, plan: Plan, device: str, folder: Path) -> int:
    path = folder / "plan.json"
    plan_file.write(recipe_of(chain, plan), path)
    _, trace, _ = trace_case(case(model, strategy=Choice.of("plan", {"file": path}), device=device))
    return max(live(trace))


@pytest.mark.parametrize("model", [*MODELS[:2], *(pytest.param(model, marks=pytest.mark.slow) for model in MODELS[2:])])
def test_the_peak_by_the_stages_costs_is_that_of_the_traced_step(model, tmp_path):
    chain = chain_of(model)

    for plan in plans(chain):
        traced = traced_peak(model, chain, plan, "fake:t4", tmp_path)

        assert simulate(chain, plan).peak_bytes == pytest.approx(traced, rel=0.01 if "cifar" in model else 0.0005)


def test_on_a_cpu_each_checkpoint_keeps_a_random_state_besides(tmp_path, monkeypatch):
    model = "transformer:layers=4,width=32"
    monkeypatch.setattr(stage_seconds, "seconds", lambda case, runs, saves, in_calls: [NOTHING for _ in runs])
    chain = stages(Trial(case=case(model, device="cpu")))

    for plan in plans(chain):
        missing = traced_peak(model, chain, plan, "fake:cpu", tmp_path) - simulate(chain, plan).peak_bytes

        assert -256 <= missing <= (len(chain.stages) + 1) * RANDOM_STATE  # a number here and there is not in the costs


def test_save_options_hold_less_than_keeping_and_more_than_a_checkpoint():
    chain = chain_of("transformer:layers=4,width=32")
    block = chain.stages[1]

    assert [option.name for option in block.options] == ["matmul", "attention", "matmul+attention"]
    for option in block.options:
        assert block.output_bytes < option.saved_bytes < block.saved_bytes
        assert option.backward_seconds > block.backward_seconds


def test_a_plan_with_a_save_option_has_the_peak_that_its_costs_say(tmp_path):
    model = "transformer:layers=4,width=32"
    chain = chain_of(model)
    names = [option.name for option in chain.stages[1].options]
    plan = Plan(items=(0, 1, 2, (3,), 4, 5), options=((1, names[0]), (2, names[1]), (4, names[2])))

    traced = traced_peak(model, chain, plan, "fake:t4", tmp_path)

    assert simulate(chain, plan).peak_bytes == pytest.approx(traced, rel=0.0005)
    assert traced < chain_peak(chain)


def chain_peak(chain: Chain) -> int:
    return simulate(chain, plans(chain)[0]).peak_bytes


def test_a_block_that_does_not_keep_its_input_is_one_stage_with_the_one_before():
    chain = chain_of("mnist-cnn:channels=4,layers=12")

    kinds = [len(stage.blocks) for stage in chain.stages]

    assert set(kinds) == {0, 1, 2}
    assert sum(kinds) == 37  # 12 layers of three modules, and the pooling
    assert all("-" in stage.name for stage in chain.stages if len(stage.blocks) == 2)


def test_blocks_that_do_not_feed_each_other_alone_are_kept_apart():
    model = "tests/user_models/unet.py:segmentation"
    linked = observe_case(case(model, batch_size=None, device="fake:t4")).linked
    chain = stages(Trial(case=case(model, batch_size=None, device="fake:t4")))

    blocks = [index for index, stage in enumerate(chain.stages) if stage.blocks]
    together = [a + 1 == b for a, b in pairwise(blocks)]

    assert not all(linked[:-1])
    assert not any(one and not feeds for one, feeds in zip(together, linked, strict=False))


def test_gradients_that_the_backward_makes_are_counted_by_stage():
    chain = chain_of("mlp")
    parameters = sum(stage.gradient_bytes for stage in chain.stages)

    rounded = sum(
        -(-4 * one.numel() // 512) * 512
        for one in nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 20), nn.Linear(20, 5)).parameters()
    )

    assert parameters == rounded


def test_stages_of_a_kind_are_pooled_and_their_times_clamped(a_second_a_mark):
    found = stage_seconds.seconds(
        case("transformer:layers=6,width=32", device="cpu"), [[], [0], [1], [5], []], ["attention"]
    )

    before, first, second, last, after = found
    assert first == second == last
    assert (first.forward, first.backward) == (1.0, 1.0)
    assert first.early_stop == 0.5  # the recompute took no longer than the backward alone, and half a forward is least
    assert set(first.options) == {"attention"}
    assert before.forward == 0
    assert after.forward == 0  # a step of three seconds has no time beside three blocks of two


def test_timing_leaves_no_gradient_and_no_statistics_behind(monkeypatch):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten())
    workload = Workload(
        module=module,
        blocks=("0", "1", "2"),
        batch=torch.ones(2, 3, 5, 5),
        loss=lambda module, batch: module(batch).sum(),
    )
    before = [one.clone() for one in module.buffers()]
    monkeypatch.setattr(stage_seconds, "assemble", lambda case, in_calls: type("Built", (), {"workload": workload})())
    monkeypatch.setattr(stage_seconds, "_rest", lambda *given: NOTHING)

    stage_seconds.seconds(case("mlp", device="cpu"), [[0], [1], [2], []], [])

    assert all(one.grad is None for one in module.parameters())
    assert all(torch.equal(one, was) for one, was in zip(module.buffers(), before, strict=True))


def test_a_device_of_unknown_rates_is_refused():
    with pytest.raises(UserError, match="nothing is known of the time"):
        stages(Trial(case=case("mlp", device="fake:cuda")))


def test_blocks_that_the_forward_differentiates_are_no_chain():
    forces = make.case(model=Choice(f"{FORCES}:potential"), batch_size=None, device="fake:t4")

    with pytest.raises(Unsupported, match="the forward runs a backward of its own"):
        stages(Trial(case=forces))


def test_every_operator_of_forward_and_backward_is_in_one_stage():
    built, trace, _ = trace_case(case("cifar-resnet", device="fake:t4"), with_saves=True)

    found = spans(trace, built.workload.blocks)

    forward = [number for span in found for number in range(span.first, span.last + 1)]
    backward = [number for span in found[::-1] for number in range(span.backward_first, span.backward_last + 1)]
    wanted = {phase: list(range(first, last + 1)) for phase, first, last in trace.spans()}
    assert forward == wanted["forward"]
    assert backward == wanted["backward"]


@pytest.mark.parametrize(
    "model", [*MODELS, "tests/user_models/lstm.py:char_rnn", "tests/user_models/unet.py:segmentation"]
)
def test_no_plan_is_below_the_floor(model):
    chain = stages(Trial(case=case(model, device="fake:t4", **({"batch_size": None} if "user" in model else {}))))

    name, floor = largest_stage(chain)

    assert floor <= frontier(chain, levels=4).peak_bytes[0]
    assert name in [stage.name for stage in chain.stages]
