"""Planted cases are explained by their cause, and sums add up at every operator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from profiler.analysis.explanation import explain
from profiler.analysis.live_bytes import categories_at, modules_at
from profiler.core import catalogue
from profiler.core.case import Choice, Trial
from profiler.core.trace_data import CATEGORIES, Followed, Operator, Trace, live
from profiler.predicting.prediction import follow_case
from profiler.training import models
from profiler.training.block_segments import checkpoint_segments
from profiler.training.workload import Workload
from tests import make
from tests.traced import BLOCKS, SMALL, by_hand, random_traces, traced

FUNCTIONS = Path(__file__).parent / "user_models" / "by_hand.py"


def runs(*chosen: list[int] | range) -> Callable[[Workload], None]:
    return lambda workload: checkpoint_segments(workload, chosen)


def step(trace: Trace, blocks: tuple[str, ...]) -> Followed:
    return Followed(trace=trace, blocks=blocks)


def why(model: str, strategy: str = "none", *, change: Any = None, **fields: Any) -> str | None:
    """The kind of reason that a step has against its baseline."""
    baseline, checkpointed = traced(model, **fields), traced(model, strategy, change=change, **fields)
    found = explain(step(*checkpointed), step(*baseline)).reason
    return found.kind if found else None


LARGE = "transformer:layers=2,width=128,sequence=8,vocabulary="  # many parameters beside few activations


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "fields", "kind"),
    [
        (f"{LARGE}16", {"strategy": "all", "batch_size": 1, "optimizer": "adamw"}, "optimizer"),
        (f"{LARGE}2048", {"strategy": "all", "batch_size": 1}, "gradients"),
        (SMALL, {"change": runs(range(15)), "batch_size": 16}, "segment"),
        (SMALL, {"change": runs(range(16)), "batch_size": 16}, "whole"),
        (SMALL, {"change": runs([0]), "batch_size": 16}, "plain"),
        (f"{LARGE}16", {"change": lambda workload: None, "batch_size": 1, "optimizer": "adamw"}, "unreached"),
        (f"{FUNCTIONS}:head", {"strategy": "own", "batch_size": None}, "outside"),  # of all modules, which it reached
        ("mnist-cnn:channels=4", {"strategy": "all", "batch_size": 16}, "inputs"),  # too many checkpoints
        ("dense-chain:widths=8+4096+8+8", {"strategy": "all", "batch_size": 4096}, "block"),  # which cannot be cut
        (SMALL, {"strategy": "all", "batch_size": 16}, None),  # it saves enough
    ],
)
def test_a_planted_cause_is_the_reason(model, fields, kind):
    assert why(model, **fields) == kind


def test_a_workspace_that_is_most_of_the_peak_is_the_reason(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    case = make.case("all", model=catalogue.resolve(Choice("mlp"), models.TABLE), device="fake:t4")
    baseline, checkpointed = (follow_case(Trial(case=each)) for each in (case.baseline, case))

    found = explain(checkpointed, baseline).reason

    assert found is not None
    assert found.kind == "workspace"
    assert found.text.startswith("8.12 MiB of the peak's 8.1")  # 2 of 4096 KiB and 8 of 16 KiB


@pytest.mark.parametrize(("head_bytes", "kind"), [(70, "outside"), (50, "block")])
def test_what_holds_most_at_the_peak_is_the_reason(head_bytes, kind):
    """Of what one block brings back, and of what the loss takes beside it."""
    operators = [("forward", "blocks.0"), ("recompute", "blocks.0"), ("backward", "head")]
    back = [(60, 2, 3, "blocks.0", "recompute", "recomputed"), (head_bytes, 3, 3, "head", "backward", "temporaries")]
    trace = by_hand(operators, [(9, 1, 3, "blocks.0", "forward", "saved"), *back])
    baseline = by_hand(operators, [(60, 1, 3, "blocks.0", "forward", "saved"), back[1]])

    found = explain(step(trace, BLOCKS[:1]), step(baseline, BLOCKS[:1])).reason

    assert found is not None
    assert (found.kind, f"{max(60, head_bytes)} B of the peak's {69 + head_bytes} B" in found.text) == (kind, True)


def test_a_workspace_beside_static_memory_blames_no_activations():
    operators = [("forward", "blocks.0"), ("recompute", "blocks.0"), ("backward", "blocks.0")]
    static = (500, 0, 3, "blocks.0", "before", "parameters")
    trace = by_hand(operators, [static, (100, 1, 3, "blocks.0", "forward", "saved")])
    product = Operator("aten.mm", "blocks.0", "backward", 0, 1, 400)
    trace = msgspec.structs.replace(trace, operators=(*trace.operators[:2], product))
    baseline = msgspec.structs.replace(trace, operators=(trace.operators[0], product, product))

    found = explain(step(trace, BLOCKS[:1]), step(baseline, BLOCKS[:1])).reason

    assert found is not None
    assert found.kind == "static"
    assert found.text.startswith("500 B of the peak's 1000 B is static")
    assert " and 400 B a workspace, which checkpointing does not touch" in found.text


@settings(deadline=None, max_examples=60)
@given(trace=random_traces())
def test_any_trace_adds_up_at_every_operator_and_can_be_explained(trace):
    for number, total in enumerate(live(trace)):
        hidden = trace.operators[number - 1].hidden_bytes if number else 0
        there = [one for one in trace.allocations if one.born <= number <= one.died]
        expected = {category: sum(one.nbytes for one in there if one.category == category) for category in CATEGORIES}
        expected["temporaries"] += hidden
        categories = {share.name: share.nbytes for share in categories_at(trace, number)}

        assert categories == {name: nbytes for name, nbytes in expected.items() if nbytes}
        assert sum(categories.values()) == total
        assert sum(share.nbytes for share in modules_at(trace, number, blocks=BLOCKS)) == total
    found = explain(step(trace, BLOCKS))
    assert found.peak.nbytes == max(live(trace))
    assert sum(share.nbytes for share in found.modules) + found.others_bytes == found.peak.nbytes
    assert found.floor.nbytes <= found.peak.nbytes
    assert explain(step(trace, BLOCKS), step(trace, BLOCKS)).reason is None


def test_modules_inside_a_block_go_under_its_name_and_others_under_their_own():
    trace = by_hand(
        [("forward", "embed")],
        [
            (1, 0, 1, "blocks.0.norm", "before", "parameters"),
            (2, 0, 1, "blocks.0", "before", "parameters"),
            (4, 0, 1, "embed.tokens", "before", "parameters"),
            (8, 0, 1, "", "before", "inputs"),
            (16, 0, 1, "blocks.01", "before", "parameters"),
        ],
    )

    shares = {share.name: share.nbytes for share in modules_at(trace, 1, blocks=BLOCKS)}

    assert shares == {"blocks.0": 3, "embed.tokens": 4, "": 8, "blocks.01": 16}


def test_ten_modules_are_named_and_the_others_are_summed():
    trace = by_hand([("forward", "")], [(100 + at, 0, 1, f"m{at}", "before", "parameters") for at in range(13)])

    found = explain(step(trace, ()))

    assert [share.nbytes for share in found.modules] == list(range(112, 102, -1))
    assert (found.num_others, found.others_bytes) == (3, 100 + 101 + 102)


def test_a_remedy_that_is_impossible_here_is_left_out():
    """A batch of one has no half, and the host is no other memory for a step that runs there."""
    on_host, blocks = traced(SMALL, batch_size=64)
    on_gpu = msgspec.structs.replace(on_host, device="cuda")

    host, gpu, gpu_of_one = (
        {remedy.kind for remedy in explain(step(trace, blocks), **fields).remedies}
        for trace, fields in ((on_host, {}), (on_gpu, {}), (on_gpu, {"batch_size": 1}))
    )

    assert "batch" in host
    assert "offload" not in host
    assert {"offload", "batch"} <= gpu
    assert gpu_of_one == gpu - {"batch"}
