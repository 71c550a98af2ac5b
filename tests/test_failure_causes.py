"""What fails or differs under a checkpoint is told by its cause, and the way out that is named is one."""

import re
from typing import Any
from weakref import WeakSet

import pytest

from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.measuring import failure_causes
from profiler.training import called_blocks
from profiler.workflows.planner import PlanRequest, plan
from profiler.workflows.spec import Request
from tests.conftest import attempted
from tests.user_models import causes, switched

FILE = causes.__file__
MISMATCH = "checkpoint mismatch: the recompute gives different tensors: "


def under(strategy: str, factory: str, **fields: Any) -> Record:
    """The record of a trial beside that of `none`."""
    return attempted(f"{FILE}:make:kind={factory}", strategy, **{"batch_size": 4, **fields})


@pytest.fixture(autouse=True)
def no_marks(monkeypatch):
    """Where functions are marked, a forward that looks for their calls runs when a model is built, with its effects."""
    monkeypatch.setattr(called_blocks, "_marked", WeakSet())


def failed(strategy: str, factory: str) -> str:
    """Why a trial failed, which runs its steps without comparing them."""
    record = under(strategy, factory, passes=("memory",))
    assert record.outcome == "failed"
    return str(record.detail)


@pytest.mark.parametrize("save", ["addmm", "_to_copy", "addmm+_to_copy"])
def test_a_cast_that_autocast_had_kept_is_told_with_the_way_out(save):
    strategy = f"selective:save={save}"

    failing = under(strategy, "shared,way=cached")

    for record in (failing, under(strategy, "shared", precision="amp-bf16")):
        assert record.outcome == "failed"
        assert "not found in storage (causes.py:" in record.detail
        assert "torch.autocast(..., cache_enabled=False) casts it in both" in record.detail
    assert under(strategy, "shared,way=uncached").equality.gradients_equal  # the way out is one


@pytest.mark.slow
def test_blocks_that_write_over_the_input_that_a_checkpoint_keeps_are_told_with_the_way_out():
    record, without = (under("all", f"overwriting,way={way}", blocks="1,2") for way in ("write", "copy"))

    assert record.outcome == "failed"
    assert "F.relu(x, inplace=True)" in record.detail
    assert "detect_anomaly" not in record.detail
    assert without.equality.gradients_equal
    words = Request(model=f"{FILE}:make:kind=overwriting", blocks="[12]", strategies="none", device="cpu")
    with pytest.raises(UserError, match=r"x = x \+ y does not"):
        plan(PlanRequest(words=words, budget="90%"))


def test_what_a_recompute_raises_is_told_with_its_block_and_what_the_forward_had_changed():
    whole, cut = (failed(strategy, "once") for strategy in ("all", "segments:k=3"))

    words = (
        "ValueError: a second call (causes.py:{}), raised in the backward, in the recompute of '{}', whose forward had "
    )
    cause = "succeeded; likely cause: the forward changes 1.seen, 2.seen, which the recompute finds changed"
    (line,) = re.findall(r"causes\.py:(\d+)", whole)
    assert (whole, cut) == tuple(words.format(line, block) + cause for block in (2, 1))  # of three, the last is plain
    assert under("none", "once").outcome == "ok"


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        (1, ", 0.calls and 1 more, which the recompute finds changed"),  # in the first call
        (3, " is not as it was built, perhaps changed between a forward and its recompute"),  # of the second step
    ],
)
def test_a_parameter_that_is_frozen_between_forward_and_recompute_is_named(after, cause):
    frozen = "requires_grad of 0.layer.weight, requires_grad of 1.layer.weight"

    assert failed("all", f"freezing,way={after}") == f"{MISMATCH}{'the forward changes ' * (after == 1)}{frozen}{cause}"


def test_parameters_that_a_functional_call_lends_are_told_with_the_way_out():
    lent, marked = (
        under("all", f"skeleton,way={way}", blocks=blocks) for way, blocks in (("plain", "layer"), ("marked", None))
    )

    assert lent.detail == f"{MISMATCH}'layer' {failure_causes.LENT}"
    assert (marked.equality.gradients_equal, marked.built.num_blocks) == (True, 3)


def test_a_loss_without_gradient_behind_a_reentrant_checkpoint_is_told_with_both_ways_out():
    assert "use_reentrant=False gives them theirs, and so does requires_grad_() on an input" in failed("own", "whole")
    for way in ("plain", "input"):
        assert under("own", f"whole,way={way}").equality.gradients_equal


@pytest.mark.slow
def test_a_cache_of_keys_that_the_recompute_finds_filled_is_told_with_the_way_out():
    record, without = (
        attempted(f"{switched.__file__}:gpt2:use_cache={word}", "selective", batch_size=4) for word in ("true", "false")
    )

    assert "the layers fill a cache of keys (config.use_cache)" in record.detail
    assert without.equality.gradients_equal
