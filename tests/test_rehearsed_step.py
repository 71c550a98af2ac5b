"""A step that is traced on the hollow device: its bytes, lines, categories and words."""

import json
from pathlib import Path

import msgspec
import pytest

from profiler.analysis import live_bytes
from profiler.core.case import Choice, Trial, encode
from profiler.core.trace_data import STATIC, Followed, by_category, live
from profiler.core.units import MIB
from profiler.engines import read_answer
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


def line(word):
    """Where the comment stands in the user's file."""
    return next(f"own.py:{at}" for at, text in enumerate(OWN.splitlines(), start=1) if text.endswith(f"# {word}"))


@pytest.fixture(scope="module")
def own(hollow, tmp_path_factory):
    """What `gcprof explain` says of the user's model, as text and as JSON."""
    here = tmp_path_factory.mktemp("own")
    (here / "own.py").write_text(OWN, encoding="utf-8")
    words = ("explain", "own.py:make", "--device", "rehearse:h100")
    text, document = gcprof(*words, cwd=here), gcprof(*words, "--json", cwd=here)
    assert (text.returncode, document.returncode) == (0, 0), text.stderr + document.stderr
    return text, json.loads(document.stdout)


def test_the_peak_is_the_sum_of_what_the_tensors_take(own):
    weight, inputs, result, gradient_of_it = 4 * [4 * NUMBERS]
    loss, gradient_of_loss = GRANULE, GRANULE

    found = own[1]

    assert found["peak"]["nbytes"] == weight + inputs + result + gradient_of_it + loss + gradient_of_loss
    assert {share["name"]: share["nbytes"] for share in found["categories"]} == {
        "parameters": weight,
        "inputs": inputs,
        "saved": result + loss,
        "temporaries": gradient_of_it + gradient_of_loss,
    }


def test_the_largest_holders_have_their_operator_and_the_users_line(own):
    largest = [(one["operator"], one["line"], one["category"], one["nbytes"]) for one in own[1]["holders"][:4]]

    assert sorted(largest) == sorted(
        [
            ("", line("weight"), "parameters", 4 * NUMBERS),
            ("", line("inputs"), "inputs", 4 * NUMBERS),
            ("aten.exp", line("exp"), "saved", 4 * NUMBERS),
            ("aten.mul.Tensor", line("exp"), "temporaries", 4 * NUMBERS),  # the backward of that line
        ]
    )


@pytest.fixture(scope="module")
def rehearsing(hollow):
    with Local(stage_seconds=PATIENCE_SECONDS, rehearses=True) as engine:
        yield engine


def case(model, strategy="none", **settings):
    return make.case(strategy, **{"model": Choice(model), "device": "rehearse:h100", "batch_size": 4, **settings})


def followed(engine, entry, of):
    answer = engine.ask(f"profiler.engines.{entry}", encode(Trial(case=of)).decode(), failing="no answer")
    return read_answer(answer, "followed", Followed)


TRANSFORMER = "transformer:layers=2,width=64"
CASES = [
    case("mlp:width=64", optimizer=Choice("adamw")),
    case(TRANSFORMER, "all", optimizer=Choice("adamw")),
    case(TRANSFORMER, "segments:k=2", precision="amp-bf16", accumulate=2),
    case(TRANSFORMER, "recursive", keep_gradients=True),
    case(f"{USER_MODELS}/wrapped_optimizers.py:ahead"),  # whose slow weights are an attribute of the optimizer
    case(f"{USER_MODELS}/wrapped_optimizers.py:in_backward"),  # whose optimizers hooks step
    case(f"{USER_MODELS}/encoder.py:make", device="rehearse:t4", batch_size=8),
    case(f"{USER_MODELS}/encoder.py:make", "selective:save=matmul", device="rehearse:t4", batch_size=8),
    pytest.param(  # whose kernels allocate without a call
        case("mlp:width=64", "compile-budget:budget=0.5"), marks=pytest.mark.nightly
    ),
]


@pytest.mark.parametrize("of", CASES, ids=lambda of: f"{of.model.name.rpartition('/')[2]} {of.strategy}")
def test_the_traced_step_has_the_bytes_of_the_measured_one(rehearsing, of):
    (record,) = rehearsing.run([Trial(case=of)])

    trace = followed(rehearsing, "rehearsed:follow", of).trace

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

    choices = followed(rehearsing, "rehearsed:follow_with_choices", of).choices

    few = (choices.own, *choices.others[:3])
    cases = [msgspec.structs.replace(of, strategy=Choice("all"), blocks=choice.pattern or None) for choice in few]
    records = rehearsing.run([Trial(case=one, passes=("memory",)) for one in cases])
    peaks = [record.readings.peak_bytes for record in records]
    casts = 0.01 if precision == "amp-bf16" else 0  # costs of stages count the casts of a weight once
    assert [choice.all_bytes for choice in few] == pytest.approx(peaks, rel=casts, abs=0)
    assert all(choice.floor_bytes <= peak for choice, peak in zip(few, peaks, strict=True))


def test_the_backward_of_a_function_of_the_users_is_of_the_module_that_called_it(rehearsing):
    found = followed(rehearsing, "rehearsed:follow", case(f"{USER_MODELS / 'causes.py'}:squaring"))

    products = [
        one.module for one in found.trace.operators if one.phase == "backward" and one.name == "aten.mul.Tensor"
    ]
    assert [products.count(block) for block in ("0", "1", "2", "3")] == 4 * [2]  # 2 * x * gradient


def test_each_checkpointed_block_is_recomputed_once(rehearsing):
    found = followed(rehearsing, "rehearsed:follow", CASES[1])

    spans = live_bytes.recomputes(found.trace)
    stage = live_bytes.stage_of(found.blocks)
    blocks = [{stage(one.module) for one in found.trace.operators[first - 1 : last]} - {""} for first, last in spans]
    assert blocks == [{block} for block in reversed(found.blocks)]


def test_what_ranks_hold_is_not_followed_and_says_so(rehearsing):
    of = msgspec.structs.replace(CASES[0], ranks=2, parallel=Choice("ddp"))

    answer = rehearsing.ask("profiler.engines.rehearsed:follow", encode(Trial(case=of)).decode(), failing="no answer")

    assert "leave the ranks out" in answer["refused"]


@pytest.mark.nightly
def test_a_rehearsed_run_is_explained_as_it_was_rehearsed(hollow, here):
    assert gcprof("rehearse", "mlp", "--device", "h100", "-o", "run", cwd=here).returncode == 0

    done = gcprof("explain", "run", cwd=here)

    assert done.stdout.splitlines()[0].endswith(", h100: rehearsed")
    assert "the rehearsal is +0.00 % off" in done.stderr
    assert "measured: " not in done.stdout + done.stderr
