"""The compiler of PyTorch is imported where something of it is used, and is then the real one."""

import subprocess
import sys

import pytest

from tests.program import environment

PREDICT = """
import sys
from profiler.core.case import Choice, Trial
from profiler.engines import late_compiler
from profiler.predicting.prediction import predict
from tests import make

if {late}:
    late_compiler.install()
case = make.case("segments:k=2", model=Choice("transformer:layers=2,width=32"), batch_size=2, device="fake:cuda")
print(predict(Trial(case=case, passes=("memory",))).readings)
print("torch._dynamo.eval_frame" in sys.modules, file=sys.stderr)
"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)


@pytest.mark.slow
def test_a_prediction_is_the_same_without_the_compiler():
    late, usual = (run(PREDICT.format(late=late)) for late in (True, False))

    assert late.stdout == usual.stdout
    assert (late.stderr, usual.stderr) == ("False\n", "True\n")


MODEL_LIBRARIES = """
import sys
import torch
from profiler.engines import late_compiler
from profiler.training.own_checkpoints import num_compiled

late_compiler.install()
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._dynamo.utils import is_compile_supported
from scipy.optimize import linear_sum_assignment
import torchvision.ops

user = sys.modules["torchvision.ops.roi_align"]

assert num_compiled() == 0
assert "torch._dynamo.eval_frame" not in sys.modules and "scipy.optimize._lsap" not in sys.modules
assert is_compile_supported("cpu") and linear_sum_assignment([[1, 0], [0, 1]])[1].tolist() == [1, 0]
import scipy.optimize
import torch._dynamo.utils as real
from scipy.optimize._lsap import linear_sum_assignment as assignment

assert user.is_compile_supported is is_compile_supported is real.is_compile_supported, "the user's module has the real"
assert linear_sum_assignment is assignment is scipy.optimize.linear_sum_assignment
assert scipy.optimize.minimize.__module__ == "scipy.optimize._minimize"
assert isinstance(TransformGetItemToIndex(), torch.overrides.TorchFunctionMode)
assert torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]
assert num_compiled() == 1
"""


@pytest.mark.slow
def test_what_model_libraries_import_is_the_real_thing_once_it_is_used():
    run(MODEL_LIBRARIES)
