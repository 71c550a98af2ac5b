"""What is traced without memory is what the allocator sees, in the precisions that CUDA's autocast chooses too."""

import re
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from profiler.core import catalogue, trace_data
from profiler.core.case import OPERATORS, Calibration, Choice, Trial
from profiler.core.errors import Unsupported
from profiler.measuring.trial import measure
from profiler.predicting.cuda_rules import IN_FLOAT, IN_HALF, PROMOTED, TO_FLOAT, cuda_autocast, ruled
from profiler.predicting.fake_tensors import fake_tensors
from profiler.predicting.prediction import follow_case, predict
from profiler.predicting.traced_case import FakeTracer
from profiler.training import STRATEGIES, assemble, models
from profiler.training.workload import Workload
from tests import make
from tests.conftest import measured
from tests.plans import written
from tests.user_models import gradients, saved_hooks

ERROR = 0.001  # of the peak, what is promised
MLP = "mlp"
TRANSFORMER = "transformer:layers=4,width=32,heads=2,sequence=16,vocabulary=64"
USERS = "tests/user_models/architectures.py"
CALIBRATED = [  # what oneDNN keeps for an LSTM is not known
    ("mnist-cnn:channels=8", {}),
    *((f"{USERS}:recurrent:kind={kind},layers=2", {"batch_size": None}) for kind in ("GRU", "RNN")),
    *((f"{USERS}:{factory}", {"batch_size": None}) for factory in ("shared_weights", "segmentation")),
    *((TRANSFORMER, setting) for setting in ({"accumulate": 3}, {"keep_gradients": True}, {"precision": "amp-bf16"})),
]
EVERY = ("none", "segments:k=2", "all", "recursive", "from-start", "selective:save=matmul", "offload", "plan")


def case(model: str, strategy: str = "none", **fields):
    chosen = catalogue.resolve(Choice(strategy), STRATEGIES)
    named = catalogue.resolve(Choice(model), models.TABLE)
    return make.case(chosen, **{"model": named, "batch_size": 4, "verify": "off", **fields})


def traced(model: str, build=None, **fields) -> trace_data.Trace:
    return follow_case(Trial(case=case(model, **{"device": "fake:cpu", **fields})), build=build).trace


@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.parametrize("model", [MLP, pytest.param(TRANSFORMER, marks=pytest.mark.nightly)])
def test_peak_and_saved_bytes_are_those_of_the_allocator(model, strategy, tmp_path):
    strategy = written(strategy, model, tmp_path)
    real = measure(Trial(case=case(model, strategy, optimizer=Choice("adamw")), passes=("memory",))).readings

    found = predict(Trial(case=case(model, strategy, optimizer=Choice("adamw"), device="fake:cpu"))).readings

    assert found.saved_bytes == real.saved_bytes
    assert found.static_bytes == real.static_bytes
    assert found.start_bytes == real.start_bytes
    assert found.peak_phase == real.peak_phase
    for phase, bytes_ in real.phases.items():  # a kernel of the CPU may box a number: 8 bytes that no tensor shows
        assert found.phases[phase].allocated == pytest.approx(bytes_.allocated, rel=ERROR)
    assert found.peak_bytes == pytest.approx(real.peak_bytes, rel=ERROR)


def test_parameters_without_a_gradient_have_neither_gradient_nor_state():
    def build() -> Workload:
        module, batch = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 800)]), torch.ones(2, 8)  # the second is not used
        return Workload(module=module, blocks=("0",), batch=batch, loss=lambda module, batch: module[0](batch).sum())

    found = traced(MLP, build, optimizer=Choice("adam"))

    held = {kind: sum(one.nbytes for one in found.allocations if one.category == kind) for kind in trace_data.STATIC}
    assert held["parameters"] == 4 * (8 * 8 + 8 + 8 * 800 + 800)
    assert held["gradients"] == 2 * 4 * (8 * 8 + 8)  # the last step's, and this one's
    assert held["optimizer"] == 2 * 4 * (8 * 8 + 8) + 2 * 4


def test_on_cuda_dropout_keeps_a_mask_of_one_byte_an_element_and_storages_are_multiples_of_512():
    model = "transformer:layers=1,width=32,heads=2,sequence=16,vocabulary=64,dropout="

    with_dropout, without = (
        [one for one in traced(f"{model}{rate}", device="fake:cuda").allocations if one.operator.endswith("_dropout")]
        for rate in (0.1, 0)
    )

    assert 4 * 16 * 32 in {one.nbytes for one in with_dropout if one.category == "saved"}  # batch, time, width
    assert not without
    assert all(one.nbytes % 512 == 0 for one in traced(MLP, device="fake:cuda").allocations)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "fields"), CALIBRATED, ids=str)
@pytest.mark.parametrize("strategy", ["none", "all"])
def test_on_a_cpu_what_is_hidden_in_none_is_that_of_every_strategy(model, fields, strategy):
    hidden = measure(Trial(case=case(model, **fields), passes=(OPERATORS,))).readings.hidden_bytes
    real = measure(Trial(case=case(model, strategy, **fields), passes=("memory",))).readings

    fake = case(model, strategy, device="fake:cpu", **fields)
    calibrated = predict(Trial(case=fake, calibration=Calibration(hidden_bytes=hidden))).readings

    assert calibrated.saved_bytes == real.saved_bytes
    assert calibrated.peak_bytes == pytest.approx(real.peak_bytes, rel=ERROR)


INSTRUCTIONS = st.lists(
    st.tuples(st.sampled_from(["make", "add", "view", "write", "drop"]), st.integers(0, 99), st.integers(0, 99)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(INSTRUCTIONS)
def test_random_programs_hold_what_a_plain_interpreter_counts(program):
    values: list[tuple[torch.Tensor, int]] = []  # each with the number of its storage, which lives as long as one does
    sizes: list[int] = []  # of the storages, in bytes
    found, expected = [], []

    with fake_tensors(), FakeTracer(nn.Identity()) as tracer:
        tracer.phase = "forward"
        for word, one, other in program:
            at = one % len(values) if values else 0
            if word == "make":
                values.append((torch.empty(one + 1), len(sizes)))
                sizes.append(4 * (one + 1))
            elif values and word == "add":
                values.append((values[at][0].flatten()[:1] + 1, len(sizes)))
                sizes.append(4)
            elif values and word == "view":
                values.append((values[at][0].view(-1), values[at][1]))
            elif values and word == "write":
                values[at][0].mul_(other)
            elif values and word == "drop":
                del values[at]
            found.append(sum(life.nbytes for life in tracer.blocks.lives if life.died is None))
            expected.append(sum(sizes[storage] for storage in {storage for _, storage in values}))

    assert found == expected


FILE = Path(gradients.__file__)
BATCH, WIDTH, FLOAT = 64, 256, 4
HIDDEN = BATCH * WIDTH * FLOAT  # the activation, and the gradient that is kept
SAVED = HIDDEN + FLOAT  # ReLU's result, which the last layer takes too; and the loss


@pytest.mark.parametrize("keeps", ["gradient", "nothing"])
def test_a_forward_that_frees_a_kept_gradient_saves_what_it_makes(keeps):
    model = Choice.of(f"{FILE}:watched", {"keeps": keeps})

    readings = measured(model, "none", batch_size=BATCH, passes=("memory",)).readings
    predicted = predict(Trial(case=make.case("none", model=model, batch_size=BATCH, device="fake:cpu"))).readings

    assert readings.saved_bytes == predicted.saved_bytes == SAVED
    kept = HIDDEN if keeps == "gradient" else 0
    static = readings.static_bytes
    assert readings.start_bytes == static["parameters"] + static["inputs"] + kept  # the gradients are zeroed to None


# --- the model's own hooks on saved tensors: followed as they run, or refused; the numbers are by hand

HOOKS = Path(saved_hooks.__file__)
ROWS, COLUMNS, LAYERS = 64, 128, 3
ACTIVATION, WEIGHT = ROWS * COLUMNS * FLOAT, COLUMNS * COLUMNS * FLOAT
PACKED = 2 * LAYERS * ACTIVATION + (LAYERS - 1) * WEIGHT  # squares' and layers' inputs; the first needs no weight back
INSIDE = (2 * LAYERS - 1) * ACTIVATION  # without the weights and the batch, which are there in every step
PACKED_BYTES = {  # with the loss
    "half": PACKED // 2 + FLOAT,
    "save_on_cpu": INSIDE + FLOAT,  # on a CPU, nothing is copied
    "recomputed": (LAYERS - 1) * ACTIVATION + FLOAT,
}
GRANULE = 512  # of CUDA's allocator, which the loss takes: under save_on_cpu there is nothing else


def choice(hooks: str) -> Choice:
    return Choice.of(f"{HOOKS}:make", {"hooks": hooks})


def predicted(hooks: str, device: str = "fake:cpu"):
    return predict(Trial(case=make.case("none", model=choice(hooks), batch_size=ROWS, device=device))).readings


@pytest.mark.slow
@pytest.mark.parametrize("hooks", PACKED_BYTES)
def test_what_hooks_pack_is_predicted_as_it_is_measured_and_as_it_is_by_hand(hooks):
    readings = measured(choice(hooks), "none", batch_size=ROWS, passes=("memory",)).readings

    foreseen = predicted(hooks)

    assert foreseen.saved_bytes == readings.saved_bytes == PACKED_BYTES[hooks]
    assert foreseen.peak_bytes == readings.peak_bytes


def test_hooks_to_the_host_leave_the_loss_on_a_gpu_and_what_cannot_be_followed_is_refused():
    """What those to the host take there is rehearsed: tests/test_rehearse.py."""
    assert predicted("save_on_cpu", "fake:h100").saved_bytes == GRANULE
    with pytest.raises(Unsupported, match="a quantized tensor cannot be traced"):
        predicted("quantized")
    for hooks in ("half", "pinned_host"):
        with pytest.raises(Unsupported, match="`gcprof rehearse` runs them"):
            predicted(hooks, "fake:h100")


# --- on a CPU, the precisions that CUDA's autocast chooses


HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
TOKENS = 40
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


def listed(macro: str) -> list[str]:
    body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*)", HEADER.read_text()).group(1)
    return [".".join(one.split(", ")) for one in re.findall(r"_\(([\w, ]+)\)", body)]


def traced_loss(loss, precision: str) -> trace_data.Trace:
    def build():
        return Workload(module=nn.Linear(64, 512), batch=torch.randn(TOKENS, 64), loss=loss, blocks=("",))

    case = make.case(model=Choice("mlp"), precision=precision, device="fake:cuda", verify="off")
    with mock.patch.object(assemble, "_from_catalogue", return_value=build):
        return follow_case(Trial(case=case)).trace


def test_the_lists_are_those_of_pytorch_and_all_but_cudas_own_kernels_and_old_norms_are_in_one():
    assert list(IN_FLOAT) == listed("AT_FORALL_FP32")
    assert list(TO_FLOAT) == listed("AT_FORALL_FP32_SET_OPT_DTYPE")
    assert list(PROMOTED) == listed("AT_FORALL_PROMOTE")
    assert set(listed("AT_FORALL_LOWER_PRECISION_FP")) >= set(IN_HALF)
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

    found = [traced_loss(under_its_own, "fp32"), traced_loss(loss, precision)]

    made = [[(one.operator, one.nbytes) for one in trace.allocations if one.phase == "forward"] for trace in found]
    assert made[0] == made[1]
    assert ("aten.native_layer_norm", TOKENS * 512 * 4) in made[0]


def test_cross_entropy_takes_its_logarithms_in_half_precision_and_copies_them():
    def loss(module, batch):
        return F.cross_entropy(module(batch), torch.zeros(TOKENS, dtype=torch.long))

    made = [(one.operator, one.nbytes) for one in traced_loss(loss, "amp-bf16").allocations]

    assert ("aten._log_softmax", TOKENS * 512 * 2) in made
    assert ("aten._to_copy", TOKENS * 512 * 4) in made
