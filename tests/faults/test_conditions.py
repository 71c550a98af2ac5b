"""What devices say of themselves, or do not: NVML and clocks that are written down."""

import os
import time
from types import SimpleNamespace

import pytest

from profiler.core.record import Conditions
from profiler.measuring.devices import Cpu, cuda
from tests.nvml import ANSWERS, Nvml, process


def test_fault_09_without_nvml_or_the_board_there_is_a_reason(monkeypatch):
    for library, why in ((None, "pynvml is not installed: pip install nvidia-ml-py"), (Nvml(), "NVML: GPU-56-78")):
        monkeypatch.setattr(cuda, "pynvml", library)
        assert cuda.find_board("56-78") == why


@pytest.mark.slow
def test_a_board_tells_clock_heat_power_and_processes_in_base_units(monkeypatch):
    monkeypatch.setattr(cuda, "pynvml", Nvml(**ANSWERS))

    found = cuda.find_board("12-34").conditions(3.5)

    assert found == Conditions(
        at_seconds=3.5, clock_hertz=1.41e9, highest_clock_hertz=1.98e9, celsius=84.0, watts=690.5, limit_watts=700.0,
        held_by=("the power limit", "heat"), num_others=1, others_bytes=3 * 2**30,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("processes", "others", "held"),
    [
        ([], 0, 0),
        ([process(os.getpid()), process(1, held=5), process(2, held=7)], 2, 12),
        ([process(1), process(2), process(3)], 2, None),  # in a container: which of them is ours is not known
        ([process(os.getpid()), process(1, held=None)], 1, None),  # the system does not tell
    ],
)
def test_one_of_the_processes_on_the_board_is_this_one(monkeypatch, processes, others, held):
    monkeypatch.setattr(cuda, "pynvml", Nvml(nvmlDeviceGetComputeRunningProcesses=processes))

    found = cuda.find_board("12-34").conditions(0.0)

    assert (found.num_others, found.others_bytes) == (others, held)


def test_what_this_process_computes_is_nobody_elses(monkeypatch):
    spent = SimpleNamespace(user=10.0, system=2.0, idle=50.0, iowait=5.0, guest=3.0, steal=1.0)
    mine = iter([1.0, 3.0])
    monkeypatch.setattr("profiler.measuring.devices.psutil.cpu_times", lambda: spent)
    monkeypatch.setattr("profiler.measuring.devices.psutil.cpu_count", lambda: 4)
    monkeypatch.setattr(time, "process_time", lambda: next(mine))

    device = Cpu("cpu")
    spent.user, spent.steal, spent.idle = 14.0, 1.5, 90.0
    found = device.conditions()

    assert found.others_seconds == pytest.approx((14 - 10) + (1.5 - 1) - (3 - 1))
    assert found.num_cores == 4
