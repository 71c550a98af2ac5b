"""`gcprof blocks`: what was found, as a table and as JSON."""

from __future__ import annotations

import json

import pytest

from profiler.cli import answer
from profiler.core.record import BlockSummary, ModelSummary
from profiler.views.tables.grid import text
from profiler.views.tables.listing import blocks as table
from tests.program import next_words

pytestmark = pytest.mark.usefixtures("shared")


def outline() -> ModelSummary:
    seen = {"kind": "Layer", "num_parameters": 1200, "output": "2 x 64"}
    blocks = (
        BlockSummary(name="layers.0", feeds_next=True, **seen),
        BlockSummary(name="layers.1", feeds_next=False, **seen),
        BlockSummary(name="layers.2", **seen),
    )
    return ModelSummary(model="mine.py:make", num_parameters=3600, batch_size=2, blocks=blocks)


@pytest.mark.slow
def test_the_table_says_which_blocks_feed_the_next_alone():
    lines = text([table(outline())]).plain.splitlines()

    assert lines[0] == "mine.py:make, 3,600 parameters, 3 blocks, batch 2"
    assert [line.split()[-1] for line in lines[5:8]] == ["yes", "no", "-"]
    assert "layers.1" in lines[-1]


def test_the_command_shows_the_blocks_of_a_real_model(capsys):
    code = answer(["blocks", "transformer:layers=2,width=16,heads=2,sequence=8", "--json"])

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [block["name"] for block in found["blocks"]] == ["blocks.0", "blocks.1"]
    assert [block["output"] for block in found["blocks"]] == ["2 x 8 x 16"] * 2
    assert [block["feeds_next"] for block in found["blocks"]] == [True, None]
    assert found["blocks"][0]["num_parameters"] == 12 * 16**2 + 13 * 16


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["transformer", "--pattern", "layers.*"], 2, "no blocks match 'layers.*'"),
        (["transfromer"], 2, "did you mean 'transformer'?"),
        (["tests/user_models/broken.py:raises"], 1, "KeyError: 'no such checkpoint' (broken.py:17)"),
        (["tests/user_models/lstm.py:char_rnn:hiden=3"], 2, "has no option 'hiden'"),
        (["tests/user_models/unet.py:segmentation:batch_size=4"], 2, "hint: --batch-size 4"),
        (["tests/user_models/unet.py:segmentation"], 0, ""),
        (["tests/user_models/data_dependent.py:router"], 0, ""),
        (["tests/user_models/data_dependent.py:router", "--batch-size", "3"], 2, "--batch-size has no effect"),
    ],
)
def test_the_command_ends_with_the_code_that_it_earns(capsys, words, code, complaint):
    assert answer(["blocks", *words]) == code
    assert complaint in capsys.readouterr().err


# --- `gcprof stages`


SMALL = "transformer:layers=3,width=32,heads=2,sequence=32,vocabulary=64"
WORDS = (SMALL, "--batch-size", "2", "--device")


@pytest.mark.slow
def test_a_table_has_a_line_for_every_stage(here, shared, capsys):
    assert answer(["stages", *WORDS, "fake:t4"]) == 0

    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == f"{SMALL}, batch 2, sgd, fp32, t4: predicted, not measured"
    assert [line.split("  ")[0] for line in lines[5:]] == [
        "before blocks.0", "blocks.0", "blocks.1", "blocks.2", "after blocks.2",
    ]  # fmt: skip
    assert lines[5].endswith("always kept")
    assert next_words(said.err) == ["plan", *WORDS[:3], "--device", "fake:t4", "--budget", "60%"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["mlp,mnist-cnn"], "only one model can be planned at once"),
        (["mlp", "--device", "fake:cuda"], "the speed of 'fake:cuda' is not known"),
    ],
)
def test_what_has_no_stages_is_refused(here, shared, capsys, words, complaint):
    assert answer(["stages", *words]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert complaint in said.err
