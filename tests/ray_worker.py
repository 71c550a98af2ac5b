"""What stands in for profiler.engines.worker on the nodes of a test: fake GPUs, each of what its node claims."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from profiler.core import devices
from profiler.core.case import Trial
from profiler.core.record import Environment, Record
from profiler.engines import worker
from profiler.measuring.devices import environment
from profiler.measuring.devices.cpu import Cpu
from profiler.measuring.trial import measure


def survey(request: str, channel: int) -> None:
    """The CPU, and the first GPU that Ray gives."""
    found = {"cpu": environment(Cpu("cpu"))}
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        found["cuda:0"] = msgspec.structs.replace(found["cpu"], device_name="NVIDIA H100 80GB or Tesla T4")
    worker.tell(channel, {"devices": found, "free": {}})


def run_trials(request: str, channel: int) -> None:
    """Measure on the CPU what is to be measured on a kind of GPU, and tell which node that was."""
    worker.run_each(request, channel, by=_by)


def _by(trial: Trial, **keywords: Any) -> Record:
    on_cpu = msgspec.structs.replace(trial, case=msgspec.structs.replace(trial.case, device="cpu"))
    record = measure(on_cpu, **keywords)
    node = f"{os.environ['RAY_RAYLET_PID']} sees {os.environ.get('CUDA_VISIBLE_DEVICES')}"
    there: Environment = msgspec.structs.replace(
        record.environment, device_name=devices.parse(trial.case.device).kind, device_uuid=node
    )
    return msgspec.structs.replace(record, case=trial.case, environment=there)
