"""A floor is of the chosen blocks; others that the model has are advised by name, with bytes worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch

from profiler.analysis.explanation import better_blocks, explain
from profiler.cli import answer
from profiler.core.case import Choice, Trial
from profiler.core.trace_data import Allocation, BlockChoice, BlockChoices, Followed
from profiler.predicting.prediction import follow_case, predict
from profiler.training.blocks import offered_blocks
from tests import make
from tests.conftest import measured
from tests.traced import by_hand
from tests.user_models.one_layer import one

ROWS, DIM, HIDDEN = 4096, 16, 256
FILE = Path(__file__).parent / "user_models/one_layer.py"
MODEL = Choice(f"{FILE}:one")
HIDDEN_BYTES = ROWS * HIDDEN * 4  # one activation between up and down
OUTPUT_BYTES = ROWS * DIM * 4  # one between attention and mlp, and the batch
WEIGHT_BYTES = DIM * HIDDEN * 4  # up or down


def followed(blocks: str | None = None) -> Followed:
    case = make.case(model=MODEL, blocks=blocks, device="fake:cpu", batch_size=None)
    return follow_case(Trial(case=case), with_choices=True)


@pytest.mark.slow
def test_a_model_offers_its_parts_and_the_parts_of_these():
    module, _ = one()

    assert offered_blocks(module) == {
        "": ("layer",),
        "layer.*": ("layer.attention", "layer.mlp"),
        "layer.attention": ("layer.attention",),
        "layer.mlp": ("layer.mlp",),
        "layer.attention.*": ("layer.attention.up", "layer.attention.down"),
        "layer.mlp.*": ("layer.mlp.up", "layer.mlp.down"),
    }


def test_a_floor_is_of_its_blocks_alone():
    choices = followed().choices
    assert choices is not None

    floors = {"": choices.own.floor_bytes} | {other.pattern: other.floor_bytes for other in choices.others}

    # The backward of tanh in mlp: its output and two gradients of the same size, the batch, y of attention and its
    # gradient's zeros (expanded: none), all four weights, and the gradient of mlp.down. Attention's tanh comes with it
    # where both are one block, and where attention is none.
    at_work = 3 * HIDDEN_BYTES + 2 * OUTPUT_BYTES + 5 * WEIGHT_BYTES
    assert floors["layer.*"] == pytest.approx(at_work, abs=OUTPUT_BYTES)
    assert floors[""] - floors["layer.*"] == pytest.approx(HIDDEN_BYTES, abs=OUTPUT_BYTES)
    assert floors["layer.mlp"] - floors["layer.*"] == pytest.approx(HIDDEN_BYTES, abs=OUTPUT_BYTES)


@pytest.mark.parametrize("pattern", ["layer", "layer.*", "layer.attention", "layer.mlp"])
def test_the_peak_of_all_that_is_told_is_the_one_that_is_measured(pattern):
    choices = followed(pattern).choices
    assert choices is not None

    record = measured(MODEL, "all", blocks=pattern, batch_size=None)

    assert choices.own.all_bytes is not None
    assert record.readings.peak_bytes is not None
    states = record.readings.peak_bytes - choices.own.all_bytes  # each checkpoint keeps one; stages do not count them
    assert states in [number * torch.get_rng_state().nbytes for number in range(1, choices.own.num_blocks + 1)]
    assert choices.own.floor_bytes <= record.readings.peak_bytes


@pytest.mark.parametrize(
    ("factory", "strategy", "blocks", "is_told"),
    [
        ("wide", "none", None, True),
        ("wide", "all", None, False),  # its row is read beside that of `none`
        ("wide", "none", "trunk", False),
        ("wide", "none", "neck.*", False),  # as its user asked
        ("narrow", "none", None, False),
    ],
)
def test_blocks_beside_which_most_is_saved_have_a_note(factory, strategy, blocks, is_told):
    model = Choice(f"{FILE.parent / 'wide_trunk.py'}:{factory}")
    case = make.case(strategy, model=model, blocks=blocks, device="fake:t4", batch_size=None)

    notes = {note.code: note.text for note in predict(Trial(case=case)).notes}

    # of 256 + 3 * 16 floats for each of 64 rows, and 512 bytes of the loss, all but 2 * 16 are outside
    saying = "90 % of what the forward saves is outside of the blocks that strategies checkpoint: `gcprof blocks MODEL`"
    assert notes.get("GCP051", "").startswith(saying) == is_told
    assert ("GCP051" in notes) == is_told


def choice(pattern: str, floor: int, peak: int | None, num: int = 2) -> BlockChoice:
    return BlockChoice(pattern=pattern, num_blocks=num, floor_bytes=floor, all_bytes=peak)


@pytest.mark.parametrize(
    ("others", "pattern"),
    [
        ((choice("a", 50, 120),), None),  # a lower floor that `all` does not reach
        ((choice("a", 101, 80),), "a"),  # a higher floor, which is lower than what `all` reaches now
        ((choice("a", 50, 99.5),), None),  # less than a hundredth
        ((choice("a", 50, None),), None),
        ((choice("a", 50, 90), choice("b", 60, 80)), "b"),
        ((choice("a", 50, 80, 9), choice("b", 50, 80, 3)), "b"),
    ],
)
def test_a_bound_alone_is_no_advice(others, pattern):
    found = better_blocks(BlockChoices(own=choice("", 100, 100), others=others))

    assert (found.pattern if found else None) == pattern


@pytest.mark.slow
def test_explain_names_them_with_their_bytes(capsys):
    words = ["explain", str(MODEL), "--strategy", "all", "--device", "cpu"]

    assert answer(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert answer([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert "of checkpointing these blocks:" in said
    assert "of any checkpointing" not in said
    assert "with --blocks 'layer.attention' the floor is 12.6 MiB, and the peak of `all` 12.6 MiB, not 16.6 MiB" in said
    named = {other["pattern"]: other for other in found["choices"]["others"]}
    assert found["better"] == named["layer.attention"]


def test_what_is_outside_of_the_chosen_blocks_is_named():
    trace = by_hand(
        [("forward", "layer.mlp"), ("forward", "layer.attention"), ("backward", "layer.attention")],
        [
            (40, 1, 2, "layer.mlp", "forward", "saved"),
            (100, 2, 3, "layer.attention", "forward", "saved"),
            (30, 3, 3, "", "backward", "temporaries"),
            (20, 3, 3, "head", "backward", "temporaries"),
            (300, 0, 3, "embedding", "before", "parameters"),
        ],
    )
    more = Allocation(9, 2, 2, "aten.made", "layer.mlp", "forward", "saved")
    baseline = msgspec.structs.replace(trace, allocations=(*trace.allocations, more))

    step = explain(trace, blocks=("layer.mlp",), baseline=baseline)

    assert step.reason is not None
    assert step.reason.kind == "outside"
    assert step.reason.text == (
        "what is outside of these blocks (layer.attention 100 B, outside of all modules 30 B) holds 150 B of the"
        " peak's 450 B"
    )
