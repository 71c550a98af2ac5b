"""A step that is traced on the hollow device: its bytes, lines, categories and words, and its stages."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from profiler.analysis import live_bytes
from profiler.core import gpu_specs, plan_file
from profiler.core.case import Choice, Trial
from profiler.core.errors import UserError
from profiler.core.trace_data import STATIC, Followed, by_category, host_rate, live
from profiler.core.units import MIB
from profiler.engines import answer
from profiler.planning import simulator
from profiler.planning.chain import plan_file_of
from profiler.planning.simulator import simulate
from profiler.planning.solver import frontier
from profiler.workflows import stages
from tests import make
from tests.program import gcprof

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("hollow")]

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


def test_the_peak_is_the_sum_of_what_the_tensors_take_with_their_operators_and_the_users_lines(here):
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
def test_the_traced_step_has_the_bytes_of_the_measured_one(engine, of):
    (record,) = engine.run([Trial(case=of)])

    trace = followed(engine, "follow", of).trace

    assert max(live(trace)) == record.readings.peak_bytes
    assert live_bytes.peak(trace).phase in (record.readings.peak_phase, "recompute")
    assert {category: nbytes[0] for category, nbytes in by_category(trace).items() if nbytes[0]} == {
        name: nbytes for name, nbytes in record.readings.static_bytes.items() if nbytes and name in STATIC
    }


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_the_peak_of_other_blocks_is_that_of_a_step_with_them_checkpointed(engine, precision):
    of = case("transformer:layers=4,width=64", precision=precision)

    choices = followed(engine, "follow_with_choices", of).choices

    few = (choices.own, *choices.others[:3])
    cases = [replace(of, strategy=Choice("all"), blocks=choice.pattern or None) for choice in few]
    records = engine.run([Trial(case=one, passes=("memory",)) for one in cases])
    peaks = [record.readings.peak_bytes for record in records]
    casts = 0.01 if precision == "amp-bf16" else 0  # costs of stages count the casts of a weight once
    assert [choice.all_bytes for choice in few] == pytest.approx(peaks, rel=casts, abs=0)
    assert all(choice.floor_bytes <= peak for choice, peak in zip(few, peaks, strict=True))


def test_the_backward_of_a_function_of_the_users_is_of_the_module_that_called_it(engine):
    found = followed(engine, "follow", case(f"{USER_MODELS / 'causes.py'}:make:kind=squaring"))

    products = [
        one.module for one in found.trace.operators if one.phase == "backward" and one.name == "aten.mul.Tensor"
    ]
    assert [products.count(block) for block in ("0", "1", "2", "3")] == 4 * [2]  # 2 * x * gradient


def test_each_checkpointed_block_is_recomputed_once(engine):
    found = followed(engine, "follow", CASES[0])

    spans = live_bytes.recomputes(found.trace)
    stage = live_bytes.stage_of(found.blocks)
    blocks = [{stage(one.module) for one in found.trace.operators[first - 1 : last]} - {""} for first, last in spans]
    assert blocks == [{block} for block in reversed(found.blocks)]


# --- its stages: their bytes are those of PyTorch's own allocator, with and without checkpoints


MOST_OFF = 0.001  # of the peak: stages add up to it but for small blocks at their boundaries


def peaks(engine, of, plans, folder) -> list[int]:
    """The peak of a rehearsed step under each of the plans, which are of a chain each."""
    cases = []
    for number, (chain, plan) in enumerate(plans):
        plan_file.write(plan_file_of(chain, plan), folder / f"{number}.json")
        cases.append(replace(of, strategy=Choice.of("plan", {"file": folder / f"{number}.json"})))
    records = engine.run([Trial(case=case, passes=("memory",)) for case in (of, *cases)])
    return [record.readings.peak_bytes for record in records]


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_a_steps_peak_under_a_plan_is_that_of_its_stages(engine, tmp_path, precision):
    model = Choice("transformer:layers=4,width=64")
    of = make.case("none", model=model, device="rehearse:h100", batch_size=4, precision=precision)

    chain = stages.stages(engine, of, None)

    plans = [simulator.all_stages(chain), frontier(chain, levels=1).point(0).plan]
    whole, *under = peaks(engine, of, [(chain, plan) for plan in plans], tmp_path)
    assert chain.traced_peak_bytes == whole
    assert [simulate(chain, plan).peak_bytes for plan in plans] == pytest.approx(under, rel=MOST_OFF)
    blocks = [stage for stage in chain.stages if not stage.pinned]
    assert all(stage.forward_seconds > 0 and stage.backward_seconds > 0 and stage.options for stage in blocks)


def test_a_steps_peak_with_inputs_in_host_memory_is_that_of_its_stages(engine, tmp_path):
    of = make.case("none", model=Choice("transformer:layers=6,width=128,sequence=256"), device="rehearse:h100")
    chain = replace(stages.stages(engine, of, None), host_rate=host_rate(gpu_specs.find("h100")))
    points = [point for point in frontier(chain, offload=True) if point.plan.offloaded]
    chosen = (points[0], points[len(points) // 2], points[-1])

    _, *under = peaks(engine, of, [(chain, point.plan) for point in chosen], tmp_path)

    assert [point.peak_bytes for point in chosen] == pytest.approx(under, rel=MOST_OFF)


def test_stages_of_a_compiled_step_are_refused(engine):
    factory = f"{USER_MODELS}/compiled.py:make:way=blocks,backend=aot_eager"

    with pytest.raises(UserError, match="what each block holds is not known"):
        stages.stages(engine, make.case(model=Choice(factory), device="rehearse:h100", batch_size=None), None)
