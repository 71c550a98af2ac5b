"""An explanation fits a small screen, says what it must, and is one JSON document."""

import json
from pathlib import Path

import pytest

import profiler
from profiler.analysis.explanation import explain
from profiler.cli import answer
from profiler.views.tables import Paper, text
from profiler.views.tables.explanation import document, tables
from tests.long_explanation import longest
from tests.traced import by_hand
from tests.user_models.wrapped_optimizers import make


def test_the_longest_explanation_fits_where_only_ascii_can_be_printed():
    shown = text(tables(longest(), title="t" * 200, width=80), Paper(80, "ascii")).plain

    assert shown.isascii()
    assert len(shown.splitlines()) <= 25


def test_the_document_is_json_in_bytes():
    trace = by_hand([("forward", "m")], [(100, 1, 1, "m", "forward", "temporaries")])

    found = json.loads(document(explain(trace, blocks=()), strategy="all"))

    assert found["peak"] == {"nbytes": 100, "number": 1, "phase": "forward", "operator": "aten.run", "module": "m"}
    assert (found["strategy"], found["reason"]) == ("all", None)
    assert found["modules"] == [{"name": "m", "nbytes": 100}]


@pytest.mark.slow
def test_a_model_that_brings_its_optimizer_is_headed_as_predictions_head_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    model = f"{Path(__file__).parent / 'user_models/wrapped_optimizers.py'}:make"

    assert answer(["explain", model]) == 0

    head = capsys.readouterr().out.splitlines()[0]
    assert ", batch 32, its own optimizer, " in head
    assert profiler.explain(make).title.startswith("make, none, a batch of its own, its own optimizer, cuda")
