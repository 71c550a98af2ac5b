"""A step that is traced on the hollow device: its bytes, lines, categories and words."""

import json
from pathlib import Path

import msgspec
import pytest

from profiler.analysis import live_bytes
from profiler.core.case import Choice, Trial
from profiler.core.trace_data import STATIC, Followed, by_category, live
from profiler.core.units import MIB
from profiler.engines import answer
from profiler.engines.local import Local
from tests import make
from tests.program import PATIENCE_SECONDS, gcprof

pytestmark = pytest.mark.slow

USER_MODELS = Path(__file__).parent / "user_models"
GRANULE = 512  # bytes: what PyTorch's allocator rounds up to
NUMBERS = MIB  # in each tensor: 4 MiB

OWN = f"""
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones({NUMBERS}))  # weight

    def forward(self, x):
        scaled = x * self.weight
        return scaled.exp()  # exp

def make():
    return Net(), torch.ones({NUMBERS}), lambda output: output.sum()  # inputs
"""


def test_the_peak_is_the_sum_of_what_the_tensors_take_with_their_operators_and_the_users_lines(hollow, here):
    (here / "own.py").write_text(OWN, encoding="utf-8")
    lines = {text.rpartition("# ")[2]: f"own.py:{at}" for at, text in enumerate(OWN.splitlines(), start=1)}
    weight, inputs, result, gradient_of_it = 4 * [4 * NUMBERS]
    loss, gradient_of_loss = GRANULE, GRANULE

    done = gcprof("explain", "own.py:make", "--device", "rehearse:h100", "--json", cwd=here)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["peak"]["nbytes"] == weight + inputs + result + gradient_of_it + loss + gradient_of_loss
    assert {share["name"]: share["nbytes"] for share in found["categories"]} == {
        "parameters": weight,
        "inputs": inputs,
        "saved": result + loss,
        "temporaries": gradient_of_it + gradient_of_loss,
    }
    largest = [(one["operator"], one["line"], one["category"], one["nbytes"]) for one in found["holders"][:4]]
    assert sorted(largest) == sorted(
        [
            ("", lines["weight"], "parameters", 4 * NUMBERS),
            ("", lines["inputs"], "inputs", 4 * NUMBERS),
            ("aten.exp", lines["exp"], "saved", 4 * NUMBERS),
            ("aten.mul.Tensor", lines["exp"], "temporaries", 4 * NUMBERS),  # the backward of that line
        ]
    )


@pytest.fixture(scope="module")
def rehearsing(hollow):
    with Local(stage_seconds=PATIENCE_SECONDS, rehearses=True) as engine:
        yield engine


def case(model, strategy="none", **settings):
    return make.case(strategy, **{"model": Choice(model), "device": "rehearse:h100", "batch_size": 4, **settings})


def followed(engine, entry, of):
    return answer(engine, entry, Trial(case=of), Followed, failing="no answer")


TRANSFORMER = "transformer:layers=2,width=64"
CASES = [
    case(TRANSFORMER, "all", optimizer=Choice("adamw")),
    case(TRANSFORMER, "segments:k=2", precision="amp-bf16", accumulate=2),
    case(f"{USER_MODELS}/optimizers.py:ahead"),  # whose slow weights are an attribute of the optimizer
    case(f"{USER_MODELS}/optimizers.py:in_backward"),  # whose optimizers hooks step
    case(f"{USER_MODELS}/small_llm.py:make:layers=6", "selective:save=matmul", device="rehearse:t4", batch_size=8),
    pytest.param(  # whose kernels allocate without a call
        case("mlp:width=64", "compile-budget:budget=0.5"), marks=pytest.mark.nightly
    ),
]


@pytest.mark.parametrize("of", CASES, ids=lambda of: f"{of.model.name.rpartition('/')[2]} {of.strategy}")
def test_the_traced_step_has_the_bytes_of_the_measured_one(rehearsing, of):
    (record,) = rehearsing.run([Trial(case=of)])

    trace = followed(rehearsing, "follow", of).trace

    held = live(trace)
    assert max(held) == record.readings.peak_bytes
    assert live_bytes.peak(trace).phase in (record.readings.peak_phase, "recompute")
    before = {category: nbytes[0] for category, nbytes in by_category(trace).items() if nbytes[0]}
    assert before == {
        name: nbytes for name, nbytes in record.readings.static_bytes.items() if nbytes and name in STATIC
    }


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_the_peak_of_other_blocks_is_that_of_a_step_with_them_checkpointed(rehearsing, precision):
    of = case("transformer:layers=4,width=64", precision=precision)

    choices = followed(rehearsing, "follow_with_choices", of).choices

    few = (choices.own, *choices.others[:3])
    cases = [msgspec.structs.replace(of, strategy=Choice("all"), blocks=choice.pattern or None) for choice in few]
    records = rehearsing.run([Trial(case=one, passes=("memory",)) for one in cases])
    peaks = [record.readings.peak_bytes for record in records]
    casts = 0.01 if precision == "amp-bf16" else 0  # costs of stages count the casts of a weight once
    assert [choice.all_bytes for choice in few] == pytest.approx(peaks, rel=casts, abs=0)
    assert all(choice.floor_bytes <= peak for choice, peak in zip(few, peaks, strict=True))


def test_the_backward_of_a_function_of_the_users_is_of_the_module_that_called_it(rehearsing):
    found = followed(rehearsing, "follow", case(f"{USER_MODELS / 'causes.py'}:make:kind=squaring"))

    products = [
        one.module for one in found.trace.operators if one.phase == "backward" and one.name == "aten.mul.Tensor"
    ]
    assert [products.count(block) for block in ("0", "1", "2", "3")] == 4 * [2]  # 2 * x * gradient


def test_each_checkpointed_block_is_recomputed_once(rehearsing):
    found = followed(rehearsing, "follow", CASES[0])

    spans = live_bytes.recomputes(found.trace)
    stage = live_bytes.stage_of(found.blocks)
    blocks = [{stage(one.module) for one in found.trace.operators[first - 1 : last]} - {""} for first, last in spans]
    assert blocks == [{block} for block in reversed(found.blocks)]
