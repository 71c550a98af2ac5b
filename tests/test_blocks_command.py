"""`gcprof blocks` and `gcprof stages`: what was found as JSON, and what is refused."""

import json

import pytest

from profiler.cli import answer

pytestmark = pytest.mark.usefixtures("shared")


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
