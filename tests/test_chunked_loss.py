"""The loss in chunks as a remedy, held to the same model with its loss in chunks by hand, in plain PyTorch."""

from __future__ import annotations

import pytest

from profiler.analysis.explanation import CHUNKS, remedies
from profiler.core.case import Choice
from profiler.core.trace_data import live
from profiler.predicting.traced_case import trace_case
from tests import make
from tests.conftest import measured
from tests.user_models import large_vocabulary

MODEL = f"{large_vocabulary.__file__}:make"
LOGITS = 2048 * 2048 * 4  # tokens, vocabulary, fp32


def remedy_bytes(**fields):
    """What each remedy takes off the traced peak, and that peak."""
    options = fields.pop("options", {})
    model = Choice.of(MODEL, options) if options else Choice(MODEL)
    case = make.case("none", **{"model": model, "batch_size": None, "device": "fake:cpu", **fields})
    _, trace, _ = trace_case(case)
    return {remedy.kind: remedy.nbytes for remedy in remedies(trace, floor_bytes=0)}, max(live(trace))


@pytest.mark.slow
def test_the_loss_in_chunks_takes_what_a_loss_in_chunks_by_hand_takes():
    gains, peak = remedy_bytes()
    by_hand = measured(Choice.of(MODEL, {"chunks": CHUNKS}), "own", batch_size=None).readings.peak_bytes
    whole = measured(MODEL, "none", batch_size=None).readings.peak_bytes

    assert whole == peak
    assert whole > 3 * LOGITS  # logits, log-probabilities and their gradient
    assert by_hand < whole / 6
    assert whole - gains["loss"] == pytest.approx(by_hand, rel=0.05)


def test_where_the_logits_are_small_or_already_in_chunks_it_is_no_remedy():
    assert "loss" not in remedy_bytes(options={"vocabulary": 2, "width": 64})[0]
    assert "loss" not in remedy_bytes(options={"chunks": 8})[0]


def test_no_optimizer_goes_into_the_backward_where_gradients_are_accumulated():
    words = {"options": {"vocabulary": 64, "width": 256, "depth": 8}, "batch_size": 64}

    assert "gradients" in remedy_bytes(**words)[0]
    assert "gradients" not in remedy_bytes(**words, accumulate=2)[0]
