"""A plan's file is read as it was written, or refused; on screens it is called by what it is."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import profiler
from profiler.core import plan_file
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile, Segment, files_of_labels, strategy_label, strategy_labels
from tests.counted_chains import calls, chain, plan
from tests.plans import Saving


def edited(**fields: object) -> bytes:
    return json.dumps({**json.loads(msgspec.json.encode(plan())), **fields}).encode()


DAMAGED = {
    "half of it": (edited()[: len(edited()) // 2], "truncated"),
    "no text": (b"\xff\xfe\x00", "not a plan"),
    "another document": (b'{"stages": []}', "schema"),
    "an unknown field": (edited(more=1), "more"),
    "another schema": (edited(schema=2, more=1), "schema 2"),
    "no block": (edited(segments=[{"blocks": ["7"]}]), "'7' is not one of its blocks"),
    "an empty segment": (edited(segments=[{"blocks": []}]), "consecutive"),
    "another order": (edited(segments=[{"blocks": ["1", "0"]}]), "consecutive"),
    "a gap": (edited(segments=[{"blocks": ["0", {"blocks": ["2"]}]}]), "consecutive"),
    "a block twice": (edited(segments=[{"blocks": ["0", "1"]}, {"blocks": ["1"]}]), "'1' is in two segments"),
    "endless nesting": (b'{"schema": 1, "segments": ' + b"[" * 100_000, "not a plan"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("content", "complaint"), DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_no_plan_is_refused(content, complaint, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(content)

    with pytest.raises(UserError, match=complaint) as caught:
        profiler.apply(chain(), path)

    assert caught.value.hint


def test_what_is_edited_as_little_as_can_be_is_still_a_plan(tmp_path):
    (tmp_path / "plan.json").write_bytes(edited(segments=[{"blocks": ["2"]}]))

    module = chain()
    profiler.apply(module, tmp_path / "plan.json")

    assert calls(module) == [1, 1, 2, 1]


@pytest.mark.parametrize("strategy", ["plan", "plan:file=no/such.json", Path("no/such.json")])
def test_a_file_that_is_not_there_is_refused_with_what_writes_one(strategy, here):
    with pytest.raises(UserError, match="cannot read the plan") as caught:
        profiler.apply(chain(), strategy)

    assert caught.value.hint == "`gcprof plan` writes one with -o plan.json"


def test_a_written_plan_is_read_as_it_was(tmp_path):
    found = plan(6, runs=([[0], 1, Saving([2], "matmul"), 3], Saving([5], "conv")))

    plan_file.write(found, tmp_path / "plan.json")

    assert plan_file.read(tmp_path / "plan.json") == found
    assert found != plan(6)


def test_a_recipe_of_blocks_that_are_not_there_cannot_be_made():
    with pytest.raises(ValueError, match="'1' is not one of its blocks"):
        PlanFile(plan="[1]", segments=(Segment(blocks=("1",)),), fingerprint={"0": ()})


RUN = "results/20261123T042836Z-plan-transformer-85e041/plans"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "label"),
    [
        ("none", "none"),
        ("segments:k=4", "segments:k=4"),
        (f"plan:file={RUN}/plan.json", "plan"),
        (f"plan:file={RUN}/uniform-4.json", "uniform(4)"),
        (f"plan:file={RUN}/first-12.json", "first(12)"),
        (f"plan:file={RUN}/all.json", "all"),
        (f"plan:file={RUN}/mine-4.json", "mine-4"),
        ("plan", "plan"),
        ("plan:file=mine.json", "plan:file=mine.json"),
        ("plan:file=/home/me/mine.json", "plan:mine.json"),
    ],
)
def test_a_plan_is_called_by_what_it_is(strategy, label):
    assert strategy_label(Choice(strategy)) == label


def test_strategies_that_would_share_a_label_keep_their_words():
    one, other = Choice("plan:file=a/plans/plan.json"), Choice("plan:file=b/plans/plan.json")

    assert strategy_labels([one, other, Choice("none")]) == [str(one), str(other), "none"]
    assert strategy_labels([Choice("all"), Choice("plan:file=a/plans/all.json")]) == [
        "all",
        "plan:file=a/plans/all.json",
    ]


def test_the_folder_of_plans_stands_once():
    chosen = [Choice("none"), Choice(f"plan:file={RUN}/plan.json"), Choice(f"plan:file={RUN}/uniform-4.json")]

    assert files_of_labels(chosen) == [f"plans of plan, uniform(4): {RUN}"]
    assert files_of_labels(chosen[:1]) == []
