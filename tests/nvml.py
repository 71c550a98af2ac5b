"""A double of NVIDIA's management library."""

import os
from types import SimpleNamespace


class NotSupported(Exception):
    """What NVML raises for what a board does not tell."""


class Nvml(SimpleNamespace):
    """An NVML with one board; what is not given is not supported there."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVMLError = 1, 0, NotSupported

    def __init__(self, uuid: str = "GPU-12-34", **told):
        super().__init__(uuid=uuid, told=told)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != self.uuid:
            raise NotSupported(uuid)
        return f"handle of {uuid}"

    def __getattr__(self, name: str):
        def query(handle: str, *which: int):
            assert handle == f"handle of {self.uuid}"
            if name not in self.told:
                raise NotSupported(name)
            return self.told[name]

        return query


def process(number: int, *, held: int | None = 2**20) -> SimpleNamespace:
    """As NVML lists one that computes on the board."""
    return SimpleNamespace(pid=number, usedGpuMemory=held)


ANSWERS = {
    "nvmlDeviceGetClockInfo": 1410,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetTemperature": 84,
    "nvmlDeviceGetPowerUsage": 690_500,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1 | 0x4 | 0x20 | 0x40,
    "nvmlDeviceGetComputeRunningProcesses": [process(os.getpid()), process(1, held=3 * 2**30)],
}
