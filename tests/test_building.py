"""What the allocator is asked for before the first step, and in which order an operator asks: on CUDA, by hand."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from profiler.core import catalogue
from profiler.core.case import Choice
from profiler.core.trace_data import Trace
from profiler.predicting.trace.fake_tensors import fake_tensors
from profiler.predicting.trace.step import Builder
from profiler.predicting.traced_case import trace_case
from profiler.training import marked_functions, strategies
from profiler.training.checkpointing import linked_blocks
from profiler.training.checkpointing.observed_forward import Observation, observe
from tests import make

MIB = 2**20
TRANSFORMER = "transformer:layers=4,width=32,heads=2,sequence=16,vocabulary=64"


def traced(strategy: str = "none", *, optimizer: str = "sgd", device: str = "fake:cuda") -> Trace:
    chosen = catalogue.resolve(Choice(strategy), strategies.TABLE)
    case = make.case(
        chosen, model=Choice(TRANSFORMER), batch_size=4, verify="off", device=device, optimizer=Choice(optimizer)
    )
    return trace_case(case)[1]


@pytest.mark.slow
def test_what_is_made_is_followed_until_it_is_gone_or_kept():
    builder = Builder(device="cuda")
    with fake_tensors(), builder.follow():
        kept = torch.empty(MIB)
        torch.empty(2 * MIB)
        left = torch.empty(3 * MIB)

    found = builder.building([None, builder.life(kept)])

    assert [one.nbytes for one in found.allocations] == [4 * MIB, 8 * MIB, 12 * MIB]
    assert [(one.born, one.died) for one in found.allocations] == [(1, 3), (2, 2), (3, 3)]
    assert found.places == (1, None, None)
    assert left.numel()


def test_a_conversion_leaves_room_where_parameters_were():
    builder = Builder(device="cuda")
    with fake_tensors(), builder.follow():
        module = nn.Linear(256, 512, bias=False).to(torch.float16)

    found = builder.building([builder.life(module.weight)])

    assert [(one.nbytes, place) for one, place in zip(found.allocations, found.places, strict=True)] == [
        (256 * 512 * 4, None),
        (256 * 512 * 2, 0),
    ]


def test_parameters_and_the_batch_are_those_that_were_built():
    trace = traced()

    places = {place for place in trace.building.places if place is not None}

    before = {place for place, one in enumerate(trace.allocations) if one.category in ("parameters", "inputs")}
    assert places == before


def test_a_forward_that_a_strategy_looked_at_is_no_part_of_it(monkeypatch):
    monkeypatch.setattr(marked_functions, "are_there", lambda: False)  # other tests of this process mark some
    looked: list[Observation] = []
    monkeypatch.setattr(linked_blocks, "observe", lambda workload: looked.append(observe(workload)) or looked[-1])

    looking, blind = traced("segments:k=2").building, traced("none").building

    assert len(looked) == 2  # once for a model that is let go, once from memory
    assert looked[0] is looked[1]
    assert Counter(one.name for one in looking.operators) == Counter(one.name for one in blind.operators)


def test_on_the_cpu_no_building_is_followed():
    assert traced(device="fake:cpu").building is None


# torch/optim/adam.py: `step` is made on the host unless it is captured or fused
def test_steps_are_counted_on_the_host():
    trace = traced(optimizer="adamw")

    by_category = {
        category: sum(one.nbytes for one in trace.allocations if one.category == category and not one.born)
        for category in ("optimizer", "parameters")
    }

    assert by_category["optimizer"] == 2 * by_category["parameters"]


@pytest.mark.parametrize(
    ("operator", "first"),
    [
        ("aten.native_dropout", 4 * 16 * 32),  # the mask, of one byte an element; then the values
        ("aten._scaled_dot_product_efficient_attention", 512),  # seed and offset; then the values
    ],
)
def test_results_are_allocated_in_the_kernels_order(operator, first):
    trace = traced()
    number = next(number for number, one in enumerate(trace.operators, start=1) if one.name == operator)

    sizes = [one.nbytes for one in trace.allocations if one.born == number]

    assert sizes[0] == first < max(sizes)


# aten/src/ATen/native/cuda/Copy.cu: a copy to the host of what does not lie dense goes through one on the device
def test_what_does_not_lie_dense_is_copied_on_the_device_before_it_is_offloaded():
    on_device = {  # the copies on the host are in no trace of the device's storages
        strategy: [
            one for one in traced(strategy).allocations if one.operator == "aten.clone" and one.phase == "forward"
        ]
        for strategy in ("offload", "none")
    }

    assert len(on_device["offload"]) > len(on_device["none"])
