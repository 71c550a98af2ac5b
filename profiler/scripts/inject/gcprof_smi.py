"""`nvidia-smi` of the hollow GPUs, as scripts ask it: its table, `-L`, and `--query-gpu=... --format=csv`."""

from __future__ import annotations

import ctypes
import sys
from datetime import datetime
from typing import Any

UNKNOWN = "[N/A]"
MIB = 1 << 20


class Nvml:
    """What the stand-in for NVML says of its GPUs."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.driver = self._text("nvmlSystemGetDriverVersion")

    @property
    def count(self) -> int:
        return self._numbers("nvmlDeviceGetCount_v2", ctypes.c_uint, 1)[0]

    def facts(self, index: int) -> dict[str, str]:
        """Return the fields of a GPU, as `--query-gpu` names them."""
        gpu = ctypes.c_void_p(index + 1)
        total, free, used = (
            value // MIB for value in self._numbers("nvmlDeviceGetMemoryInfo", ctypes.c_ulonglong, 3, gpu)
        )
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvmlDeviceGetCudaComputeCapability(gpu, ctypes.byref(major), ctypes.byref(minor))
        busy = self._numbers("nvmlDeviceGetUtilizationRates", ctypes.c_uint, 2, gpu)
        name, uuid = self._text("nvmlDeviceGetName", gpu), self._text("nvmlDeviceGetUUID", gpu)
        return {
            "index": str(index), "count": str(self.count), "name": name, "gpu_name": name, "uuid": uuid,
            "gpu_uuid": uuid, "driver_version": self.driver, "compute_cap": f"{major.value}.{minor.value}",
            "memory.total": f"{total} MiB", "memory.free": f"{free} MiB", "memory.used": f"{used} MiB",
            "memory.reserved": "0 MiB", "utilization.gpu": f"{busy[0]} %", "utilization.memory": f"{busy[1]} %",
            "temperature.gpu": "40", "power.draw": "100.00 W", "power.limit": "700.00 W", "pstate": "P0",
            "pci.bus_id": f"00000000:{index + 1:02X}:00.0", "gpu_bus_id": f"00000000:{index + 1:02X}:00.0",
            "timestamp": datetime.now().strftime("%Y/%m/%d %H:%M:%S.000"), "mig.mode.current": UNKNOWN,
        }  # fmt: skip

    def _text(self, function: str, *arguments: object) -> str:
        out = ctypes.create_string_buffer(256)
        self._library[function](*arguments, out, 256)
        return out.value.decode()

    def _numbers(self, function: str, kind: Any, count: int, *arguments: object) -> list[int]:
        out = (kind * count)()
        self._library[function](*arguments, out)
        return list(out)


def main(path: str, words: list[str]) -> None:
    nvml = Nvml(path)
    options = dict(_options(words))
    chosen = options.get("-i", options.get("--id"))
    gpus = [nvml.facts(index) for index in range(nvml.count)]
    if chosen:
        gpus = [gpu for gpu in gpus if {gpu["index"], gpu["uuid"], gpu["pci.bus_id"]} & {*chosen.split(",")}]
    fields = options.get("--query-gpu")
    if fields:
        _print_query(gpus, fields.split(","), options.get("--format", "csv"))
    elif "-L" in options or "--list-gpus" in options:
        for gpu in gpus:
            print(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})")
    elif "--query-compute-apps" in options:
        print(", ".join(options["--query-compute-apps"].split(",")))
    else:
        _print_table(gpus, nvml.driver)


def _options(words: list[str]) -> list[tuple[str, str]]:
    """Return each option with its value, given by `=` or as the next word; `''` where there is none."""
    found = []
    for place, word in enumerate(words):
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            after = words[place + 1] if place + 1 < len(words) else ""
            found.append((name, value if equals or after.startswith("-") else after))
    return found


def _print_query(gpus: list[dict[str, str]], fields: list[str], form: str) -> None:
    ways = {way.strip() for way in form.split(",")}
    names = [field.strip() for field in fields]
    units = {name: gpu[name].split()[1] for gpu in gpus for name in names if _has_unit(gpu.get(name, ""))}
    if "noheader" not in ways:
        print(", ".join(f"{name} [{units[name]}]" if name in units else name for name in names))
    for gpu in gpus:
        values = [gpu.get(name, UNKNOWN) for name in names]
        print(", ".join(value.split()[0] if "nounits" in ways and _has_unit(value) else value for value in values))


def _has_unit(value: str) -> bool:
    return value.endswith((" MiB", " %", " W"))


def _print_table(gpus: list[dict[str, str]], driver: str) -> None:
    line = "+" + "-" * 77 + "+"
    print(datetime.now().strftime("%a %b %d %H:%M:%S %Y"))
    print(line)
    print(f"| {f'NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: 13.2':<75} |")
    print(line)
    for gpu in gpus:
        memory = f"{gpu['memory.used'].replace(' ', '')} / {gpu['memory.total'].replace(' ', '')}"
        print(f"| {gpu['index']:>3}  {gpu['name']:<36} {memory:>22} {gpu['utilization.gpu'].replace(' ', ''):>10} |")
    print(line)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
