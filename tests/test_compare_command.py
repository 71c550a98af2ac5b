"""`gcprof compare`, as words in and text out."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.cli import answer
from tests import compared_runs, examples, make
from tests.make import MIB


@pytest.fixture
def results(here: Path) -> Path:
    """Three runs: one, the same with larger peaks and slower steps, and one with another torch."""
    other = msgspec.structs.replace(examples.ENVIRONMENT, torch="2.16.0")
    slower = [examples.point(f"segments:k={k}", segments=k, seconds=0.3) for k in (2, 4)]
    examples.run(here / "results" / "old", examples.sweep((2, 4)))
    examples.run(here / "results" / "new", [examples.point("none", segments=1, seconds=0.1), *slower])
    examples.run(here / "results" / "torch", examples.sweep((2, 4), environment=other))
    return here / "results"


def test_the_gate_ends_with_5_and_names_what_tripped(results, capsys):
    assert answer(["compare", "old", "new", "--fail-on", "peak:>2%,time:>5%"]) == 5

    out, err = capsys.readouterr()
    assert "against A" in out
    assert "gate: time:>5%: mnist-cnn:channels=32, segments:k=2, 64, fp32 in B against A: +" in err
    assert "peak" not in err


def run_of(folder: Path, **peaks: int) -> None:
    """A run of a row on each device, `cpu=100`: its peak in MiB."""
    rows = [compared_runs.record(device=name.replace("_", ":"), peak=peak * MIB) for name, peak in peaks.items()]
    examples.run(folder, rows)


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ({"cpu": 300, "fake_h100": 100}, 0),
        ({"cpu": 300, "fake_h100": 190}, 5),  # +90 % on the second device, and still less than on the first
        ({"cpu": 570, "fake_h100": 100}, 5),
        ({"cpu": 300}, 5),  # the second device is gone
        ({"fake_t4": 100}, 5),  # both are
        ({"fake_h100": 100, "cpu": 300, "fake_t4": 900}, 0),  # one that the baseline has not
    ],
)
def test_each_device_is_judged_by_its_own_baseline(after, code, here, capsys):
    run_of(here / "before", cpu=300, fake_h100=100)
    run_of(here / "after", **after)

    assert answer(["compare", "before", "after", "--fail-on", "peak:>2%"]) == code
    assert ("not judged" in capsys.readouterr().err) == ("fake_t4" in after)


UNEQUAL = {"gradients_equal": False, "largest_difference": 0.5, "noise_floor": 0.01}


def edited(folder: Path, part: str, fields: dict[str, Any], strategy: str = "segments:k=2") -> None:
    """Change fields of a part of the record of one strategy, as an editor would."""
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_bytes().splitlines()]
    for line in lines:
        if line["case"]["strategy"] == strategy:
            line[part].update(fields)
    (folder / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ("readings", {"peak_bytes": 0, "saved_bytes": None, "static_bytes": None}),
        ("readings", {"peak_bytes": -(2**30)}),
        ("readings", {"step_seconds": [0.0, 0.0]}),
        ("readings", {"step_seconds": [-0.1, 0.1]}),
        ("equality", UNEQUAL),
        ("equality", {"missing": ["0.weight"]}),
    ],
)
def test_a_record_that_says_ok_and_is_not_is_invalid_wherever_it_is_read(part, fields, results, capsys):
    """0 bytes and 0 seconds were less than the baseline's, and half of a gradient was "within noise"."""
    examples.run(results / "edited", examples.sweep((2, 4)))
    edited(results / "edited", part, fields)

    assert answer(["compare", "old", "edited", "--fail-on", "peak:>2%,time:>5%"]) == 5
    assert "segments:k=2, 64, fp32 in B against A: invalid" in capsys.readouterr().err
    assert answer(["show", "edited", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["exit_code"], document["records"][1]["outcome"]) == (1, "invalid")
    assert answer(["show", "edited"]) == 0
    assert "within noise" not in capsys.readouterr().out
    assert answer(["validate", "edited"]) == 4


@pytest.mark.parametrize(
    "words",
    [
        ["--fail-on", "peaks:>2%"],
        ["--align", "colour"],
        ["--allow-different", "colour"],
        ["--format", "xml"],
        ["--format", "csv", "--width", "80"],
    ],
)
def test_words_that_mean_nothing_are_the_users_error(results, capsys, words):
    assert answer(["compare", "old", "new", *words]) == 2
    assert capsys.readouterr().out == ""


def test_as_json_it_is_one_document_with_its_gate(results, capsys):
    code = answer(["compare", "old", "new", "--format", "json", "--fail-on", "time:>5%"])

    whole = json.loads(capsys.readouterr().out)
    assert (code, whole["exit_code"], whole["schema"]) == (5, 5, 1)
    assert len(whole["gate"]["tripped"]) == 2
    assert whole["comparison"]["matches"][1]["cells"][1]["time"]["verdict"] == "slower"


# --- the commands over axes, as words in and text out


RUN = "results/batches"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run over batches, and one of a single row; the commands run in it."""
    monkeypatch.chdir(tmp_path)
    examples.run(tmp_path / RUN, examples.batches())
    examples.run(tmp_path / "results" / "single", [make.record()])
    return tmp_path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show", RUN, "--over", "batchsize"], "did you mean 'batch_size'?"),
        (["show", RUN, "--over", "batch_size,strategy,seed"], "'seed' is not an axis"),
        (["show", RUN, "--over", "batch_size", "--json"], "--over has no effect with --json"),
        (["show", "results/single", "--over", "batch_size"], "'batch_size' is not an axis of this run"),
        (["plot", "results/single", "--kind", "growth"], "a list on an option is an axis"),
        (["plot", RUN, "--kind", "growth", "--over", "strategy"], "of positive numbers"),
        (["plot", RUN, "--style", "slide"], "did you mean '--style slides'?"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(here, capsys, words, complaint):
    assert answer(words) == 2

    out, err = capsys.readouterr()
    assert bool(out) == ("--json" in words)
    assert complaint in err
    assert not list(here.glob("*.p*"))
