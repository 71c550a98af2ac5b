"""Composed traces against those of the steps that are really checkpointed, operator by operator; and by arithmetic."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
import torch
from torch import nn

from profiler.core.case import Case, Choice
from profiler.core.errors import Unsupported
from profiler.core.trace_data import Allocation, Call, Operator, Save, Trace, live
from profiler.predicting.prediction import memory_readings
from profiler.predicting.trace.compose import RANDOM_STATE, compose
from profiler.predicting.trace.fake_tensors import fake_tensors
from profiler.predicting.trace.step import follow
from profiler.predicting.traced_case import trace_case
from profiler.training.checkpointing.split import split_as_torch
from profiler.training.workload import Workload, train_step
from tests import make

MODELS = (
    "mlp",
    "transformer:layers=4,width=32",  # attention, dropout, a loop over a list
    "mnist-cnn:channels=4,layers=6",  # the last result of most runs is saved
    "cifar-resnet",  # shortcuts, BatchNorm
    "torchvision:vgg11:size=32",  # activations in place
    "torchvision:resnet18:size=32",  # blocks in several Sequentials
)
DEVICES = ("fake:cpu", "fake:cuda")
SLOW = [pytest.param(strategy, marks=pytest.mark.nightly) for strategy in ("all", "every:k=2", "segments:k=4")]
PACKING = "aten.detach"  # what checkpoints pack is detached: views, of which a composed step has none


def runs_of(strategy: str, length: int) -> list[range]:
    """Which blocks the strategy checkpoints together."""
    options = Choice(strategy).options
    if strategy == "all":
        return [range(i, i + 1) for i in range(length)]
    if strategy.startswith("every"):
        return [range(i, i + 1) for i in range(int(options["k"]) - 1, length, int(options["k"]))]
    return split_as_torch(length, int(options["k"])).checkpointed


@cache
def followed(case: Case) -> tuple[Trace, tuple[str, ...]]:
    """The step without checkpointing, and the names of its blocks."""
    built, trace, _ = trace_case(case.baseline, with_saves=True)
    return trace, built.workload.blocks


def both(strategy: str, **fields) -> tuple[Trace, Trace]:
    """The traced step, and the composed one."""
    case = make.case(strategy, **fields)
    plain, blocks = followed(case.baseline)
    return trace_case(case)[1], compose(plain, blocks, runs_of(strategy, len(blocks)))


def held(trace: Trace) -> list[tuple[str, str, int]]:
    """What each operator runs beside. Bytes."""
    numbers = zip(trace.operators, live(trace)[1:], strict=True)
    return [(one.name, one.phase, nbytes) for one, nbytes in numbers if one.name != PACKING]


def kinds(trace: Trace) -> Counter:
    """All storages, whatever their order."""
    return Counter((one.nbytes, one.operator, one.module, one.phase, one.category) for one in trace.allocations)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strategy", ["segments:k=2", *SLOW])
@pytest.mark.parametrize("model", MODELS)
def test_a_composed_step_is_the_traced_one_operator_by_operator(model, strategy, device):
    traced, composed = both(strategy, model=Choice(model), batch_size=2, device=device)

    assert held(composed) == held(traced)
    assert kinds(composed) == kinds(traced)
    assert memory_readings(composed) == memory_readings(traced)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": Choice("adamw")},
        {"precision": "amp-bf16"},
        {"accumulate": 2},
        {"accumulate": 3, "keep_gradients": True},
    ],
    ids=str,
)
def test_so_it_is_however_one_trains(fields):
    traced, composed = both(
        "segments:k=2", model=Choice("transformer:layers=4,width=32"), batch_size=2, device="fake:cpu", **fields
    )

    assert held(composed) == held(traced)
    assert memory_readings(composed) == memory_readings(traced)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
def test_following_what_is_saved_changes_nothing(model, device):
    case = make.case(model=Choice(model), batch_size=2, device=device)

    trace, blocks = followed(case)

    plain = trace_case(case)[1]
    assert held(trace) == held(plain)
    assert kinds(trace) == kinds(plain)
    assert held(compose(trace, blocks, [])) == held(plain)


def test_checkpointing_saves_less():
    """The twin of the equalities: they would not hold by composing nothing."""
    case = make.case(model=Choice("mnist-cnn:channels=4,layers=6"), batch_size=2, device="fake:cpu")
    plain, blocks = followed(case)

    composed = compose(plain, blocks, runs_of("segments:k=4", len(blocks)))

    assert memory_readings(composed)["saved_bytes"] < memory_readings(plain)["saved_bytes"]
    assert memory_readings(composed)["backward_flops"] > memory_readings(plain)["backward_flops"]


BLOCKS = ("a", "b")


def by_hand(device: str = "cuda") -> Trace:
    """Blocks `a` and `b`, of which each makes 10 bytes that it does not save, and 100 that it and its follower save."""

    def made(nbytes: int, born: int, died: int, let_go: int, category: str) -> Allocation:
        return Allocation(nbytes, born, died, "make", "", "forward", category, let_go)

    forward = [Operator("aten.make", module, "forward") for module in "aabb"] + [Operator("aten.loss", "", "forward")]
    backward = [Operator("aten.backward", module, "backward") for module in ("", "b", "a")]
    return Trace(
        allocations=(
            Allocation(1000, 0, 8, "", "", "before", "inputs", 8),
            made(10, 1, 2, 2, "temporaries"),
            made(100, 2, 8, 4, "saved"),
            made(10, 3, 4, 4, "temporaries"),
            made(100, 4, 7, 5, "saved"),
        ),
        operators=(*forward, *backward),
        marks=(("zero", 0), ("forward", 0), ("backward", 5), ("optimizer", 8), ("end", 8)),
        device=device,
        saves=(
            Save(2, 2, 7, 8, 8),  # a keeps its result,
            Save(2, 2, 6, 7, 7),  # and so does b its input,
            Save(4, 4, 6, 7, 7),  # and its result
        ),
        calls=(Call("a", 0, 2, (0, 1), (0,), (2,)), Call("b", 2, 4, (1, 3), (2,), (4,))),
    )


def test_a_checkpointed_block_is_run_again_before_its_backward():
    composed = compose(by_hand(), BLOCKS, [[0]])

    #                      a     a     b     b     loss  loss  b     a     a     a
    assert live(composed) == [1000, 1010, 1110, 1110, 1210, 1200, 1200, 1200, 1010, 1110, 1100]
    assert [one.phase for one in composed.operators].index("recompute") == 7
    assert composed.marks == (("zero", 0), ("forward", 0), ("backward", 5), ("optimizer", 10), ("end", 10))


def test_the_input_of_a_checkpoint_is_held_until_its_backward_is_over():
    composed = compose(by_hand(), BLOCKS, [[1]])

    result = next(one for one in composed.allocations if one.born == 2)
    assert (result.died, result.category) == (10, "saved")  # b's backward is the ninth operator, and a saves it too


def test_two_blocks_in_one_run_keep_nothing_between_them():
    composed = compose(by_hand(), BLOCKS, [[0, 1]])

    #                      a     a     b     b     loss  loss  a     a     b     b     b     a
    assert live(composed) == [1000, 1010, 1110, 1110, 1210, 1100, 1000, 1010, 1110, 1110, 1210, 1200, 1100]
    assert memory_readings(composed)["saved_bytes"] == 0


def test_on_a_cpu_each_checkpoint_keeps_the_random_state_and_each_recompute_another():
    on_cuda, on_cpu = (live(compose(by_hand(device), BLOCKS, [[0]])) for device in ("cuda", "cpu"))

    more = [there - here for here, there in zip(on_cuda, on_cpu, strict=True)]
    assert more == [RANDOM_STATE * count for count in (0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 1)]
    assert torch.get_rng_state().nbytes == RANDOM_STATE


def test_blocks_that_do_not_follow_each_other_are_refused():
    case = make.case(model=Choice("mlp:depth=4"), batch_size=2, device="fake:cpu")
    plain, blocks = followed(case)

    with pytest.raises(Unsupported, match="'0' and '2' cannot be run together"):
        compose(plain, blocks, [[0, 2]])


def test_a_block_in_two_runs_is_refused():
    with pytest.raises(Unsupported, match="overlap"):
        compose(by_hand(), BLOCKS, [[0], [0, 1]])


def test_a_block_that_did_not_run_is_refused():
    with pytest.raises(Unsupported, match="'c' ran 0 times"):
        compose(by_hand(), (*BLOCKS, "c"), [[2]])


def test_an_activation_in_place_whose_other_form_saves_something_else_is_refused():
    with fake_tensors():
        module = nn.Sequential(nn.Linear(3, 3), nn.ReLU6(inplace=True))
        workload = Workload(module=module, batch=torch.ones(2, 3), loss=lambda module, x: module(x).sum())
        optimizer = torch.optim.SGD(module.parameters())
        step = lambda mark: train_step(workload, optimizer, mark=mark)  # noqa: E731  the step's one line
        trace = follow(workload, optimizer, step, with_saves=True)

    with pytest.raises(Unsupported, match="writes over its input"):
        compose(trace, ("0", "1"), [[1]])
    assert compose(trace, ("0", "1"), [[0, 1]]).operators  # within a run it may
