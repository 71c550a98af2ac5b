"""That `--machine` doubles another machine in every process of a test, so that a suite that passes there tells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from profiler.core.stats import MOST_STEPS
from profiler.runs import store
from tests import machines
from tests.program import gcprof

QUICK = ("--strategies", "none", "--device", "cpu", "--rounds", "1", "--samples", "2", "--warmup", "0")


@pytest.mark.slow
def test_a_trial_is_on_the_machine_that_its_program_was_started_on(tmp_path: Path):
    machine = machines.TABLE["sundial"]
    variables = {
        machines.VARIABLE: "sundial",
        "PYTHONPATH": os.pathsep.join([str(machines.SITE), str(machines.ROOT)]),
    }

    done = gcprof("run", "--model", "mlp", *QUICK, "-o", "run", cwd=tmp_path, **variables)

    assert done.returncode == 0, done.stderr
    (record,) = store.load(tmp_path / "run").records
    assert record.environment.device_name == machine.processor
    assert {one.num_cores for one in record.readings.conditions} == {machine.num_cores}
    assert record.readings.steps_per_sample == MOST_STEPS  # of a step that takes no longer than a tick
    for seconds in record.readings.step_seconds:
        ticks = seconds * MOST_STEPS / machine.tick_seconds
        assert ticks == pytest.approx(round(ticks), abs=1e-6)
