"""That `--machine` doubles another machine in every process of a test, so that a suite that passes there tells."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import pytest

from profiler.analysis.rows import rows
from profiler.core.record import Record
from profiler.core.stats import MOST_STEPS
from profiler.measuring.meters.time import TICKS
from profiler.runs import store
from tests import machines
from tests.program import environment, gcprof

QUICK = ("--strategies", "none", "--device", "cpu", "--rounds", "1", "--samples", "2", "--warmup", "0")


def on(name: str) -> dict[str, str]:
    """What a process is given to be on this machine, whichever machine this process is on."""
    return {machines.VARIABLE: name, "PYTHONPATH": os.pathsep.join([str(machines.SITE), str(machines.ROOT)])}


def measured_on(name: str, folder: Path) -> Record:
    """A real trial there, in a child of a server of a program."""
    done = gcprof("run", "--model", "mlp", *QUICK, "-o", "run", cwd=folder, **on(name))
    assert done.returncode == 0, done.stderr
    (record,) = store.load(folder / "run").records
    return record


@pytest.mark.slow
def test_a_trial_is_on_the_machine_that_its_program_was_started_on(tmp_path: Path):
    machine = machines.TABLE["sundial"]

    record = measured_on("sundial", tmp_path)

    (row,) = rows([record])
    assert record.environment.device_name == machine.processor
    assert {one.num_cores for one in record.readings.conditions} == {machine.num_cores}
    assert record.readings.steps_per_sample == MOST_STEPS  # of a step that takes no longer than a tick
    assert "GCP033" in {note.code for note in row.notes}
    for seconds in record.readings.step_seconds:
        ticks = seconds * MOST_STEPS / machine.tick_seconds
        assert ticks == pytest.approx(round(ticks), abs=1e-6)


@pytest.mark.parametrize("name", machines.TABLE)
def test_the_cpu_tells_the_tick_the_cores_and_the_processor_of_the_machine(name: str):
    machine = machines.TABLE[name]
    spec = find_spec(machines.MODULE)
    fresh = module_from_spec(spec)  # as it is imported, whichever machine this process is on
    spec.loader.exec_module(fresh)

    machines.double(fresh, machine)
    device = fresh.Cpu("cpu")

    processor = (machine.processor or platform.processor() or platform.machine()).strip()
    told = device.tick_seconds, device.conditions().num_cores, device.facts().name
    assert told == (machine.tick_seconds, machine.num_cores, processor)


def test_a_clock_that_goes_faster_tells_longer_steps_in_whole_ticks():
    real = iter([100.0, 100.5, 101.26])
    machine = machines.TABLE["slow"]._replace(tick_seconds=0.25, speed=2.0)

    told = machines.clock(machine, real.__next__)

    assert [told(), told()] == [1.0, 2.5]  # 2.52 is ten ticks and something


def test_the_coarse_machine_takes_a_step_of_less_than_100_ms_to_be_too_fast():
    assert machines.TABLE["coarse"].tick_seconds * TICKS == pytest.approx(0.1)


def test_a_process_of_a_test_finds_what_this_one_found_on_pythonpath(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert environment()["PYTHONPATH"].split(os.pathsep)[-2:] == [str(machines.ROOT), str(tmp_path)]


@pytest.mark.slow
def test_the_option_of_pytest_reaches_its_workers_and_what_they_start(tmp_path: Path):
    (tmp_path / "test_theirs.py").write_text(
        "import os, subprocess, sys\n\n\ndef test_it():\n"
        "    child = [sys.executable, '-c', 'import os; print(os.cpu_count())']\n"
        "    told = subprocess.run(child, capture_output=True, text=True, check=True).stdout\n"
        "    assert (os.cpu_count(), told) == (16, '16\\n')\n"
    )
    command = ["-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", "-p", "tests.conftest", "--machine", "fast"]

    real = {key: value for key, value in environment().items() if key != machines.VARIABLE}
    done = subprocess.run(
        [sys.executable, *command, "test_theirs.py"], cwd=tmp_path, env={**real, "PYTHONPATH": str(machines.ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout
