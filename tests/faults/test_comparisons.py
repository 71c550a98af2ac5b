"""Runs beside each other that are not alike, not whole, or not two: what is refused, told, and never made up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from profiler.analysis.comparison import compare_runs
from profiler.cli import answer
from profiler.core.case import Choice
from profiler.core.errors import UserError
from tests import examples, make
from tests.compared_runs import H100, STEADY, T4, against, record
from tests.printed_comparisons import before_and_after, printed


@pytest.fixture
def results(here: Path) -> Path:
    """A run, and the same with another torch."""
    other = msgspec.structs.replace(examples.ENVIRONMENT, torch="2.16.0")
    examples.run(here / "results" / "old", examples.sweep((2, 4)))
    examples.run(here / "results" / "torch", examples.sweep((2, 4), environment=other))
    return here / "results"


# --- 44: other devices, versions, batches


@pytest.mark.slow
def test_fault_44_every_difference_of_the_environment_is_told_and_the_rest_is_the_same():
    found = against([record()], [record(environment=H100)])

    assert {one.what: one.values for one in found.differences} == {
        "device": ("Tesla T4", "NVIDIA H100 80GB HBM3"),
        "memory": ("1,000 MiB", "78.1 GiB"),
    }
    assert "torch" in {one.what for one in found.same}


REFUSED = {
    "torch": ({}, {"environment": msgspec.structs.replace(T4, torch="2.16.0")}),
    "optimizer": ({}, {"optimizer": Choice("adam")}),
    "accumulate": ({}, {"accumulate": 2}),
    "keep_gradients": ({}, {"keep_gradients": True}),
    "repair_batchnorm": ({}, {"repair_batchnorm": True}),
    "blocks": ({}, {"blocks": "model.*"}),
    "seed": ({}, {"seed": 1}),
    "data": ({"built": None}, {"built": None, "data": "files"}),
    "batch_size": ({}, {"batch_size": 128}),
    "precision": ({}, {"precision": "bf16"}),
    "model": ({}, {"model": Choice("mlp")}),
    "num_parameters": ({}, {"built": msgspec.structs.replace(make.record().built, num_parameters=2000)}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_fault_44_what_changes_the_meaning_is_refused_unless_it_is_allowed(name: str):
    first, second = ([record(**fields)] for fields in REFUSED[name])

    with pytest.raises(UserError, match=name) as refused:
        against(first, second)

    assert refused.value.exit_code == 4
    assert refused.value.hint.endswith(f"--allow-different {name}")
    assert len(against(first, second, allowed=[name]).matches) == 1


def test_fault_44_another_torch_is_refused_and_can_be_allowed(results: Path, capsys: pytest.CaptureFixture[str]):
    assert answer(["compare", "old", "torch"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert "torch is 2.15.0 in A (old), 2.16.0 in B (torch)" in err
    assert "--allow-different torch" in err

    assert answer(["compare", "old", "torch", "--allow-different", "torch"]) == 0
    assert "2.16.0" in capsys.readouterr().out


def test_fault_44_what_was_allowed_to_differ_and_does_not_is_noted():
    both = against(
        [record()], [record(environment=msgspec.structs.replace(T4, torch="2.16.0"))], allowed=["torch", "seed"]
    )

    (idle,) = (remark for remark in both.remarks if "--allow-different" in remark)
    assert idle == "--allow-different seed has no effect: it does not differ"
    assert idle in printed(both, width=200)


# --- 45: missing rows, out of memory, one sample


def test_fault_45_rows_of_one_run_only_and_rows_that_are_not_ok_stay_in_the_list():
    first = [record("none"), record("all"), record("sqrt")]
    second = [record("none"), make.failed("all", "out_of_memory", "why", environment=T4), record("first")]

    cells = {match.key["strategy"]: match.cells for match in against(first, second).matches}

    assert cells["sqrt"][1] is None
    assert cells["first"][0] is None
    assert (cells["all"][1].outcome, cells["all"][1].peak, cells["all"][1].time) == ("out_of_memory", None, None)


def test_fault_45_a_row_that_is_gone_new_or_out_of_memory_is_named():
    text = printed(before_and_after(), width=200)

    assert "segments:k=8: only in A" in text
    assert "sqrt: only in B" in text
    assert "segments:k=4: out of memory in B: tried to allocate 96 MiB; ok in A" in text


def test_fault_45_no_number_is_made_up_where_there_is_none(here: Path, capsys: pytest.CaptureFixture[str]):
    untimed = msgspec.structs.replace(record("sqrt"), readings=examples.untimed_readings(record().readings))
    once = record("all", seconds=(0.1,))
    gone = make.failed("first", "out_of_memory", "tried to allocate 96 MiB", environment=T4)
    examples.run(here / "results" / "one", [record(), once, untimed, record("first"), record("k")])
    examples.run(here / "results" / "two", [record(), once, untimed, gone])

    for form in ("json", "csv", "table", "md"):
        assert answer(["compare", "one", "two", "--format", form]) == 0
    text = capsys.readouterr().out

    assert not re.search(r"\b(nan|inf|infinity)\b", text, re.IGNORECASE)
    cells = {
        one["key"]["strategy"]: one["cells"][1] for one in json.loads(text.splitlines()[0])["comparison"]["matches"]
    }
    assert cells["all"]["time"]["verdict"] == "cannot be told apart"
    assert cells["sqrt"]["time"] is cells["first"]["time"] is cells["k"] is None


# --- 46: one run twice, twenty runs, one name twice


def test_fault_46_a_run_beside_itself_is_the_same_in_every_row(results: Path, capsys: pytest.CaptureFixture[str]):
    assert answer(["compare", "old", "old", "--format", "json"]) == 0

    found = json.loads(capsys.readouterr().out)["comparison"]
    assert [(side["label"], side["run"]) for side in found["sides"]] == [("A", "old"), ("B", "old")]
    assert found["differences"] == []
    for match in found["matches"]:
        assert (match["cells"][1]["peak"]["ratio"], match["cells"][1]["time"]["ratio"]) == (1.0, 1.0)
        assert match["cells"][1]["time"]["verdict"] in ("same", "cannot be told apart")


def test_fault_46_devices_of_one_name_have_letters_of_their_own():
    found = compare_runs([("run", [record(seconds=STEADY)]), ("run", [record()]), ("run", [record(device="fake:t4")])])

    assert [side.name for side in found.sides] == ["A cpu", "B cpu", "C t4"]
