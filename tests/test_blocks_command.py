"""`gcprof blocks`: what was found, as a table and as JSON."""

from __future__ import annotations

import json

import pytest

from profiler.cli import answer
from profiler.core.record import BlockSummary, ModelSummary
from profiler.views.tables.grid import text
from profiler.views.tables.listing import blocks as table

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
    assert [line.split()[-1] for line in lines[4:7]] == ["yes", "no", "-"]
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
