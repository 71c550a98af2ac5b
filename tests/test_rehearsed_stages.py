"""The stages of a rehearsed model: their bytes are those of PyTorch's own allocator, with and without checkpoints."""

from __future__ import annotations

import msgspec
import pytest

from profiler.core import plan_file
from profiler.core.case import Choice, Trial
from profiler.engines.local import Local
from profiler.planning import candidates
from profiler.planning.plan import plan_file_of
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


def test_seconds_are_estimated_and_options_have_bytes(engine):
    of = make.case("none", model=Choice("transformer:layers=2,width=64"), device="rehearse:h100", batch_size=4)

    chain = stages.stages(engine, of, None)

    blocks = [stage for stage in chain.stages if not stage.pinned]
    assert all(stage.forward_seconds > 0 and stage.backward_seconds > 0 for stage in blocks)
    assert all(0 < option.saved_bytes <= stage.saved_bytes for stage in blocks for option in stage.options)
    assert all(stage.options for stage in blocks)
