"""Names of a file of stages in the code that `gcprof plan --emit` prints: they are texts there, and nothing more."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.cli import answer
from tests.attack import hostile

NAMES = (
    'x"]); open("sprung", "w"); ([("',
    "x'''\nopen('sprung', 'w')\n'''",
    "x\\",
    "x\u2028open('sprung')",
    "{open('sprung', 'w')}",
    "$plan ${plan}",
    "\u202ex",
)


def stages(name: str) -> dict[str, Any]:
    """Two stages, one of which has this name, and these modules and this save option."""
    costs = dict.fromkeys(("forward_seconds", "backward_seconds"), 1.0)
    held = {"output_bytes": 1, "saved_bytes": 100, "forward_extra_bytes": 0, "backward_extra_bytes": 0}
    return {
        "input_bytes": 1,
        "stages": [
            {"name": f"{name}{index}", **costs, **held, "blocks": [{"name": f"{name}{index}", "parameters": [name]}]}
            for index in range(6)
        ],
    }


def emitted(name: str, kind: str, here: Path, capsys: Any) -> str:
    (here / "stages.json").write_bytes(msgspec.json.encode(stages(name)))
    assert answer(["plan", "--stages", "stages.json", "--budget", "60%", "--emit", kind]) == 0
    return str(capsys.readouterr().out)


def shape(code: str) -> str:
    """A program without its constants."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = None
    return ast.dump(tree)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["python"])
def test_a_name_of_a_stage_is_a_text_of_the_code(name: str, kind: str, here: Path, capsys: Any):
    plain = emitted("layer", kind, here, capsys)

    code = emitted(name, kind, here, capsys)

    assert shape(code) == shape(plain)
    assert not (here / "sprung").exists()
    assert hostile.SECRET not in code


def test_twin_without_quotes_the_shape_would_be_another():
    assert shape("PLAN = ['x']") == shape("PLAN = ['y']")
    assert shape("PLAN = ['x']") != shape("PLAN = [open('x')]")
