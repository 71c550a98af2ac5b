"""What a forward frees is told apart from what it saves: the numbers are worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.core.case import Choice, Trial
from profiler.predicting.prediction import predict
from tests import make
from tests.conftest import measured
from tests.user_models import grad_cam

FILE = Path(grad_cam.__file__)
BATCH, WIDTH, FLOAT = 64, 256, 4
HIDDEN = BATCH * WIDTH * FLOAT  # the activation, and the gradient that is kept
SAVED = HIDDEN + FLOAT  # ReLU's result, which the last layer takes too; and the loss


@pytest.mark.parametrize("keeps", ["gradient", "nothing"])
def test_a_forward_that_frees_a_kept_gradient_saves_what_it_makes(keeps):
    readings = measured(
        Choice.of(f"{FILE}:make", {"keeps": keeps}), "none", batch_size=BATCH, passes=("memory",)
    ).readings

    assert readings.saved_bytes == SAVED
    kept = HIDDEN if keeps == "gradient" else 0
    static = readings.static_bytes
    assert readings.start_bytes == static["parameters"] + static["inputs"] + kept  # the gradients are zeroed to None


@pytest.mark.parametrize("keeps", ["gradient", "nothing"])
def test_it_is_predicted_as_it_is_measured(keeps):
    case = make.case("none", model=Choice.of(f"{FILE}:make", {"keeps": keeps}), batch_size=BATCH, device="fake:cpu")

    assert predict(Trial(case=case)).readings.saved_bytes == SAVED


def test_a_backward_within_the_forward_is_part_of_the_forward():
    batch, width = 2048, 32
    hidden, weights = batch * width * FLOAT, (width * width + width) * FLOAT
    model = Choice.of(f"{FILE.parent}/inner_backward.py:make", {"width": width})

    readings = measured(model, "none", batch_size=batch, passes=("memory",)).readings

    assert readings.saved_bytes == weights + hidden + FLOAT
    within, after = (readings.phases[phase].allocated for phase in ("forward", "backward"))
    assert after - within == weights  # one backward is as the other, but the first layer's gradients are there
    assert readings.peak_gradient_bytes == weights
