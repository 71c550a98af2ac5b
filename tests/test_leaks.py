"""A pass leaves nothing behind: what lives after it is what lived before, under every strategy."""

from __future__ import annotations

import gc

import pytest
import torch

from profiler import catalogue, models
from profiler.case import OPERATORS, PASSES, Choice, Trial
from profiler.measuring import measure
from profiler.workload import Workload
from tests import make
from tests.left_behind import bytes_left_by, bytes_left_on_cuda_by, num_alive, parameters
from tests.plans import written
from tests.test_equality import EVERY

MODELS = ("mlp:width=16,depth=5", "transformer:layers=4,width=32,sequence=16,vocabulary=50", "cifar-resnet:depth=2")
STRATEGIES = [choice for choices in EVERY.values() for choice in choices]
STAGES = ((), *((name,) for name in (*PASSES, OPERATORS)))  # without any pass, the model is built


def run(model: str, strategy: str, passes: tuple[str, ...], **fields: object) -> None:
    """One pass of a trial, compared with nothing that would have to be measured first."""
    fields = {"model": Choice(model), "batch_size": 4, "warmup": 0, "samples": 1, "device": "cpu", **fields}
    measure(Trial(case=make.case(strategy, **fields), passes=passes, digests={}))  # so that `none` runs beside it


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_pass_of_every_strategy_leaves_no_byte_on_the_cpu(model, strategy, tmp_path):
    choice = written(strategy, model, tmp_path)
    run(model, choice, PASSES)  # what is made once in a process is there

    left = {"+".join(passes): bytes_left_by(lambda passes=passes: run(model, choice, passes)) for passes in STAGES}

    assert left == dict.fromkeys(left, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_pass_of_every_strategy_leaves_no_byte_on_cuda(model, strategy, tmp_path):
    choice = written(strategy, model, tmp_path)
    run(model, choice, PASSES, device="cuda:0")

    left = {
        "+".join(passes): bytes_left_on_cuda_by(lambda passes=passes: run(model, choice, passes, device="cuda:0"))
        for passes in STAGES
    }

    assert left == dict.fromkeys(left, 0)


def test_compiled_code_keeps_no_model():
    """Where a dispatch mode cannot be entered, parameters are watched: every graph leads to them."""
    build, options = catalogue.load(Choice("mlp"), models.TABLE)
    watched = []

    def watching() -> Workload:
        workload = build(batch_size=4, **options)
        watched.extend(parameters(workload.module))
        return workload

    case = make.case("compile-budget:budget=0.5", model=Choice("mlp"), batch_size=4, warmup=0, samples=1)
    measure(Trial(case=case, passes=("memory", "time")), build=watching)
    gc.collect()

    assert watched
    assert num_alive(watched) == 0


def test_storages_that_live_are_counted_where_an_operator_made_them():
    kept = []

    left = bytes_left_by(lambda: kept.append((torch.ones(3, requires_grad=True) * 2, torch.zeros(10))[0]))

    assert left == 2 * 3 * 4  # the result, and the leaf that its graph holds; not the ten zeros
