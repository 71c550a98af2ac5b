"""`gcprof fit`: the fastest way to fit a memory, each of whose rows was run."""

import json
from pathlib import Path

import pytest

from profiler.analysis.rows import rows as read_rows
from profiler.cli import answer
from profiler.core.case import Choice
from profiler.core.gpu_specs import MOST_BYTES
from profiler.runs import store
from profiler.workflows.fit import Fitted
from tests.make import MIB, record

pytestmark = pytest.mark.usefixtures("shared")

MODEL = ("transformer:layers=3,width=32", "--batch-size", "8", "--optimizer", "adamw", "--device", "cpu")


def fitted(capsys: pytest.CaptureFixture[str], memory: str, *flags: str) -> tuple[int, dict]:
    code = answer(["fit", *MODEL, "--memory", memory, "--json", *flags])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_the_fastest_way_that_fits_is_chosen_and_run_in_a_folder(here, capsys):
    """The bytes of the chosen way are those of a run of it by its name."""
    code, whole = fitted(capsys, "8GiB")
    (as_it_is,) = whole["ways"]
    assert (code, as_it_is["way"], as_it_is["is_chosen"]) == (0, "none", True)
    peak = whole["ways"][0]["peak_bytes"]
    code, found = fitted(capsys, f"{peak * 7 // 10}B")

    assert code == 0
    (chosen,) = [way for way in found["ways"] if way["is_chosen"]]
    assert chosen["fits"]
    assert chosen["needed_bytes"] == chosen["peak_bytes"] <= peak * 7 // 10
    run = store.load(max((here / "results").glob("*fit*"), key=lambda folder: folder.stat().st_mtime))
    none, *others = [record for record in run.records if record.round == 1]
    (proved,) = [record for record in others if str(record.case.label) == chosen["way"]]
    assert none.readings.peak_bytes == peak
    assert (proved.readings.peak_bytes, proved.outcome) == (chosen["peak_bytes"], "ok")
    assert chosen["gradients"] in ("bit-equal", "within noise")


@pytest.mark.nightly
def test_a_step_that_its_gpu_cannot_hold_is_planned_as_on_a_larger_one(here, capsys):
    """Without numbers of the step as it is, no plan could be made, nor told from micro-batches, which cost more."""
    model = ("transformer:layers=6,width=256,sequence=512", "--batch-size", "48", "--json")

    assert answer(["fit", *model, "--device", "rehearse:t4:memory=2GiB"]) == 0
    small = json.loads(capsys.readouterr().out)
    assert answer(["fit", *model, "--device", "t4", "--memory", "2GiB"]) == 0

    large = json.loads(capsys.readouterr().out)
    keys = ("peak_bytes", "needed_bytes", "fits", "is_chosen")
    assert [[way[key] for key in keys] for way in small["ways"]] == [
        [way[key] for key in keys] for way in large["ways"]
    ]
    assert small["ways"][0]["needed_bytes"] > 2 * 2**30
    (chosen,) = [way["way"] for way in small["ways"] if way["is_chosen"]]
    assert chosen.startswith("plan:")


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["transformer:layers=4,width=128,sequence=256", "cifar-resnet"])
def test_where_nothing_fits_no_rehearsed_way_is_chosen_or_needs_less_than_what_is_proved_of_its_levers(
    here, capsys, model
):
    """PyTorch's allocator gives the bytes of the ways, all with levers among them."""
    words = ["fit", model, "--batch-size", "16", "--device", "h100", "--context", "0", "--memory"]
    assert answer([*words, "1MiB", "--json"]) == 5
    found = json.loads(capsys.readouterr().out)

    assert not any(way["fits"] or way["is_chosen"] for way in found["ways"])
    ways = [(way["way"].split("+", 1), way["peak_bytes"]) for way in found["ways"]]
    held = [(peak, found["floors"][rest[0] if rest else ""]) for (_, *rest), peak in ways
            if (rest[0] if rest else "") in found["floors"]]  # fmt: skip

    assert len(held) >= 2
    assert all(0.2 * peak < least <= peak for peak, least in held)


def fitted_of(sizes: dict[str, int], left_out: dict[Choice, str]) -> Fitted:
    rows = read_rows([record(label, peak=size * MIB) for label, size in sizes.items()])
    return Fitted(words=(), limit_bytes=10 * MIB, context_bytes=0, context_source=None, rows=rows, left_out=left_out)


def test_of_two_ways_that_are_alike_the_one_with_fewer_levers_is_shown_and_is_the_least():
    """SGD's fused kernel saves nothing, so a way with it and the same way without it take the same bytes and time."""
    fitted = fitted_of({"none": 100, "none+chunk-loss+fused": 60, "none+chunk-loss": 60, "none+fused": 100}, {})

    assert [str(row.case.label) for row in fitted.shown] == ["none", "none+chunk-loss"]
    assert fitted.missing == ["nothing fits: the least is none+chunk-loss, which needs 50.0 MiB more"]


def test_a_lever_of_a_way_that_fits_is_not_said_to_be_left_out():
    """It may save nothing alone, and with others enough."""
    left_out = dict.fromkeys(map(Choice, ("fused", "chunk-loss")), "it lowers neither")
    fitted = fitted_of({"none": 100, "all+fused": 9}, left_out)

    assert [line for line in fitted.table.below if "left out" in line] == ["left out: chunk-loss: it lowers neither"]


@pytest.mark.slow
def test_a_consent_that_no_lever_needs_and_a_step_that_cannot_run_are_errors_in_one_line(here, capsys):
    assert answer(["fit", *MODEL, "--memory", "1GiB", "--allow", "4bit"]) == 2
    assert "8bit" in capsys.readouterr().err
    assert answer(["fit", "hf:gpt2:seq=8", "--memory", "1GiB", "--device", "cpu"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "gcprof: hf:gpt2 has no 'seq'; the nearest is 'sequence'"


def test_a_step_with_room_for_any_has_addresses_for_segments_that_grow(hollow, here):
    """Ways of fit that need more than a GPU has are rehearsed on one with room."""
    words = ["rehearse", "mlp", "--device", "t4", "--memory", f"{MOST_BYTES}B", "--strategies"]

    assert answer([*words, "none+expandable-segments", "-o", "run"]) == 0

    assert [record.outcome for record in store.load(Path("run")).records] == ["ok", "ok"]
