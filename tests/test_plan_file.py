"""A plan's file is read as it was written, or refused; on screens it is called by what it is."""

from __future__ import annotations

import json

import msgspec
import pytest

import profiler
from profiler.core import plan_file
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.plan_file import strategy_label
from tests.counted_chains import chain, plan
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


def test_a_written_plan_is_read_as_it_was(tmp_path):
    found = plan(6, runs=([[0], 1, Saving([2], "matmul"), 3], Saving([5], "conv")))

    plan_file.write(found, tmp_path / "plan.json")

    assert plan_file.read(tmp_path / "plan.json") == found
    assert found != plan(6)


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
