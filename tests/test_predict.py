"""`gcprof predict`, and predictions beside measurements."""

import csv
import shlex

import msgspec
import pytest
import torch

from profiler.cli import answer
from profiler.core import gpu_specs
from profiler.core.case import Calibration, Choice, Trial
from profiler.core.errors import UserError
from profiler.core.gpu_specs import HOLLOW
from profiler.core.record import Conditions, PhaseBytes
from profiler.core.trace_data import WORKSPACES
from profiler.measuring.trial import measure
from profiler.predicting import traced_case
from profiler.predicting.prediction import predict
from profiler.predicting.stages import stages
from profiler.workflows import stages as on_device
from profiler.workflows.stages import measured_sizes
from tests import make

pytestmark = pytest.mark.usefixtures("shared")
GIB, MIB = 2**30, 2**20


def test_a_gpu_is_rehearsed_where_it_can_be_and_else_estimated_with_the_reason(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(on_device, "why_no_rehearsal", lambda device: None)
    assert on_device.for_gpus("t4,h100", say=said.append) == "rehearse:t4,rehearse:h100"
    assert on_device.for_gpus("t4", say=said.append, is_estimated=True) == "fake:t4"
    monkeypatch.setattr(on_device, "why_no_rehearsal", lambda device: "the device lacks cudaNoSuchFunction")
    assert on_device.for_gpus("t4", say=said.append) == "fake:t4"
    assert said == ["note: estimated, not rehearsed: the device lacks cudaNoSuchFunction"]


@pytest.mark.slow
def test_a_run_shows_how_far_its_predictions_are_off(here, capsys):
    code = answer(
        shlex.split(
            "run --model mnist-cnn:channels=4 --batch-size 4 --segments 8 --predict "
            "--rounds 1 --samples 1 --verify off --device cpu -o run"
        )
    )

    assert code == 0
    assert "peak off by" in capsys.readouterr().out
    with open("run/derived/table.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["device"] for line in lines] == ["cpu", "cpu", "fake:cpu", "fake:cpu"]
    assert all(abs(float(line["prediction_error"])) < 0.01 for line in lines)

    assert answer(["explain", "run", "--strategy", "segments:k=8"]) == 0  # calibrated with the same run
    assert "the prediction is +0.00 % off" in capsys.readouterr().err


def estimated(model: str = "mlp", optimizer: str = "sgd", calibration: Calibration | None = None):
    case = make.case(model=Choice(model), batch_size=4, device="fake:cuda", optimizer=Choice(optimizer), verify="off")
    return predict(Trial(case=case, passes=("memory",), calibration=calibration)).readings


def test_beside_a_measurement_products_take_the_workspace_of_the_gpu_that_was_measured():
    known = Calibration(hidden_bytes={}, device_name=gpu_specs.find("h100").name)
    model = "mlp:width=64,depth=2"

    peaks = [estimated(model, calibration=given).peak_bytes for given in (known, None)]
    chain = stages(
        Trial(case=make.case(model=Choice(model), device="fake:cuda"), passes=("memory",), calibration=known)
    )

    large, small = 32 * MIB, 8320 * 2**10  # :4096:8 from Hopper on, :4096:2:16:8 before (CublasHandlePool.cpp)
    assert peaks[0] - peaks[1] == large - small
    assert chain.workspace_bytes == large


STATE = {  # tensors of state as large as the parameters, for each parameter; Adam counts its steps on the host
    "adamw": 2,
    "torch:Adagrad": 1,  # has its state from the beginning
    "torch:NAdam": 2,
}
MLP_BYTES = [4 * count for count in (20 * 10, 20, 20 * 20, 20, 5 * 20, 5)]  # weights and biases of mlp, in fp32


@pytest.mark.parametrize(("optimizer", "tensors"), STATE.items())
def test_what_an_optimizer_keeps_on_the_host_is_not_predicted_for_the_device(optimizer, tensors):
    static = estimated("mlp", optimizer).static_bytes

    rounded = [-(-nbytes // 512) * 512 for nbytes in MLP_BYTES]
    assert static["parameters"] == static["gradients"] == sum(rounded)
    assert static["optimizer"] == tensors * sum(rounded)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")
@pytest.mark.parametrize("optimizer", STATE)
def test_static_bytes_are_the_same_measured_and_predicted_and_what_the_allocator_counts(optimizer):
    none = make.case(model=Choice("mlp"), batch_size=4, device="cuda:0", optimizer=Choice(optimizer), verify="off")

    before = torch.cuda.memory_allocated()  # what other tests of this process keep
    measured = measure(Trial(case=none, passes=("memory",))).readings

    predicted = dict(estimated("mlp", optimizer).static_bytes)
    predicted.pop(WORKSPACES, None)  # which torch keeps before 2.15, and no meter can tell apart
    assert measured.static_bytes == predicted
    counted = sum(measured.static_bytes.values()) - measured.static_bytes["gradients"]
    assert measured.start_bytes - before == counted or traced_case.keeps_workspaces()


# --- what CUDA and cuDNN took of a GPU in a measured run, given to its rehearsal


H100 = gpu_specs.find("h100").name


def calibrating(*, device_name: str = H100, others_bytes: int | None = None, context: int = 500 * MIB):
    """1,000 MiB reserved at most in the backward; the device was read when 40 MiB of them were given back."""
    return make.record(
        device="cuda:0",
        phases={
            "forward": PhaseBytes(allocated=600 * MIB, reserved=700 * MIB, device=700 * MIB + context),
            "backward": PhaseBytes(allocated=900 * MIB, reserved=1000 * MIB, device=960 * MIB + context),
        },
        hidden_bytes={"aten.convolution(a)": 3 * MIB, "aten.convolution_backward(a)": 64 * MIB, "aten.mm(b)": 99 * MIB},
        conditions=(Conditions(at_seconds=1.0, others_bytes=others_bytes),),
        environment=msgspec.structs.replace(make.record().environment, device_name=device_name),
    )


@pytest.mark.parametrize(("others_bytes", "context"), [(None, {"context": 500 * MIB}), (GIB, {})])
def test_the_context_is_what_the_device_lost_beside_the_allocator_and_the_workspace_the_largest_of_a_convolution(
    others_bytes, context
):
    """Where other processes take memory, too, the context is not known."""
    assert measured_sizes([calibrating(others_bytes=others_bytes)], "h100") == {**context, "cudnn_workspace": 64 * MIB}


@pytest.mark.parametrize(
    "record", [calibrating(device_name=HOLLOW + H100), calibrating(device_name="NVIDIA T4"), make.record()]
)
def test_a_rehearsed_record_and_one_of_another_gpu_tell_nothing(record):
    with pytest.raises(UserError, match="nothing in it was measured on h100"):
        measured_sizes([record], "h100")
