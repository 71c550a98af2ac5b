"""Doubles of other machines, for `pytest --machine NAME`: another clock, speed, number of cores and processor.

A double holds in the process that installs it and, by two environment variables, in every Python process that it
starts: `machine_site/sitecustomize.py` stands on their PYTHONPATH, and Python imports it at their start. The package
under test knows nothing of it. The number of threads is not doubled: all tests run with one. It imports the standard
library alone, since every process of a test pays for it.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SITE = Path(__file__).parent / "machine_site"
VARIABLE = "GCPROF_TEST_MACHINE"
MODULE = "profiler.measuring.devices.cpu"  # what looks at the clock and the processor
CPUINFO = "/proc/cpuinfo"


class Machine(NamedTuple):
    """What the CPU tells of itself there: `speed` is how much longer a step takes than it does here."""

    tick_seconds: float
    speed: float
    num_cores: int
    busy: float  # the share of the cores that others keep busy
    processor: str | None  # None where /proc/cpuinfo names none

    @property
    def cpuinfo(self) -> str:
        """The lines of /proc/cpuinfo, a block for each core."""
        name = [] if self.processor is None else [f"model name\t: {self.processor}"]
        return "\n\n".join("\n".join([f"processor\t: {core}", *name]) for core in range(self.num_cores)) + "\n"


LONG = "Gerät™ [bold]X|2[/bold], <64>-\"Core\" & 'Co' " + 12 * "@ 3.1 GHz "
TABLE = {
    "fast": Machine(tick_seconds=1e-6, speed=0.05, num_cores=16, busy=0.0, processor="AMD EPYC 9B14 96-Core Processor"),
    "slow": Machine(tick_seconds=1e-9, speed=20.0, num_cores=1, busy=0.9, processor=None),
    "coarse": Machine(tick_seconds=1e-4, speed=1.0, num_cores=2, busy=0.1, processor=LONG),  # below 100 ms: too fast
    "sundial": Machine(tick_seconds=0.05, speed=1.0, num_cores=3, busy=0.0, processor="Gnomon"),  # below 50 s: too fast
}


def chosen() -> str | None:
    """The name of the machine that this process and those that it starts shall be; None where it is the real one."""
    return os.environ.get(VARIABLE) or None


def python_path() -> str:
    """PYTHONPATH for a process of a test: this one's, before it the repository's and what doubles the machine."""
    own = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*([str(SITE)] if chosen() else []), str(ROOT), *([own] if own else [])])


def variables() -> dict[str, str]:
    """What a process is given that shall have nothing else of this one's environment; empty on the real machine."""
    name = chosen()
    return {VARIABLE: name, "PYTHONPATH": str(SITE)} if name else {}


def choose(name: str) -> None:
    """Let this process, and all that it starts, be on this machine."""
    if chosen() != name:
        before = os.environ.get("PYTHONPATH")
        os.environ[VARIABLE] = name
        os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *([before] if before else [])])
    if VARIABLE not in _installed:
        _installed[VARIABLE] = name
        install(TABLE[name])


def inherit() -> None:
    """Be on the machine of the process that started this one."""
    if name := chosen():
        choose(name)


_installed: dict[str, str] = {}


def install(machine: Machine) -> None:
    """Double what this process tells of its machine, in modules that are imported already and in those that will be."""
    os.cpu_count = lambda: machine.num_cores
    if MODULE in sys.modules:
        double(sys.modules[MODULE], machine)
    else:
        sys.meta_path.insert(0, _Finder(machine))


def double(cpu: ModuleType, machine: Machine) -> None:
    """Give the module of the CPU another clock, number of cores and processor; all else of its modules stays."""
    cpu.time = _Instead(  # type: ignore[attr-defined]
        time,
        perf_counter=clock(machine, time.perf_counter),
        get_clock_info=lambda name: SimpleNamespace(resolution=machine.tick_seconds),
    )
    cpu.psutil = _Instead(  # type: ignore[attr-defined]
        cpu.psutil,
        cpu_count=lambda: machine.num_cores,
        cpu_times=lambda: SimpleNamespace(
            user=time.process_time() + time.monotonic() * machine.busy * machine.num_cores
        ),
    )
    cpu.Path = lambda path: _Text(machine.cpuinfo) if path == CPUINFO else Path(path)  # type: ignore[attr-defined]


def clock(machine: Machine, now: Callable[[], float]) -> Callable[[], float]:
    """A clock that goes as much faster as steps take longer there, and tells whole ticks."""
    began = now()

    def told() -> float:
        elapsed = (now() - began) * machine.speed
        return math.floor(elapsed / machine.tick_seconds) * machine.tick_seconds

    return told


class _Instead:
    """A module of which some names are others; what a test replaces in the module itself is seen through it."""

    def __init__(self, module: ModuleType, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Text:
    """A file that holds this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def exists(self) -> bool:
        return True

    def read_text(self, encoding: str) -> str:
        return self._text


class _Finder(MetaPathFinder):
    """Doubles the module of the CPU when it is imported."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec
        assert spec.loader
        run = spec.loader.exec_module

        def run_and_double(module: ModuleType) -> None:
            run(module)
            if module.__name__ == MODULE:  # the modules of one zip file share a loader
                double(module, self._machine)

        spec.loader.exec_module = run_and_double
        return spec
