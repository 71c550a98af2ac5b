"""A device of this process, and what a record says of both: knows nothing of models."""

from __future__ import annotations

import platform
from datetime import UTC, datetime

import msgspec
import torch

from profiler import __version__
from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.record import Environment
from profiler.measuring.devices import TABLE, Device


def environment(device: Device) -> Environment:
    """Versions and the device, as this process sees them."""
    facts = device.facts()
    return Environment(
        gcprof=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=facts.driver,
        device_name=facts.name,
        device_bytes=facts.total_bytes,
        device_uuid=facts.uuid,
        num_threads=torch.get_num_threads(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def open_device(name: str) -> Device:
    """The device of that name: `cpu`, `cuda:0`."""
    connect, _ = catalogue.load(Choice(name.partition(":")[0]), TABLE)
    device: Device = connect(name)
    return device


def of_rank(case: Case, rank: int) -> Case:
    """The case on the rank's own device: they are numbered on from the case's."""
    kind, _, first = case.device.partition(":")
    return msgspec.structs.replace(case, device=f"{kind}:{int(first or 0) + rank}") if kind == "cuda" else case
