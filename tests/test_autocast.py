"""On a CPU, the precisions that CUDA's autocast chooses."""

import re
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from profiler.core.case import Choice, Trial
from profiler.core.trace_data import Trace
from profiler.predicting.cuda_rules import IN_FLOAT, IN_HALF, PROMOTED, TO_FLOAT, cuda_autocast, ruled
from profiler.predicting.prediction import follow_case
from profiler.training import assemble
from profiler.training.workload import Workload
from tests import make

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
ROWS = 40
HALF = {
    "linear": lambda x: F.linear(x, torch.ones(16, 16)),
    "gelu": F.gelu,
    "matrix times vector": lambda x: torch.mv(x[0], torch.ones(16)),
    "einsum": lambda x: torch.einsum("bij,bij->bij", x, x.float()),
    "a softmax in a precision of its own": lambda x: x.softmax(-1, torch.bfloat16),
}
SINGLE = {
    "layer norm": lambda x: F.layer_norm(x, (16,)),
    "softmax": lambda x: x.softmax(-1),
    "sum": lambda x: x.sum(),
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(4, 16, dtype=torch.long)),
    "a product with one in float32": lambda x: torch.tensordot(x, torch.ones(16), 1),
}


def written(macro: str) -> list[str]:
    """The operators of one list in PyTorch's header."""
    body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*)", HEADER.read_text()).group(1)
    return [".".join(one.split(", ")) for one in re.findall(r"_\(([\w, ]+)\)", body)]


def traced(loss, precision: str) -> Trace:
    def build():
        return Workload(module=nn.Linear(64, 512), batch=torch.randn(ROWS, 64), loss=loss, blocks=("",))

    case = make.case(model=Choice("mlp"), precision=precision, device="fake:cuda", verify="off")
    with mock.patch.object(assemble, "_from_catalogue", return_value=build):
        return follow_case(Trial(case=case)).trace


def test_the_lists_are_those_of_pytorch_and_all_but_cudas_own_kernels_and_old_norms_are_in_one():
    assert list(IN_FLOAT) == written("AT_FORALL_FP32")
    assert list(TO_FLOAT) == written("AT_FORALL_FP32_SET_OPT_DTYPE")
    assert list(PROMOTED) == written("AT_FORALL_PROMOTE")
    assert set(written("AT_FORALL_LOWER_PRECISION_FP")) >= set(IN_HALF)
    left = ruled("AutocastCUDA") - ruled("AutocastCPU") - {*IN_FLOAT, *IN_HALF, *PROMOTED, *TO_FLOAT}
    assert all("cudnn" in name or "fused" in name or "flash" in name or name.startswith("norm.") for name in left), left


@pytest.mark.parametrize("name", [*HALF, *SINGLE])
def test_operators_run_as_on_cuda(name):
    with cuda_autocast(), torch.autocast("cpu", dtype=torch.bfloat16):
        result = {**HALF, **SINGLE}[name](torch.randn(4, 8, 16, dtype=torch.bfloat16))

    assert result.dtype == (torch.bfloat16 if name in HALF else torch.float32)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.bfloat16, "amp-bf16"), (None, "amp-fp16")])
def test_a_model_that_asks_for_autocast_on_cuda_gets_it(dtype, precision):
    def loss(module, batch):
        return F.layer_norm(module(batch), (512,)).mean()

    def under_its_own(module, batch):
        with torch.autocast("cuda", dtype=dtype):
            return loss(module, batch)

    found = [traced(under_its_own, "fp32"), traced(loss, precision)]

    made = [[(one.operator, one.nbytes) for one in trace.allocations if one.phase == "forward"] for trace in found]
    assert made[0] == made[1]
    assert ("aten.native_layer_norm", ROWS * 512 * 4) in made[0]


def test_cross_entropy_takes_its_logarithms_in_half_precision_and_copies_them():
    def loss(module, batch):
        return F.cross_entropy(module(batch), torch.zeros(ROWS, dtype=torch.long))

    made = [(one.operator, one.nbytes) for one in traced(loss, "amp-bf16").allocations]

    assert ("aten._log_softmax", ROWS * 512 * 2) in made
    assert ("aten._to_copy", ROWS * 512 * 4) in made
