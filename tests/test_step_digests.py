"""Steps whose memory is read are those whose gradients are compared: their digests, and what watching them leaves."""

from typing import Any

import msgspec
import pytest
import torch

from profiler.core.case import Case, Choice, Trial
from profiler.core.record import Record
from profiler.measuring import trial as trials
from profiler.measuring.bench import Bench
from profiler.measuring.meters import equality
from profiler.measuring.trial import measure, read_memory
from profiler.training.workload import trained
from tests import make

PASSES = ("memory", "equality")
MLP, TRANSFORMER = "mlp:width=32", "transformer:width=16,layers=3,heads=2,sequence=8,vocabulary=32"
DRAWING = "tests/user_models/draws.py"
OWN_RUN = 2  # steps of a comparison that has to run them itself


def case(strategy: str, model: str = MLP, **fields: Any) -> Case:
    return make.case(strategy, model=Choice(model), batch_size=4, **fields)


def measured(case: Case, **fields: Any) -> Record:
    return measure(Trial(case=case, passes=PASSES, **fields))


def digests_of(case: Case) -> dict[str, str]:
    """Those of a run of its own, without the memory pass."""
    return measure(Trial(case=case.baseline, passes=("equality",))).equality.digests


@pytest.mark.parametrize("strategy", ["none", "all", "recursive", "offload", "selective"])
@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (MLP, {"optimizer": Choice("adamw"), "accumulate": 2}),
        (MLP, {"keep_gradients": True}),
        (TRANSFORMER, {"precision": "bf16"}),
        ("cifar-resnet:depth=1", {"repair_batchnorm": True}),
        (f"{DRAWING}:once_more:kind=skipping", {}),
    ],
)
def test_the_steps_of_the_memory_pass_show_that_gradients_are_equal_and_take_the_same_bytes(model, fields, strategy):
    asked = case(strategy, model, **fields)

    record = measured(asked, digests=digests_of(asked))
    alone = measured(msgspec.structs.replace(asked, verify="off"))

    assert (record.equality.gradients_equal, record.equality.random_state_equal) == (True, True)
    assert record.num_steps == 2 or strategy == "none"  # no other was run
    assert record.equality.noise_floor == (0 if strategy == "none" else None)
    assert record.readings == alone.readings


@pytest.mark.parametrize("name", ["loss", "gradients", "buffers", "random", "second step", "plain state"])
def test_every_digest_is_looked_at(name):
    asked = case("all")

    record = measured(asked, digests={**digests_of(asked), name: "0" * 32})

    assert (record.outcome, record.num_steps) == ("ok", 2 + 3 * OWN_RUN)


def test_weights_are_as_before_once_the_steps_have_run():
    bench = Bench(Trial(case=case("none"), passes=PASSES), lambda name: None)
    built = bench.build()
    optimizer, step = built.trainer()
    before = {name: parameter.detach().clone() for name, parameter in trained(built.workload).items()}

    with trials._watched(bench, built, step) as watched:
        read_memory(built.workload, optimizer, bench.device, watched)
        assert not all(torch.equal(value, before[name]) for name, value in trained(built.workload).items())

    assert all(torch.equal(value, before[name]) for name, value in trained(built.workload).items())
    assert bench.step_digests.digests.keys() == digests_of(case("none")).keys()
    assert equality.tells(value.grad for value in trained(built.workload).values())


@pytest.mark.parametrize("fields", [{"verify": "off"}, {"precision": "amp-fp16"}])
def test_steps_are_not_watched_where_nothing_is_compared_with_them(fields):
    bench = Bench(Trial(case=case("none", **fields), passes=PASSES), lambda name: None)
    built = bench.build()
    _, step = built.trainer()

    with trials._watched(bench, built, step) as watched:
        assert watched is step
    assert bench.step_digests is None


@pytest.mark.parametrize("fields", [{}, {"keep_gradients": True}])
@pytest.mark.parametrize("kind", ["plain", "scaled"])
def test_a_recompute_that_draws_other_numbers_is_found_though_gradients_are_written_over(kind, fields):
    """Gradients that are kept are written over by the next step, and some optimizers write into them."""
    asked = case("all", f"{DRAWING}:once_more:kind={kind}", optimizer=Choice("sgd:lr=1e-4"), **fields)

    none = measured(asked.baseline)
    record = measured(asked, digests=digests_of(asked))

    assert (none.outcome, none.equality.noise_floor) == ("ok", 0.0)
    assert (record.outcome, record.equality.noise_floor) == ("invalid", 0.0)
