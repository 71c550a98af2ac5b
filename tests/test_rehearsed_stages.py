"""The stages of a rehearsed model: their bytes are those of PyTorch's own allocator, with and without checkpoints."""

import pytest
from msgspec.structs import replace

from profiler.core import gpu_specs, plan_file
from profiler.core.case import Choice, Trial
from profiler.core.errors import UserError
from profiler.core.trace_data import host_rate
from profiler.engines.local import Local
from profiler.planning import simulator
from profiler.planning.chain import plan_file_of
from profiler.planning.simulator import simulate
from profiler.planning.solver import frontier
from profiler.workflows import stages
from tests import make
from tests.program import PATIENCE_SECONDS
from tests.user_models import compiled

pytestmark = pytest.mark.slow

MOST_OFF = 0.001  # of the peak: stages add up to it but for small blocks at their boundaries


@pytest.fixture(scope="module")
def engine(hollow):
    with Local(stage_seconds=PATIENCE_SECONDS) as engine:
        yield engine


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
    factory = f"{compiled.__file__}:make:way=blocks,backend=aot_eager"

    with pytest.raises(UserError, match="what each block holds is not known"):
        stages.stages(engine, make.case(model=Choice(factory), device="rehearse:h100", batch_size=None), None)
