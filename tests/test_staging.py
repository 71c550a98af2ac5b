"""The costs of stages, against steps that are traced, measured, or counted by hand."""

from __future__ import annotations

import gc
from functools import cache, partial
from itertools import cycle, pairwise, repeat
from pathlib import Path
from unittest.mock import Mock

import pytest
from torch import nn

from profiler.analysis.peak_floor import floor
from profiler.core import catalogue, plan_file
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported, UserError
from profiler.core.trace_data import live
from profiler.planning.candidates import all_stages, largest_stage, none
from profiler.planning.chain import Chain
from profiler.planning.plan import Plan, plan_file_of
from profiler.planning.simulator import simulate
from profiler.planning.solver import frontier
from profiler.predicting.prediction import predict
from profiler.predicting.staging import stage_seconds
from profiler.predicting.staging import stages as stages_module
from profiler.predicting.staging.pooled_seconds import (
    EVERY,
    MOST_DOUBT,
    NOTHING,
    PLAIN,
    WHOLE,
    StageWork,
    StepSample,
    pooled,
)
from profiler.predicting.staging.stage_operators import spans
from profiler.predicting.staging.stage_seconds import LEAST_ROUNDS, LOOKS, ROUNDS, step_text
from profiler.predicting.staging.stages import stages
from profiler.predicting.traced_case import observe_case, trace_case
from profiler.training import models
from profiler.workflows.stages import stages as model_stages
from tests import make

RANDOM_STATE = 5056  # bytes of torch.get_rng_state(): the Mersenne Twister of the CPU
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


def traced_peak(model: str, chain: Chain, plan: Plan, device: str, folder: Path, **fields) -> int:
    path = folder / "plan.json"
    plan_file.write(plan_file_of(chain, plan), path)
    _, trace, _ = trace_case(case(model, strategy=Choice.of("plan", {"file": path}), device=device, **fields))
    return max(live(trace))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [*MODELS[:2], *(pytest.param(model, marks=pytest.mark.nightly) for model in MODELS[2:])]
)
def test_the_peak_by_the_stages_costs_is_that_of_the_traced_step(model, tmp_path):
    chain = chain_of(model)

    for plan in plans(chain):
        traced = traced_peak(model, chain, plan, "fake:t4", tmp_path)

        assert simulate(chain, plan).peak_bytes == pytest.approx(traced, rel=0.01 if "cifar" in model else 0.0005)


def test_what_a_block_hands_on_is_held_no_longer_than_what_is_always_kept_reads_it(tmp_path):
    """`cat` keeps nothing of what a transposed convolution gives it."""
    model, blocks = "tests/user_models/unet.py:transposed", "layers.*"
    chain = stages(Trial(case=case(model, device="fake:t4", blocks=blocks)))

    for plan in plans(chain):
        traced = traced_peak(model, chain, plan, "fake:t4", tmp_path, blocks=blocks)

        assert simulate(chain, plan).peak_bytes == traced


@pytest.mark.slow
def test_on_a_cpu_each_checkpoint_keeps_a_random_state_besides(tmp_path, monkeypatch):
    model = "transformer:layers=4,width=32"
    monkeypatch.setattr(stage_seconds, "seconds", lambda case, works, saves, fits, **_: [NOTHING for _ in works])
    chain = stages(Trial(case=case(model, device="cpu")))

    for plan in plans(chain):
        missing = traced_peak(model, chain, plan, "fake:cpu", tmp_path) - simulate(chain, plan).peak_bytes

        assert -256 <= missing <= (len(chain.stages) + 1) * RANDOM_STATE  # a number here and there is not in the costs


@pytest.mark.slow
def test_save_options_hold_less_than_keeping_and_more_than_a_checkpoint():
    chain = chain_of("transformer:layers=4,width=32")
    block = chain.stages[1]

    assert [option.name for option in block.options] == ["matmul", "attention", "matmul+attention"]
    for option in block.options:
        assert block.output_bytes < option.saved_bytes < block.saved_bytes
        assert option.backward_seconds > block.backward_seconds


def test_what_a_model_writes_over_in_place_cannot_be_saved_and_the_rest_is_planned():
    """PyTorch's selective checkpoint refuses what is mutated; EfficientNet's SiLU does so to a convolution's result."""
    model = "tests/user_models/squeeze_excite.py:make"

    with pytest.raises(RuntimeError, match=stages_module.UNSAVABLE[0]):
        trace_case(case(model, strategy=Choice("selective:save=conv"), device="fake:t4"))
    chain = chain_of(model)

    assert [len(stage.options) for stage in chain.stages] == [0] * len(chain.stages)
    assert sum(bool(stage.blocks) for stage in chain.stages) == 4


CACHES = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, cache):
        y = self.linear(x)
        y = y + 0 if id(self) in cache else y * 1
        cache.add(id(self))
        return torch.tanh(y)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        cache = set()
        for layer in self.layers:
            x = layer(x, cache)
        return x.square().mean()

def make(batch_size=4):
    return Net(), torch.randn(batch_size, 8)
"""


def test_what_a_recompute_asks_for_by_another_operator_cannot_be_saved_and_the_rest_is_planned(tmp_path):
    """GPT-2 of transformers with a cache of keys: the recompute finds it filled."""
    (tmp_path / "caches.py").write_text(CACHES)
    model = f"{tmp_path}/caches.py:make"

    with pytest.raises(RuntimeError, match=stages_module.UNSAVABLE[1]):
        trace_case(case(model, strategy=Choice("selective:save=matmul"), device="fake:t4"))
    chain = chain_of(model)

    assert [len(stage.options) for stage in chain.stages] == [0] * len(chain.stages)
    assert sum(bool(stage.blocks) for stage in chain.stages) == 3


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


MASKED = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x, mask):
        return self.down(torch.tanh(self.up(x * mask)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, 0.5)
        return x.square().mean()

def make(batch_size=4):
    return Net(), torch.randn(batch_size, 128, 64)
"""


def test_blocks_that_do_not_keep_their_input_are_stages_where_checkpoints_pay(tmp_path):
    """They were one stage, of which no plan fitted what the step with `all` needs."""
    (tmp_path / "masked.py").write_text(MASKED)
    model = f"{tmp_path}/masked.py:make"
    chain = chain_of(model)
    whole, every = none(chain).plan, all_stages(chain)

    traced = [traced_peak(model, chain, plan, "fake:t4", tmp_path) for plan in (whole, every)]

    assert len([stage for stage in chain.stages if stage.blocks]) == 6
    assert traced[1] < 0.85 * traced[0]
    for plan, peak in zip(
        (whole, every), traced, strict=True
    ):  # the inputs are counted, and not there where all is kept
        assert 0.99 * peak < simulate(chain, plan).peak_bytes < peak + 6 * 4 * 4 * 128 * 64


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
    seconds = [
        [(one.name, one.forward_seconds, one.backward_seconds) for one in stage.options] for stage in (first, second)
    ]
    assert seconds[0] == seconds[1]
    assert [option.name for option in first.options] == ["matmul", "attention", "matmul+attention"]
    assert none(chain).cost.step_seconds == pytest.approx(4)
    assert simulate(chain, all_stages(chain)).step_seconds == pytest.approx(4 + 3 * 4 + 3 * 2)
    assert simulate(chain, all_stages(chain)).error_seconds == 0.0
    assert after.forward_seconds == pytest.approx(0)
    # In one checkpoint, all marks of the forward come again, but the last block's, which stops early.
    assert [stage.inner_recompute_seconds for stage in (first, second, last)] == pytest.approx([(3 * 4 - 1) / 3] * 3)


@pytest.mark.slow
def test_a_way_that_does_not_fit_the_memory_is_not_tried(a_second_a_mark, monkeypatch):
    monkeypatch.setattr(stages_module, "available_bytes", lambda: 0)

    chain = stages(Trial(case=case("transformer:layers=3,width=32", device="cpu")))

    assert [stage.options for stage in chain.stages] == [()] * 5
    # Of the step with all checkpointed, 4 + 3 x 4 + 3 x 2, the recomputes are taken off.
    assert none(chain).cost.step_seconds == pytest.approx(22 - 3 * 1)


@pytest.mark.slow
def test_objects_from_before_are_not_looked_at_for_garbage_in_the_steps(a_second_a_mark, monkeypatch):
    sample, frozen = stage_seconds._SwitchedStep.sample, []

    def seen(self, way):
        frozen.append(gc.get_freeze_count())
        return sample(self, way)

    monkeypatch.setattr(stage_seconds._SwitchedStep, "sample", seen)

    stages(Trial(case=case("mlp", device="cpu")))

    assert min(frozen) > 100_000  # of torch
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
def test_stages_of_which_none_can_fit_the_budget_are_not_timed(a_second_a_mark):
    case = make.case(model=Choice("transformer:layers=2,width=32,sequence=16,vocabulary=64"), batch_size=2)

    never, perhaps = (stages(Trial(case=case, budget=budget)) for budget in ("1KiB", "99%"))

    assert {stage.forward_seconds for stage in never.stages} == {0.0}
    assert {stage.forward_seconds for stage in perhaps.stages} != {0.0}
    assert [stage.saved_bytes for stage in never.stages] == [stage.saved_bytes for stage in perhaps.stages]


LEAVES_OUT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        for place, layer in enumerate(self.layers):
            if place != 1 or self.calls < 3:
                x = layer(x)
        return x.square().mean()

def make(batch_size=4):
    return Net(), torch.randn(batch_size, 8)
"""


@pytest.mark.slow
def test_a_forward_that_leaves_blocks_out_at_random_is_timed_by_its_blocks_alone(tmp_path):
    (tmp_path / "leaves_out.py").write_text(LEAVES_OUT)

    chain = stages(Trial(case=case(f"{tmp_path}/leaves_out.py:make", device="cpu")))

    assert [stage.inner_recompute_seconds for stage in chain.stages if stage.blocks] == [None] * 3
    assert all(stage.early_stop_seconds for stage in chain.stages if stage.blocks)


def test_every_step_that_times_stages_is_told_with_the_time_left(engine, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(engine, "at_work", told.append)

    model_stages(engine, case("mlp", device="cpu"), None)

    steps = [text for text in told if text.startswith("step ")]
    # As it is, all kept, each checkpointed, all in one, and products kept, in turns.
    assert steps[0] == f"step 1 of {5 * ROUNDS}"
    assert 4 * LEAST_ROUNDS + LOOKS <= len(steps) <= 5 * ROUNDS
    assert all(text.startswith(f"step {number} of ") for number, text in enumerate(steps, start=1))
    assert all(text.endswith(" s left") for text in steps[1:])


@pytest.mark.parametrize(("is_asynchronous", "uncounted"), [(False, 1), (True, 3)])
def test_on_a_cpu_the_first_step_alone_is_not_counted(monkeypatch, is_asynchronous, uncounted):
    run, ways = [], [WHOLE, PLAIN, EVERY]
    step = Mock(spec=stage_seconds._SwitchedStep, _device=Mock(is_asynchronous=is_asynchronous))
    step.uncounted_ways = partial(stage_seconds._SwitchedStep.uncounted_ways, step)
    step.sample.side_effect = lambda way: run.append(way) or Mock()
    samples = {way: [] for way in ways}

    stage_seconds._sample(step, samples, lambda text: None)

    assert [len(found) for found in samples.values()] == [ROUNDS] * 3
    assert run[:uncounted] == ways[:uncounted]
    assert len(run) == uncounted + 3 * ROUNDS
    assert step.uncounted_ways(ways[1:]) == ways[1:]  # the step as it is does not fit


@pytest.mark.parametrize(("costs", "rounds"), [((2.0, 2.0), LOOKS), ((2.0, 0.5), ROUNDS), ((0.5, 2.0), ROUNDS)])
def test_a_save_option_that_was_no_faster_than_a_checkpoint_in_every_look_is_timed_no_more(costs, rounds):
    taken = {WHOLE: repeat(0.5), EVERY: repeat(1.0), "matmul": cycle(costs)}
    step = Mock(spec=stage_seconds._SwitchedStep)
    step.uncounted_ways.return_value = []
    step.sample.side_effect = lambda way: Mock(total=next(taken[way]))
    samples = {way: [] for way in taken}
    told: list[str] = []

    stage_seconds._sample(step, samples, told.append)

    assert {way: len(found) for way, found in samples.items()} == {WHOLE: ROUNDS, EVERY: ROUNDS, "matmul": rounds}
    assert told[-1].startswith(f"step {2 * ROUNDS + rounds} of {2 * ROUNDS + rounds}")


def test_nothing_is_sure_of_a_save_option_whose_timing_was_ended_early():
    works = [StageWork(blocks=(0,), kind="a", family="a", forward=1), StageWork(blocks=())]
    ways = {WHOLE: (1.0, 0.0), PLAIN: (1.0, 0.0), EVERY: (1.4, 0.4), "matmul": (1.2, 0.2)}
    samples = {
        way: [StepSample(total=total, forward=(0.4, 0.0), recompute=(again, 0.0), backward=(0.5, 0.0))] * 3
        for way, (total, again) in ways.items()
    }

    whole, *_ = pooled(samples, works)
    cut, *_ = pooled({**samples, "matmul": samples["matmul"][:2]}, works)

    assert whole.option_errors == {"matmul": 0.0}
    assert cut.options == whole.options
    assert cut.option_errors["matmul"] == pytest.approx(MOST_DOUBT * 0.2)


@pytest.mark.parametrize(
    ("done", "left", "seconds", "text"),
    [
        (0, [6, 8], 0.0, "step 1 of 8"),
        (2, [4, 6], 0.4, "step 3 of 8, 1 s left"),  # all rounds are run
        (2, [4, 6], 4.0, "step 3 of 8, 8 s left"),  # the least rounds
        (40, [4, 400], 1.0, "step 41 of 440, 1 s left"),  # until 2 s are over
        (7, [1, 1], 0.07, "step 8 of 8, 0 s left"),
        (2, [4, 6], 400.0, "step 3 of 8, 13 min left"),
    ],
)
def test_the_time_left_is_that_of_the_rounds_to_come(done, left, seconds, text):
    assert step_text(done, left, seconds=seconds) == text


def test_a_device_of_unknown_rates_is_refused():
    with pytest.raises(UserError, match="the speed of 'fake:cuda' is not known"):
        stages(Trial(case=case("mlp", device="fake:cuda")))


def test_blocks_that_the_forward_differentiates_are_no_chain():
    forces = make.case(model=Choice(f"{FORCES}:potential"), batch_size=None, device="fake:t4")

    with pytest.raises(Unsupported, match="the forward runs a backward of its own"):
        stages(Trial(case=forces))


def test_costs_are_the_blocks_that_the_allocator_gives():
    kept = make.case(model=Choice("mlp:width=640,depth=8"), batch_size=900, device="fake:h100")

    chain = stages(Trial(case=kept, passes=("memory",)))

    assert none(chain).cost.peak_bytes == predict(Trial(case=kept)).readings.peak_bytes  # 0.5 % less by requests


def test_every_operator_of_forward_and_backward_is_in_one_stage():
    built, trace, _ = trace_case(case("cifar-resnet", device="fake:t4"), with_saves=True)

    found = spans(trace, built.workload.blocks)

    forward = [number for span in found for number in range(span.first, span.last + 1)]
    backward = [number for span in found[::-1] for number in range(span.backward_first, span.backward_last + 1)]
    wanted = {phase: list(range(first, last + 1)) for phase, first, last in trace.spans()}
    assert forward == wanted["forward"]
    assert backward == wanted["backward"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [*MODELS, "tests/user_models/lstm.py:char_rnn", "tests/user_models/unet.py:segmentation"]
)
def test_no_plan_is_below_the_floor(model):
    chain = stages(Trial(case=case(model, device="fake:t4", **({"batch_size": None} if "user" in model else {}))))

    name, floor = largest_stage(chain)

    assert floor <= frontier(chain, levels=4).peak_bytes[0]
    assert name in [stage.name for stage in chain.stages]


@pytest.mark.slow
def test_plan_has_the_floor_of_explain_where_modules_outside_of_the_blocks_save():
    trial = Trial(case=case("transformer", device="fake:t4"), passes=("memory",))
    built, trace, _ = trace_case(trial.case)

    _, planned = largest_stage(stages(trial))

    assert planned == floor(trace, blocks=built.workload.blocks).nbytes
