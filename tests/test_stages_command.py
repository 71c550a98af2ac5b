"""`gcprof stages`: a table, a file that `gcprof plan` reads, and what to do next."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.core.case import encode_indented
from profiler.engines.local import Local
from profiler.planning import chain as chains
from profiler.planning.candidates import none
from profiler.planning.simulator import simulate
from tests.program import next_words

SMALL = "transformer:layers=3,width=32,heads=2,sequence=32,vocabulary=64"
WORDS = (SMALL, "--batch-size", "2", "--device")
BLOCKS = ["blocks.0", "blocks.1", "blocks.2"]


@pytest.mark.slow
def test_a_table_has_a_line_for_every_stage(here, shared, capsys):
    assert answer(["stages", *WORDS, "fake:t4"]) == 0

    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == f"{SMALL}, batch 2, sgd, fp32, fake:t4: predicted, not measured"
    assert [line.split("  ")[0] for line in lines[5:]] == [
        "1 before blocks.0", "2 blocks.0", "3 blocks.1", "4 blocks.2", "5 after blocks.2",
    ]  # fmt: skip
    assert lines[5].endswith("always kept")
    assert next_words(said.err) == ["plan", *WORDS[:3], "--device", "fake:t4", "--budget", "60%"]


@pytest.mark.slow
def test_what_was_written_is_read_and_planned_with(here, shared, capsys):
    assert answer(["stages", *WORDS, "fake:t4", "--json", "-o", "costs.json"]) == 0

    said = capsys.readouterr()
    chain = chains.read(Path("costs.json"))
    assert encode_indented(chain) == Path("costs.json").read_bytes() == said.out.encode()
    assert [block.name for stage in chain.stages for block in stage.blocks] == BLOCKS
    words = next_words(said.err)
    assert words == ["plan", "--stages", "costs.json", "--frontier"]
    assert answer([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["uncheckpointed"]["peak_bytes"] == none(chain).cost.peak_bytes
    assert found["frontier"][-1]["peak_bytes"] == none(chain).cost.peak_bytes


@pytest.fixture
def in_this_process(monkeypatch):
    """What a child is asked is answered here, where the clock is the test's."""

    def ask(self: Local, entry: str, text: str, *, failing: str) -> dict[str, Any]:
        reading, writing = os.pipe()
        module, _, name = entry.partition(":")
        getattr(importlib.import_module(module), name)(text, writing)
        os.close(writing)
        with open(reading, encoding="utf-8") as answers:
            return json.loads(answers.readlines()[-1])  # the lines before tell the steps

    monkeypatch.setattr(Local, "ask", ask)


@pytest.mark.slow
def test_on_a_device_that_is_there_seconds_are_measured(here, shared, in_this_process, a_second_a_mark, capsys):
    assert answer(["stages", *WORDS, "cpu", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    blocks = [stage for stage in found["stages"] if stage.get("blocks")]
    assert [stage["name"] for stage in blocks] == BLOCKS
    # A step has 4 phases, of which the forwards were seen to be 3 of 4 and the backwards 1.
    assert [stage["forward_seconds"] + stage["backward_seconds"] for stage in blocks] == pytest.approx([4 / 3] * 3)
    assert [stage["forward_seconds"] / stage["backward_seconds"] for stage in blocks] == pytest.approx([3.0] * 3)
    assert len({stage["saved_bytes"] for stage in blocks}) == 1  # three of a kind


@pytest.mark.slow
def test_the_static_bytes_are_those_of_the_optimizer_too(here, shared, capsys):
    found = {}
    for optimizer in ("sgd", "adamw"):
        assert answer(["stages", *WORDS, "fake:t4", "--optimizer", optimizer, "--json", "-o", f"{optimizer}.json"]) == 0
        found[optimizer] = chains.read(Path(f"{optimizer}.json"))

    gradients = sum(stage.gradient_bytes for stage in found["sgd"].stages)
    more = found["adamw"].static_bytes - found["sgd"].static_bytes
    assert 2 * gradients <= more < 2.2 * gradients  # two averages of each parameter, and their steps
    assert simulate(found["adamw"], none(found["adamw"]).plan).step_seconds > 0


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
