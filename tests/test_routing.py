"""Steps whose sizes depend on where tokens are routed: predicted for a stated routing, measured with that routing."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.core.case import Choice, Trial
from profiler.measuring.trial import measure
from profiler.predicting.prediction import predict
from tests import make

FILE = Path(__file__).parent / "user_models" / "experts.py"


@pytest.mark.parametrize("strategy", ["none", "all"])
@pytest.mark.parametrize("sent", ["balanced", "worst"])
@pytest.mark.parametrize("way", ["best", "masked", "two", "sorted"])
def test_a_predicted_mixture_holds_what_a_measured_one_holds_whose_tokens_go_there(way, sent, strategy):
    model = Choice(f"{FILE}:make:batch_size=96,width=64,way={way},sent={sent}")
    stated = {} if sent == "balanced" else {"routing": sent}

    predicted = predict(Trial(case=make.case(strategy, model=model, batch_size=None, device="fake:cpu", **stated)))
    measured = measure(Trial(case=make.case(strategy, model=model, batch_size=None), passes=("memory",)))

    positions = 8 * 96 if way == "masked" else 0  # of a mask that is an index, which an estimate leaves out
    assert measured.readings.peak_bytes - positions <= predicted.readings.peak_bytes <= measured.readings.peak_bytes
    assert predicted.readings.saved_bytes == measured.readings.saved_bytes
    assert "GCP062" in {note.code for note in predicted.notes}
