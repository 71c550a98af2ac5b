"""`gcprof compare`, as words in and text out."""

import json
from pathlib import Path

import pytest

from profiler.cli import answer
from tests import compared_runs, examples
from tests.make import MIB


@pytest.fixture
def results(here: Path) -> Path:
    """Two runs: one, and the same with larger peaks and slower steps."""
    slower = [examples.point(f"segments:k={k}", segments=k, seconds=0.3) for k in (2, 4)]
    examples.run(here / "results" / "old", examples.sweep((2, 4)))
    examples.run(here / "results" / "new", [examples.point("none", segments=1, seconds=0.1), *slower])
    return here / "results"


def test_the_gate_ends_with_5_and_names_what_tripped(results, capsys):
    assert answer(["compare", "old", "new", "--fail-on", "peak:>2%,time:>5%"]) == 5

    out, err = capsys.readouterr()
    assert "against A" in out
    assert "gate: time:>5%: mnist-cnn:channels=32, segments:k=2, 64, fp32 in B against A: +" in err
    assert "peak" not in err
    assert answer(["compare", "old", "new", "--format", "json", "--fail-on", "time:>5%"]) == 5
    whole = json.loads(capsys.readouterr().out)
    assert (whole["exit_code"], whole["schema"], len(whole["gate"]["tripped"])) == (5, 1, 2)
    assert whole["comparison"]["matches"][1]["cells"][1]["time"]["verdict"] == "slower"


def run_of(folder: Path, **peaks: int) -> None:
    """A run of a row on each device, `cpu=100`: its peak in MiB."""
    rows = [compared_runs.record(device=name.replace("_", ":"), peak=peak * MIB) for name, peak in peaks.items()]
    examples.run(folder, rows)


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ({"cpu": 300, "fake_h100": 190}, 5),  # +90 % on the second device, and still less than on the first
        ({"cpu": 300}, 5),  # the second device is gone
        ({"fake_h100": 100, "cpu": 300, "fake_t4": 900}, 0),  # one that the baseline has not
    ],
)
def test_each_device_is_judged_by_its_own_baseline(after, code, here, capsys):
    run_of(here / "before", cpu=300, fake_h100=100)
    run_of(here / "after", **after)

    assert answer(["compare", "before", "after", "--fail-on", "peak:>2%"]) == code
    assert ("not judged" in capsys.readouterr().err) == ("fake_t4" in after)


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ("readings", {"peak_bytes": 0, "saved_bytes": None, "static_bytes": None}),
        ("readings", {"step_seconds": [0.0, 0.0]}),
        ("equality", {"gradients_equal": False, "largest_difference": 0.5, "noise_floor": 0.01}),
    ],
)
def test_a_record_that_says_ok_and_is_not_is_invalid_wherever_it_is_read(part, fields, results, capsys):
    """0 bytes and 0 seconds were less than the baseline's, and half of a gradient was "within noise"."""
    examples.run(results / "edited", examples.sweep((2, 4)))
    path = results / "edited" / "trials.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    lines[1][part].update(fields)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert answer(["compare", "old", "edited", "--fail-on", "peak:>2%,time:>5%"]) == 5
    assert "segments:k=2, 64, fp32 in B against A: invalid" in capsys.readouterr().err
    assert answer(["show", "edited", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["exit_code"], document["records"][1]["outcome"]) == (1, "invalid")
    assert answer(["show", "edited"]) == 0
    assert "within noise" not in capsys.readouterr().out
    assert answer(["validate", "edited"]) == 4
