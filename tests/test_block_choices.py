"""A floor is of the chosen blocks; others that the model has are advised by name, with bytes worked out by hand."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from profiler.analysis.explanation import better_blocks
from profiler.cli import answer
from profiler.core.case import Choice, Trial
from profiler.core.trace_data import BlockChoice, BlockChoices, Followed
from profiler.predicting.prediction import follow_case, predict
from profiler.training.blocks import find_blocks, offered_blocks
from tests import make
from tests.conftest import measured
from tests.user_models.one_layer import Parts, one

ROWS, DIM, HIDDEN = 4096, 16, 256
FILE = Path(__file__).parent / "user_models/one_layer.py"
MODEL = Choice(f"{FILE}:one")
HIDDEN_BYTES = ROWS * HIDDEN * 4  # one activation between up and down
OUTPUT_BYTES = ROWS * DIM * 4  # one between attention and mlp, and the batch
WEIGHT_BYTES = DIM * HIDDEN * 4  # up or down


def followed(blocks: str | None = None) -> Followed:
    case = make.case(model=MODEL, blocks=blocks, device="fake:cpu", batch_size=None)
    return follow_case(Trial(case=case), with_choices=True)


def test_a_model_offers_its_parts_and_a_floor_is_of_its_blocks_alone():
    assert offered_blocks(one()[0]) == {
        "": ("layer",),
        "layer.*": ("layer.attention", "layer.mlp"),
        "layer.attention": ("layer.attention",),
        "layer.mlp": ("layer.mlp",),
        "layer.attention.*": ("layer.attention.up", "layer.attention.down"),
        "layer.mlp.*": ("layer.mlp.up", "layer.mlp.down"),
    }
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


@pytest.mark.parametrize("pattern", ["layer.*", "layer.attention"])
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
        ("narrow", "none", None, False),
    ],
)
def test_blocks_beside_which_most_is_saved_have_a_note(factory, strategy, blocks, is_told):
    case = make.case(strategy, model=Choice(f"{FILE}:{factory}"), blocks=blocks, device="fake:t4", batch_size=None)

    notes = {note.code: note.text for note in predict(Trial(case=case)).notes}

    # of 256 + 3 * 16 floats for each of 64 rows, and 512 bytes of the loss, all but 2 * 16 are outside
    saying = "90 % of what the forward saves is outside of the blocks that strategies checkpoint: `gcprof blocks MODEL`"
    assert notes.get("GCP051", "").startswith(saying) == is_told
    assert ("GCP051" in notes) == is_told


@pytest.mark.parametrize(
    ("others", "pattern"),
    [
        ({"a": (50, 120, 2)}, None),  # a lower floor that `all` does not reach
        ({"a": (101, 80, 2)}, "a"),  # a higher floor, which is lower than what `all` reaches now
        ({"a": (50, 99.5, 2)}, None),  # less than a hundredth
        ({"a": (50, 90, 2), "b": (60, 80, 2)}, "b"),
        ({"a": (50, 80, 9), "b": (50, 80, 3)}, "b"),
    ],
)
def test_a_bound_alone_is_no_advice(others, pattern):
    own, *rest = (
        BlockChoice(pattern=name, num_blocks=num, floor_bytes=floor, all_bytes=peak)
        for name, (floor, peak, num) in {"": (100, 100, 2), **others}.items()
    )

    found = better_blocks(BlockChoices(own=own, others=tuple(rest)))

    assert (found.pattern if found else None) == pattern


# --- blocks are found in the structure of a model, and shown


def leaves(count: int) -> list[nn.Module]:
    return [nn.Linear(2, 2) for _ in range(count)]


def branch() -> nn.Module:
    return Parts(one=nn.Sequential(*leaves(1), nn.ReLU()), other=nn.Sequential(*leaves(1), nn.ReLU()))


def numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}.{i}" for i in range(count))


def layers(count: int) -> nn.Module:
    return nn.ModuleList(Parts(experts=nn.ModuleList(leaves(8)), mlp=nn.Sequential(*leaves(1))) for _ in range(count))


FOUND = {
    "a Sequential is flattened": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(2, 2), nn.Tanh()))),
        ("0", "1.0", "1.1.0", "1.1.1"),
    ),
    "encoder and decoder are both stacks, and a short list beside them is none": (
        lambda: Parts(enc=Parts(layers=layers(3)), dec=Parts(layers=layers(2)), few=nn.ModuleList(leaves(2))),
        (*numbered("enc.layers", 3), *numbered("dec.layers", 2)),
    ),
    "a dict of numbered layers is a stack, and one of parts is none": (
        lambda: Parts(
            parts=nn.ModuleDict({"wte": nn.Linear(2, 2), "h": nn.ModuleDict({f"{i}": branch() for i in range(3)})}),
            heads=nn.ModuleDict({"left": nn.Linear(2, 2), "right": nn.Linear(2, 2)}),
        ),
        numbered("parts.h", 3),
    ),
    "lists within a list are never called either": (
        lambda: Parts(downs=nn.ModuleList(nn.ModuleList([*leaves(2), nn.Identity()]) for _ in range(2))),
        (*numbered("downs.0", 2), *numbered("downs.1", 2)),
    ),
    "a list of several classes is never called itself": (
        lambda: Parts(stem=nn.Linear(2, 2), mixed=nn.ModuleList((branch(), nn.Linear(2, 2), branch())), fc=branch()),
        ("stem", *numbered("mixed", 3)),
    ),
    "levels of several classes are a stack that holds more than a list of like parts beside it": (
        lambda: Parts(down=nn.ModuleList((nn.ReLU(), *[branch() for _ in range(5)])), mid=nn.ModuleList(leaves(2))),
        numbered("down", 6),
    ),
    "stems and heads of single operators are left out beside blocks": (
        lambda: Parts(
            stem=nn.Sequential(*leaves(2)), stage=nn.Sequential(branch(), branch()), top=nn.Sequential(*leaves(2))
        ),
        numbered("stage", 2),
    ),
    "branches are no trunk, and auxiliary classifiers no blocks": (
        lambda: Parts(
            first=nn.Linear(2, 2), mixed1=branch(), mixed2=branch(), AuxLogits=nn.Linear(2, 2), mixed3=branch(),
            pool=nn.AdaptiveAvgPool1d(1), fc=nn.Linear(2, 2),
        ),
        ("first", "mixed1", "mixed2", "mixed3"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "expected"), FOUND.values(), ids=FOUND)
def test_blocks_are_found_in_the_structure(build, expected):
    assert find_blocks(build()) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("h.*", ("h.0", "h.1")),
        ("*.1", ("h.1",)),
        ("h.*.mlp,h.*.attn", ("h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp")),
        ("head,h.1,h.0", ("head", "h.1", "h.0")),
    ],
)
def test_a_star_does_not_go_past_a_dot_and_patterns_alike_up_to_it_are_taken_in_the_order_of_the_structure(
    pattern, expected
):
    layers = nn.ModuleList(Parts(attn=nn.Linear(2, 2), mlp=nn.Linear(2, 2)) for _ in range(2))

    assert find_blocks(Parts(h=layers, head=nn.Linear(2, 2)), pattern) == expected


# --- `gcprof blocks` and `gcprof stages`: what was found as JSON, and what is refused


@pytest.mark.usefixtures("shared")
def test_the_command_shows_the_blocks_of_a_real_model(capsys):
    assert answer(["blocks", "transformer:layers=2,width=16,heads=2,sequence=8", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert [block["name"] for block in found["blocks"]] == ["blocks.0", "blocks.1"]
    assert [block["output"] for block in found["blocks"]] == ["2 x 8 x 16"] * 2
    assert [block["feeds_next"] for block in found["blocks"]] == [True, None]
    assert found["blocks"][0]["num_parameters"] == 12 * 16**2 + 13 * 16


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ("blocks transformer --pattern layers.*", 2, "no blocks match 'layers.*'"),
        ("blocks tests/user_models/broken.py:raises", 1, "KeyError: 'no such checkpoint' (broken.py:17)"),
        ("blocks tests/user_models/data_dependent.py:router", 0, ""),
        ("blocks tests/user_models/data_dependent.py:router --batch-size 3", 2, "--batch-size has no effect"),
        ("stages mlp --device fake:cuda", 2, "the speed of 'fake:cuda' is not known"),
    ],
)
def test_the_command_ends_with_the_code_that_it_earns(capsys, words, code, complaint):
    assert answer(words.split()) == code
    assert complaint in capsys.readouterr().err
