"""What gcprof runs besides the step that was asked for decides no outcome: where it fails, that is a note."""

from typing import Any

import pytest
import torch
from torch import nn

from profiler.core.case import OPERATORS
from profiler.core.record import Record
from profiler.measuring import equality_pass
from profiler.measuring.bench import Bench
from profiler.measuring.meters import equality, memory_growth, operators, saved_graph
from profiler.training import kept_state
from tests.conftest import measured_build
from tests.user_models import gradients, grows, own_recompute

KEPT = []  # batches that `keeping` keeps


def chain() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), (torch.ones(2, 4),), lambda output: output.mean()


def keeping() -> Any:
    module, batch, loss = chain()
    KEPT.append(module)
    return module, batch, loss


def unknown(record: Record) -> str:
    return next((note.text for note in record.notes if note.code == "GCP057"), "")


ADDED = {  # what is not known: the place of its run, the model whose step needs it, and more of the case
    "FLOPs": (operators, "count", chain, {}),
    "how far this precision is from fp32": (equality, "apart", chain, {"precision": "amp-bf16"}),
    "whether memory grows": (memory_growth, "read", lambda: grows.make(how="outputs"), {}),
    "what keeps the bytes": (Bench, "_keeper", keeping, {}),
    "where bytes are saved needlessly": (saved_graph, "frozen_modules", gradients.tower, {}),
    "why parameters get no gradient": (equality_pass, "explanation", gradients.lossy, {}),
    "which modules the backward runs again": (saved_graph.OwnRecomputes, "names", own_recompute.make, {}),
    "what operators take": (operators, "hidden_bytes", chain, {"passes": ("memory", OPERATORS)}),
    "whether the gradients are": (equality, "copied", chain, {}),
    "whether the gradients": (kept_state, "image", chain, {}),
}
ERRORS = {ValueError: "planted", torch.OutOfMemoryError: "out of memory"}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("what", ADDED)
def test_a_run_that_was_not_asked_for_and_fails_is_a_note_on_a_row_whose_peak_stands(what, error, monkeypatch):
    where, name, build, more = ADDED[what]
    peak = measured_build(build, **{**more, "passes": ("memory",)}).readings.peak_bytes

    def failing(*_: object, **__: object) -> None:
        raise error("planted")

    monkeypatch.setattr(where, name, failing)
    record = measured_build(build, **{"passes": ("equality", "flops", "memory"), **more})

    assert (record.outcome, record.readings.peak_bytes) == ("ok", peak)
    assert what in unknown(record)
    assert ERRORS[error] in unknown(record)


@pytest.mark.slow
def test_a_failed_run_gives_back_its_memory(hollow):
    code = """
from profiler.core.case import Trial
from profiler.measuring.bench import Bench
from tests import make
import torch

bench = Bench(Trial(case=make.case(device="cuda:0"), passes=("memory",)), print)
before = torch.cuda.memory_reserved()
def run():
    held = [torch.empty(2**20, device="cuda:0")]
    while True:
        held.append(torch.cat([held[-1], held[-1]]))
bench.extra("this", run)
found = [torch.cuda.memory_reserved() - before, bench.all_notes()[-1].text]
"""
    left, text = hollow.python(code)

    assert left == 0
    assert "this (out of memory)" in text
