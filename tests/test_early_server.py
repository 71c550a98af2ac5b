"""The server that a command begins with: what is taken and dropped; PyTorch's compiler is imported where it is used."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from profiler.core import server_process
from profiler.core.server_process import PRELOAD, PRELOAD_TO_REHEARSE, PRELOAD_TO_TRACE, start_early, take
from tests.program import environment


@pytest.mark.parametrize(
    ("words", "preload"),
    [
        ("predict mlp --device cpu", PRELOAD_TO_TRACE),
        ("run mlp", PRELOAD),
        ("rehearse mlp", PRELOAD_TO_REHEARSE),
        ("run --device rehearse:t4", PRELOAD_TO_REHEARSE),
        ("plan mlp --device t4", PRELOAD_TO_REHEARSE),
        ("", None),
        ("run --dry-run", None),
        ("run --engine=slurm", None),
        ("rehearse --device t4 -- python train.py", None),
        ("plan --stages stages.json", None),
    ],
)
def test_a_command_has_the_server_that_it_will_need_before_its_words_are_read(monkeypatch, words, preload):
    started, dropped = list[SimpleNamespace](), list[bool]()

    def start(given, *, rehearses):
        started.append(SimpleNamespace(preload=given, rehearses=rehearses, drop=lambda: dropped.append(True)))
        return started[-1]

    monkeypatch.setattr(server_process, "_early", [])
    monkeypatch.setattr(server_process, "start", start)
    monkeypatch.delenv("GCPROF_HOLLOW", raising=False)

    start_early(words.split())

    assert [one.preload for one in started] == ([preload] if preload else [])
    if preload:
        assert started[0].rehearses == (preload is PRELOAD_TO_REHEARSE)
        assert [take(preload), take(preload)] == [started[0], None]
        start_early(words.split())
        assert take(("another",)) is None
        assert dropped == [True]


MODEL_LIBRARIES = """
import sys
import torch
from profiler.core.case import Choice, Trial
from profiler.engines import late_compiler
from profiler.predicting.prediction import predict
from profiler.training.own_checkpoints import num_compiled
from tests import make

late_compiler.install()
case = make.case("segments:k=2", model=Choice("transformer:layers=2,width=32"), batch_size=2, device="fake:cuda")
assert predict(Trial(case=case)).outcome == "ok"
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
def test_a_prediction_needs_no_compiler_and_what_model_libraries_import_is_the_real_thing_once_it_is_used():
    subprocess.run([sys.executable, "-c", MODEL_LIBRARIES], env=environment(), check=True)
