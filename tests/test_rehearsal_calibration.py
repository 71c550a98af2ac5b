"""What CUDA and cuDNN took of a GPU in a measured run, given to its rehearsal."""

import msgspec
import pytest

from profiler.core import gpu_specs
from profiler.core.errors import UserError
from profiler.core.gpu_specs import HOLLOW
from profiler.core.record import Conditions, PhaseBytes
from profiler.core.units import GIB, MIB
from profiler.workflows.stages import measured_sizes
from tests import make

H100 = gpu_specs.find("h100").name


def measured(*, device_name: str = H100, others_bytes: int | None = None, context: int = 500 * MIB):
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
    assert measured_sizes([measured(others_bytes=others_bytes)], "h100") == {**context, "cudnn_workspace": 64 * MIB}


@pytest.mark.parametrize(
    "record", [measured(device_name=HOLLOW + H100), measured(device_name="NVIDIA T4"), make.record()]
)
def test_a_rehearsed_record_and_one_of_another_gpu_tell_nothing(record):
    with pytest.raises(UserError, match="nothing in it was measured on h100"):
        measured_sizes([record], "h100")
