"""The costs of stages, against steps that are traced, measured, or counted by hand."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from profiler.core import catalogue, plan_file
from profiler.core.case import Choice, Trial
from profiler.core.trace_data import live
from profiler.planning.chain import Chain, Plan, plan_file_of
from profiler.planning.simulator import all_stages, none, simulate
from profiler.predicting import stages as stages_module
from profiler.predicting.prediction import predict
from profiler.predicting.stages import stages
from profiler.predicting.traced_case import observe_case, trace_case
from profiler.training import models
from profiler.training.workload import Workload
from tests import make

MODELS = (  # each with its blocks, and how far off the peak may be
    ("mlp", None, 0.0005),
    # `cat` keeps nothing of what a transposed convolution gives it, which is held no longer
    ("tests/user_models/architectures.py:transposed", "layers.*", 0.0),
    ("transformer:layers=4,width=32", None, 0.0005),  # embeddings before the blocks, a head behind them
    ("mnist-cnn:channels=4,layers=12", None, 0.0005),  # ReLUs do not keep what they are given
    ("cifar-resnet", None, 0.01),  # gradients come where what is saved goes
    ("torchvision:vgg11:size=64", None, 0.0005),  # activations in place
)


def case(model: str, **fields):
    defaults = {"batch_size": 4, "device": "fake:t4"}
    return make.case(model=catalogue.resolve(Choice(model), models.TABLE), **{**defaults, **fields})


@cache
def chain_of(model: str, **fields) -> Chain:
    return stages(Trial(case=case(model, **fields)))


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


def traced_peak(model: str, chain: Chain, plan: Plan, folder: Path, build=None, **fields) -> int:
    path = folder / "plan.json"
    plan_file.write(plan_file_of(chain, plan), path)
    _, trace, _ = trace_case(case(model, strategy=Choice.of("plan", {"file": path}), **fields), build=build)
    return max(live(trace))


@pytest.mark.parametrize(
    ("model", "blocks", "off"), [*MODELS[:2], *(pytest.param(*one, marks=pytest.mark.nightly) for one in MODELS[2:])]
)
def test_the_peak_by_the_stages_costs_is_that_of_the_traced_step(model, blocks, off, tmp_path):
    chain = chain_of(model, blocks=blocks)

    for plan in plans(chain):
        traced = traced_peak(model, chain, plan, tmp_path, blocks=blocks)

        assert simulate(chain, plan).peak_bytes == pytest.approx(traced, rel=off)


class Calling(nn.Module):
    """Calls a function with its layer, its input, and a set that is new in every step."""

    def __init__(self, run, layer):
        super().__init__()
        self.run, self.layer = run, layer

    def forward(self, x, given):
        return self.run(self.layer, x, given)


def overwriting(layer, x, given):
    """Writes over a convolution's result, as EfficientNet's SiLU does."""
    return x + nn.functional.silu(layer(x), inplace=True)


def caching(layer, x, cache):
    """As GPT-2 of transformers with a cache of keys: the recompute finds it filled."""
    y = layer(x)
    y = y + 0 if id(layer) in cache else y * 1
    cache.add(id(layer))
    return torch.tanh(y)


class Row(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.layers = nn.ModuleList(blocks)

    def forward(self, x):
        given = set()
        for layer in self.layers:
            x = layer(x, given)
        return x.square().mean()


def row(run, count: int, batch: torch.Tensor, layer):
    def build() -> Workload:
        names = tuple(f"layers.{place}" for place in range(count))
        module = Row(Calling(run, layer()) for _ in range(count))
        return Workload(module=module, blocks=names, batch=batch, loss=lambda module, x: module(x))

    return build


@pytest.mark.parametrize(("kind", "why"), [(overwriting, 0), (caching, 1)])
def test_what_pytorchs_selective_checkpoint_refuses_cannot_be_saved_and_the_rest_is_planned(kind, why):
    build = row(kind, 3, torch.ones(4, 8, 16, 16), lambda: nn.Conv2d(8, 8, 3, padding=1))

    with pytest.raises(RuntimeError, match=stages_module.UNSAVABLE[why]):
        trace_case(case("mlp", strategy=Choice("selective:save=conv")), build=build)
    chain = stages(Trial(case=case("mlp")), build=build)

    assert [len(stage.options) for stage in chain.stages] == [0] * len(chain.stages)
    assert sum(len(stage.blocks) for stage in chain.stages) == 3


def test_blocks_that_do_not_keep_their_input_are_stages_where_checkpoints_pay(tmp_path):
    """They were one stage, of which no plan fitted what the step with `all` needs."""
    layers = lambda: nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))  # noqa: E731
    build = row(lambda layer, x, given: layer(x * 0.5), 6, torch.ones(4, 128, 64), layers)
    chain = stages(Trial(case=case("mlp")), build=build)
    whole, every = none(chain).plan, all_stages(chain)

    kept, least = (traced_peak("mlp", chain, plan, tmp_path, build) for plan in (whole, every))

    assert len([stage for stage in chain.stages if stage.blocks]) == 6
    assert least < 0.85 * kept
    for plan, peak in ((whole, kept), (every, least)):  # the inputs are counted, and not there where all is kept
        assert 0.99 * peak < simulate(chain, plan).peak_bytes < peak + 6 * 4 * 4 * 128 * 64


def test_a_plan_with_a_save_option_has_the_peak_that_its_costs_say(tmp_path):
    model = "transformer:layers=4,width=32"
    chain = chain_of(model)
    plan = Plan(items=(0, 1, 2, (3,), 4, 5), options=((1, "matmul"), (2, "attention"), (4, "matmul+attention")))

    traced = traced_peak(model, chain, plan, tmp_path)

    assert simulate(chain, plan).peak_bytes == pytest.approx(traced, rel=0.0005)
    assert traced < none(chain).cost.peak_bytes


def test_blocks_that_do_not_feed_each_other_alone_are_kept_apart():
    model = "tests/user_models/architectures.py:segmentation"
    linked = observe_case(case(model, batch_size=None)).linked

    blocks = [index for index, stage in enumerate(chain_of(model, batch_size=None).stages) if stage.blocks]
    together = [a + 1 == b for a, b in pairwise(blocks)]

    assert not all(linked[:-1])
    assert not any(one and not feeds for one, feeds in zip(together, linked, strict=False))


@pytest.mark.slow
def test_the_costs_of_equal_blocks_are_equal_and_all_of_them_add_what_the_step_takes_more(a_second_a_mark):
    chain = stages(Trial(case=case("transformer:layers=3,width=32", device="cpu")))

    before, first, second, last, after = chain.stages
    # A step has 4 phases. Each block that is timed has 4 marks of it, and 2 more in its recompute: 3 of those are in
    # what was seen of its forward and 1 in its backward, whose shares of the step they are.
    assert (before.forward_seconds, before.backward_seconds) == (0.0, 0.0)
    assert (first.forward_seconds, first.backward_seconds) == pytest.approx((3 * 4 / 12, 1 * 4 / 12))
    assert first.early_stop_seconds == 4 + 2
    assert first.forward_seconds == second.forward_seconds == last.forward_seconds
    added = [
        {one.name: one.forward_seconds + one.backward_seconds for one in stage.options} for stage in (first, second)
    ]
    assert added[0] == added[1]
    assert [*added[0]] == ["matmul", "attention", "matmul+attention"]
    assert none(chain).cost.step_seconds == pytest.approx(4)
    assert simulate(chain, all_stages(chain)).step_seconds == pytest.approx(4 + 3 * 4 + 3 * 2)
    assert simulate(chain, all_stages(chain)).error_seconds == 0.0
    assert after.forward_seconds == pytest.approx(0)
    # In one checkpoint, all marks of the forward come again, but the last block's, which stops early.
    assert [stage.inner_recompute_seconds for stage in (first, second, last)] == pytest.approx([(3 * 4 - 1) / 3] * 3)


def test_costs_are_the_blocks_that_the_allocator_gives():
    kept = make.case(model=Choice("mlp:width=640,depth=8"), batch_size=900, device="fake:h100")

    chain = stages(Trial(case=kept, passes=("memory",)))

    assert none(chain).cost.peak_bytes == predict(Trial(case=kept)).readings.peak_bytes  # 0.5 % less by requests
