"""`gcprof compare`, as words in and text out."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import msgspec
import pytest

from profiler.cli import answer
from profiler.runs import find, store
from tests import examples
from tests.commands import modules_after
from tests.make import MIB

REFERENCES = [f"ref:predicted-{device}/transformer" for device in ("t4", "a100-40", "h100")]


@pytest.fixture
def results(here: Path) -> Path:
    """Three runs: one, the same with larger peaks and slower steps, and one with another torch."""
    other = msgspec.structs.replace(examples.ENVIRONMENT, torch="2.16.0")
    slower = [examples.point(f"segments:k={k}", segments=k, seconds=0.3) for k in (2, 4)]
    examples.run(here / "results" / "old", examples.sweep((2, 4)))
    examples.run(here / "results" / "new", [examples.point("none", segments=1, seconds=0.1), *slower])
    examples.run(here / "results" / "torch", examples.sweep((2, 4), environment=other))
    return here / "results"


@pytest.mark.slow
def test_three_devices_are_compared_in_one_command_without_torch():
    found = modules_after(["compare", *REFERENCES])

    assert not found & {"torch", "scipy", "pandas", "matplotlib", "numpy"}
    assert "profiler.analysis.comparison" in found  # the twin: imports are seen


def test_the_first_lines_are_what_differs(here: Path, capsys: pytest.CaptureFixture[str]):
    assert answer(["compare", *REFERENCES]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"A: {REFERENCES[0]}, the baseline"
    assert lines[4].split() == ["differs", "A", "t4", "B", "a100-40", "C", "h100"]
    assert lines[6].startswith("device")
    assert "NVIDIA H100 80GB HBM3" in lines[6]


def test_each_device_is_told_the_fastest_that_fits_it(here: Path, capsys: pytest.CaptureFixture[str]):
    expected = []
    for name in REFERENCES:
        records = store.load(find.reference(name)).records
        fitting = {
            record.readings.step_seconds: record.case.strategy
            for record in records
            if record.readings.reserved_bytes + 600 * MIB <= record.environment.device_bytes
        }
        expected.append(fitting[min(fitting)])

    answer(["compare", *REFERENCES])

    told = capsys.readouterr().out.partition("the fastest that fits")[2].splitlines()
    named = [line.split()[3] for line in told if line.startswith(("A t4", "B a100-40", "C h100"))]
    assert named == expected
    assert len(set(named)) == 2  # the small device must checkpoint


def test_another_baseline_is_the_first_side(results: Path, capsys: pytest.CaptureFixture[str]):
    answer(["compare", "old", "new", "--baseline", "new", "--format", "json"])
    answer(["compare", "old", "--baseline", "new", "--format", "json"])

    for document in capsys.readouterr().out.splitlines():
        assert [side["run"] for side in json.loads(document)["comparison"]["sides"]] == ["new", "old"]


def test_the_gate_ends_with_5_and_names_what_tripped(results: Path, capsys: pytest.CaptureFixture[str]):
    assert answer(["compare", "old", "new", "--fail-on", "peak:>2%,time:>5%"]) == 5

    out, err = capsys.readouterr()
    assert "against A" in out
    assert "gate: time:>5%: mnist-cnn:channels=32, segments:k=2, 64, fp32 in B: +" in err
    assert "peak" not in err


def test_the_gate_is_open_where_nothing_is_worse(results: Path, capsys: pytest.CaptureFixture[str]):
    assert answer(["compare", "old", "old", "--fail-on", "peak:>2%,time:>5%"]) == 0

    assert "gate: nothing is over the limits" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--fail-on", "peak"],
        ["--align", "colour"],
        ["--allow-different", "colour"],
        ["--format", "xml"],
        ["--format", "csv", "--width", "80"],
    ],
)
def test_words_that_mean_nothing_are_the_users_error(
    results: Path, capsys: pytest.CaptureFixture[str], words: list[str]
):
    assert answer(["compare", "old", "new", *words]) == 2
    assert capsys.readouterr().out == ""


def test_a_run_that_is_not_there_cannot_be_compared(results: Path):
    assert answer(["compare", "old", "nothing"]) == 4


def test_as_json_it_is_one_document_with_its_gate(results: Path, capsys: pytest.CaptureFixture[str]):
    code = answer(["compare", "old", "new", "--format", "json", "--fail-on", "time:>5%"])

    whole = json.loads(capsys.readouterr().out)
    assert (code, whole["exit_code"], whole["schema"]) == (5, 5, 1)
    assert len(whole["gate"]["tripped"]) == 2
    assert whole["comparison"]["matches"][1]["cells"][1]["time"]["verdict"] == "slower"


def test_as_csv_every_side_of_every_row_is_a_line_in_base_units(results: Path, capsys: pytest.CaptureFixture[str]):
    answer(["compare", "old", "new", "--format", "csv"])

    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    sides = [(line["strategy"], line["side"]) for line in lines]
    assert sides[:3] == [("none", "A"), ("none", "B"), ("segments:k=2", "A")]
    assert int(lines[0]["peak_bytes"]) > 2**20
    assert (lines[0]["time_ratio"], float(lines[1]["time_ratio"])) == ("", 1.0)
    assert float(lines[1]["time_low"]) < 1 < float(lines[1]["time_high"])


def test_names_of_folders_are_shown_and_no_paths(results: Path, capsys: pytest.CaptureFixture[str]):
    answer(["compare", str(results / "old"), str(results / "new")])

    out = capsys.readouterr().out
    assert "old" in out
    assert str(results) not in out


def test_a_run_without_a_record_is_named(results: Path, capsys: pytest.CaptureFixture[str]):
    (results / "new" / "trials.jsonl").write_bytes(b"")

    assert answer(["compare", "old", "new"]) == 4

    said = capsys.readouterr().err
    assert "'new' has no records yet" in said
    assert "hint: let it run to its end" in said
