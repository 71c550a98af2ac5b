"""The model's own hooks on saved tensors: followed by the trace as they run, or refused. The numbers are by hand."""

from pathlib import Path

import pytest

from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.predicting.prediction import predict
from tests import make
from tests.conftest import measured
from tests.user_models import saved_hooks

FILE = Path(saved_hooks.__file__)
BATCH, WIDTH, LAYERS, FLOAT = 64, 128, 3, 4
ACTIVATION, WEIGHT = BATCH * WIDTH * FLOAT, WIDTH * WIDTH * FLOAT
PACKED = 2 * LAYERS * ACTIVATION + (LAYERS - 1) * WEIGHT  # squares' and layers' inputs; the first needs no weight back
INSIDE = (2 * LAYERS - 1) * ACTIVATION  # without the weights and the batch, which are there in every step
SAVED = {  # with the loss
    "half": PACKED // 2 + FLOAT,
    "object": PACKED // 2 + FLOAT,
    "save_on_cpu": INSIDE + FLOAT,  # on a CPU, nothing is copied
    "recomputed": (LAYERS - 1) * ACTIVATION + FLOAT,
}
GRANULE = 512  # of CUDA's allocator, which the loss takes: under save_on_cpu there is nothing else


def choice(hooks: str) -> Choice:
    return Choice.of(f"{FILE}:make", {"hooks": hooks})


def predicted(hooks: str, strategy: str = "none"):
    return predict(Trial(case=make.case(strategy, model=choice(hooks), batch_size=BATCH, device="fake:cpu"))).readings


@pytest.mark.slow
@pytest.mark.parametrize("hooks", SAVED)
def test_what_hooks_pack_is_predicted_as_it_is_measured_and_as_it_is_by_hand(hooks):
    readings = measured(choice(hooks), "none", batch_size=BATCH, passes=("memory",)).readings

    foreseen = predicted(hooks)

    assert foreseen.saved_bytes == readings.saved_bytes == SAVED[hooks]
    assert foreseen.peak_bytes == readings.peak_bytes


def test_a_hook_that_quantizes_has_no_number_but_a_reason():
    with pytest.raises(Unsupported, match="a quantized tensor cannot be traced"):
        predicted("quantized")


@pytest.mark.parametrize("hooks", ["half", "pinned_host"])
def test_on_a_gpu_other_hooks_than_those_to_the_host_are_refused(hooks):
    case = make.case("none", model=choice(hooks), batch_size=BATCH, device="fake:h100")

    with pytest.raises(Unsupported, match="`gcprof rehearse` runs them"):
        predict(Trial(case=case))


ON_HOLLOW = """
from profiler.core.case import Choice, Trial
from profiler.measuring.trial import measure
from profiler.predicting.prediction import predict
from tests import make

def readings(read, hooks, strategy, device):
    model = Choice.of({file!r} + ":make", {{"hooks": hooks}})
    case = make.case(strategy, model=model, batch_size={batch}, device=device)
    record = read(Trial(case=case, passes=("memory",)))
    return record.readings.saved_bytes, record.readings.peak_bytes

found = {{
    strategy: [
        readings(read, "save_on_cpu", strategy, device)
        for read, device in ((measure, "cuda:0"), (predict, "fake:h100"))
    ]
    for strategy in ("none", "all")
}}
"""


@pytest.mark.slow
def test_on_a_gpu_what_they_move_to_the_host_takes_nothing_there(hollow):
    found = hollow.python(ON_HOLLOW.format(file=str(FILE), batch=BATCH))

    assert {strategy: foreseen for strategy, (_, foreseen) in found.items()} == {
        strategy: real for strategy, (real, _) in found.items()
    }
    assert found["none"][0][0] == GRANULE
