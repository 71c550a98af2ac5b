"""Functions that run in a child and report the devices that torch can use here."""

from __future__ import annotations

import sys

import torch

from profiler.core.gpu_kinds import visible
from profiler.core.record import Environment
from profiler.engines.replies import tell
from profiler.measuring import devices as measured_devices
from profiler.measuring.devices import environment, open_device


def survey(request: str, channel: int) -> None:
    """Send the devices that torch can use here, the CPU first, and the free bytes of each."""
    names = [
        "cpu",
        *(f"cuda:{index}" for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)),
    ]
    devices: dict[str, Environment] = {}
    free: dict[str, int | None] = {}
    for name in names:
        try:
            device = open_device(name)
            devices[name], free[name] = environment(device), device.free_bytes()
        except RuntimeError as error:  # a device that is broken or taken cannot be measured
            print(f"{name}: {error}", file=sys.stderr)
    tell(channel, {"devices": devices, "free": free})


def free_bytes(request: str, channel: int) -> None:
    """Send the free bytes of the device that `request` names."""
    tell(channel, {"free": open_device(request).free_bytes()})


def compute(request: str, channel: int) -> None:
    """Send what the device that `request` names computes wrongly; None if its arithmetic is right."""
    open_device(request)
    tell(channel, {"wrong": measured_devices.wrong_arithmetic(visible(request))})
