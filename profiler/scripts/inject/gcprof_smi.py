"""`nvidia-smi` of the hollow GPUs, as scripts ask it: its versions, `-L`, and `--query-gpu=... --format=csv`.

What it says is what the stand-in for NVML says of them, of quiet boards on which nothing runs.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from datetime import datetime

DRIVER, CUDA, UNKNOWN = "595.00.00", "13.2", "[N/A]"  # as in rehearsal/hollow/nvml.c
UNITS = (" MiB", " %", " W")


def main() -> None:
    parser = ArgumentParser(prog="nvidia-smi", allow_abbrev=False)
    parser.add_argument("-i", "--id")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("--query-gpu")
    parser.add_argument("--query-compute-apps")
    parser.add_argument("--format", default="csv")
    asked, _ = parser.parse_known_args()
    gpus = [_facts(index) for index in range(int(os.environ.get("HOLLOW_COUNT", "1")))]
    if asked.id:
        gpus = [gpu for gpu in gpus if {gpu["index"], gpu["uuid"], gpu["pci.bus_id"]} & {*asked.id.split(",")}]
    if asked.query_gpu:
        _print_query(gpus, [field.strip() for field in asked.query_gpu.split(",")], asked.format)
    elif asked.query_compute_apps:
        print(", ".join(asked.query_compute_apps.split(",")))
    else:
        if not asked.list_gpus:
            print(f"NVIDIA-SMI {DRIVER}    Driver Version: {DRIVER}    CUDA Version: {CUDA}")
        for gpu in gpus:
            print(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})")


def _facts(index: int) -> dict[str, str]:
    """Return the fields of a GPU, as `--query-gpu` names them."""
    name, major, minor, *_, own = os.environ["HOLLOW_KIND"].split("|")
    total = int(os.environ.get("HOLLOW_BYTES", own)) >> 20
    uuid, bus = f"GPU-486f6c6c-6f77-4000-8000-{index:012x}", f"00000000:{index + 1:02X}:00.0"
    return {
        "index": str(index), "count": os.environ.get("HOLLOW_COUNT", "1"), "name": name, "gpu_name": name,
        "uuid": uuid, "gpu_uuid": uuid, "driver_version": DRIVER, "compute_cap": f"{major}.{minor}",
        "memory.total": f"{total} MiB", "memory.free": f"{total} MiB", "memory.used": "0 MiB",
        "memory.reserved": "0 MiB", "utilization.gpu": "0 %", "utilization.memory": "0 %", "temperature.gpu": "40",
        "power.draw": "100.00 W", "power.limit": "700.00 W", "pstate": "P0", "pci.bus_id": bus, "gpu_bus_id": bus,
        "timestamp": datetime.now().strftime("%Y/%m/%d %H:%M:%S.000"), "mig.mode.current": UNKNOWN,
    }  # fmt: skip


def _print_query(gpus: list[dict[str, str]], names: list[str], form: str) -> None:
    ways = {way.strip() for way in form.split(",")}
    units = {name: gpu[name].split()[1] for gpu in gpus for name in names if gpu.get(name, "").endswith(UNITS)}
    if "noheader" not in ways:
        print(", ".join(f"{name} [{units[name]}]" if name in units else name for name in names))
    for gpu in gpus:
        values = [(name, gpu.get(name, UNKNOWN)) for name in names]
        print(", ".join(text.split()[0] if "nounits" in ways and name in units else text for name, text in values))


if __name__ == "__main__":
    main()
