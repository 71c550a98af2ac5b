"""The stages of a rehearsed model: their bytes are those of PyTorch's own allocator, with and without checkpoints."""

import msgspec
import pytest

from profiler.core import gpu_specs, plan_file
from profiler.core.case import Choice, Trial
from profiler.core.errors import UserError
from profiler.core.trace_data import host_rate
from profiler.engines.local import Local
from profiler.planning import candidates
from profiler.planning.chain import plan_file_of
from profiler.planning.simulator import simulate
from profiler.planning.solver import frontier
from profiler.workflows import stages
from tests import make
from tests.program import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

MOST_OFF = 0.001  # of the peak: stages add up to it but for small blocks at their boundaries


@pytest.fixture(scope="module")
def engine(hollow):
    with Local(stage_seconds=PATIENCE_SECONDS) as engine:
        yield engine


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_a_steps_peak_under_a_plan_is_that_of_its_stages(engine, tmp_path, precision):
    model = Choice("transformer:layers=4,width=64")
    of = make.case("none", model=model, device="rehearse:h100", batch_size=4, precision=precision)

    chain = stages.stages(engine, of, None)

    plans = {"all": candidates.all_stages(chain), "least": frontier(chain, levels=1).point(0).plan}
    cases = {}
    for name, plan in plans.items():
        plan_file.write(plan_file_of(chain, plan), tmp_path / f"{name}.json")
        cases[name] = msgspec.structs.replace(of, strategy=Choice.of("plan", {"file": tmp_path / f"{name}.json"}))
    none, *under = engine.run([Trial(case=case, passes=("memory",)) for case in (of, *cases.values())])
    assert chain.traced_peak_bytes == none.readings.peak_bytes
    for plan, record in zip(plans.values(), under, strict=True):
        assert simulate(chain, plan).peak_bytes == pytest.approx(record.readings.peak_bytes, rel=MOST_OFF)


def test_a_steps_peak_with_inputs_in_host_memory_is_that_of_its_stages(engine, tmp_path):
    of = make.case("none", model=Choice("transformer:layers=6,width=128,sequence=256"), device="rehearse:h100")
    chain = msgspec.structs.replace(stages.stages(engine, of, None), host_rate=host_rate(gpu_specs.find("h100")))
    points = [point for point in frontier(chain, offload=True) if point.plan.offloaded]

    cases = []
    for number, point in enumerate((points[0], points[len(points) // 2], points[-1])):
        plan_file.write(plan_file_of(chain, point.plan), tmp_path / f"{number}.json")
        strategy = Choice.of("plan", {"file": tmp_path / f"{number}.json"})
        cases.append((point, msgspec.structs.replace(of, strategy=strategy)))
    records = engine.run([Trial(case=case, passes=("memory",)) for _, case in cases])
    for (point, _), record in zip(cases, records, strict=True):
        assert record.readings.peak_bytes == pytest.approx(point.peak_bytes, rel=MOST_OFF)


READING = """
import torch
from torch import nn

class Reading(nn.Module):
    def __init__(self, reads):
        super().__init__()
        self.reads = reads
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        if self.reads and x[0, 0].item() > 1e30:
            raise ValueError
        return x.square().mean()

def make(batch_size=512, reads=True, compiled=False):
    net = Reading(reads)
    for block in net.blocks if compiled else ():
        block.compile(backend="aot_eager")
    return net, torch.randn(batch_size, 64)
"""


def test_stages_of_a_step_that_reads_values_say_so_and_of_a_compiled_one_are_refused(engine, tmp_path):
    (tmp_path / "reading.py").write_text(READING)

    def chain(words: str):
        model = Choice(f"{tmp_path / 'reading.py'}:make:{words}")
        return stages.stages(engine, make.case("none", model=model, device="rehearse:h100", batch_size=512), None)

    plain, reading = map(chain, ("reads=false", "reads=true"))

    assert plain.notes == ()
    assert "reads values" in reading.notes[0]
    assert [stage.saved_bytes for stage in reading.stages[:3]] == [stage.saved_bytes for stage in plain.stages[:3]]
    with pytest.raises(UserError, match="what each block holds is not known"):
        chain("reads=false,compiled=true")


def test_seconds_are_estimated_and_options_have_bytes(engine):
    of = make.case("none", model=Choice("transformer:layers=2,width=64"), device="rehearse:h100", batch_size=4)

    chain = stages.stages(engine, of, None)

    blocks = [stage for stage in chain.stages if not stage.pinned]
    assert all(stage.forward_seconds > 0 and stage.backward_seconds > 0 for stage in blocks)
    assert all(0 < option.saved_bytes <= stage.saved_bytes for stage in blocks for option in stage.options)
    assert all(stage.options for stage in blocks)
