"""A plan from its file is carried out as it says, or refused with what is wrong."""

import json

import msgspec
import pytest
import torch
from torch import nn

import profiler
from profiler.core import plan_file
from profiler.core.errors import Unsupported, UserError
from profiler.core.plan_file import PlanFile, Segment
from profiler.training.block_segments import checkpoint_segments, checkpoint_without_reentry
from tests.chain_models import Counted, workload
from tests.plans import Saving, plan_of


def chain(length: int = 4) -> nn.Sequential:
    return nn.Sequential(*[Counted() for _ in range(length)])


def plan(length: int = 4, runs: tuple[list[int], ...] = ([0, 1],)) -> PlanFile:
    return plan_of(chain(length), [str(index) for index in range(length)], runs)


def calls(module: nn.Module) -> list[int]:
    module(torch.ones(2, 3)).sum().backward()
    return [block.calls for block in module.children()]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], "nothing"),
        ([[4, 5], [0, 1, 2]], "[0-2] [4-5]"),
        ([[[0], 1, [[2], 3], 4]], "[[0] 1 [[2] 3] 4]"),
        ([Saving([1], "matmul"), Saving([2, 3], "mm"), [Saving([4], "mm"), 5]], "1:matmul [2-3]:mm [4:mm 5]"),
    ],
)
def test_the_split_is_of_the_blocks_that_are_checkpointed_whatever_the_text_says(runs, expected):
    module = chain(6)

    assert profiler.apply(module, plan_of(module, tuple("012345"), runs)).split == expected


def test_a_run_under_a_checkpoint_of_its_own_is_alone_under_it():
    module, entered = chain(5), []

    def entering(name):
        def entered_as(function, *arguments, **keywords):
            entered.append(name)
            return checkpoint_without_reentry(function, *arguments, **keywords)

        return entered_as

    own, others = entering("own"), entering("others")
    inner, last = Segment(blocks=("1",)), Segment(blocks=("3",))
    whole = Segment(blocks=("0", inner, "2"))
    each = {whole: others, inner: own, last: own}
    checkpoint_segments(workload(module, tuple("01234")), [whole, last], checkpoint_of=each.__getitem__)

    for block in module:
        block.calls = 0  # one forward was observed
    loss = module(torch.ones(2, 3)).sum()
    forward = entered.copy()
    loss.backward()

    assert forward == ["others", "own", "own"]
    assert entered == [*forward, "own"]  # again in the recompute of the outer one
    assert [block.calls for block in module.children()] == [2, 3, 2, 2, 1]


def test_a_plan_is_applied_from_python_as_it_stands_and_from_its_path(tmp_path):
    plan_file.write(plan(), tmp_path / "plan.json")

    for one in (plan(), tmp_path / "plan.json", f"plan:file={tmp_path / 'plan.json'}"):
        module = chain()
        module.add_module("head", Counted())  # which the plan does not name
        profiler.apply(module, one)
        assert calls(module) == [2, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("build", "change"),
    [
        (lambda: chain(3), "block '3' is gone"),
        (lambda: chain().to(torch.bfloat16), r"0\.linear\.weight was float32 3 x 3, is bfloat16 3 x 3; .*, and 5 more"),
    ],
)
def test_a_plan_that_was_made_for_another_model_is_refused_with_what_changed(build, change):
    module = build()
    before = [block.forward for block in module.children()]

    with pytest.raises(Unsupported, match=f"the plan is stale: {change}; plan again"):
        profiler.apply(module, plan())

    assert [block.forward for block in module.children()] == before


def edited(**fields: object) -> bytes:
    return json.dumps({**json.loads(msgspec.json.encode(plan())), **fields}).encode()


DAMAGED = {
    "half of it": (edited()[: len(edited()) // 2], "truncated"),
    "an unknown field": (edited(more=1), "more"),
    "another schema": (edited(schema=3, more=1), "schema 3"),
    "no block": (edited(segments=[{"blocks": ["7"]}]), "'7' is not one of its blocks"),
    "a gap": (edited(segments=[{"blocks": ["0", {"blocks": ["2"]}]}]), "consecutive"),
    "a block twice": (edited(segments=[{"blocks": ["0", "1"]}, {"blocks": ["1"]}]), "'1' is in two segments"),
    "endless nesting": (b'{"schema": 1, "segments": ' + b"[" * 100_000, "not a plan"),
}


@pytest.mark.parametrize(("content", "complaint"), DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_no_plan_is_refused(content, complaint, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(content)

    with pytest.raises(UserError, match=complaint, check=lambda error: error.hint):
        profiler.apply(chain(), path)
