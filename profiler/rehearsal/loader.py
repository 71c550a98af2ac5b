"""Loads the hollow CUDA libraries into a process before torch: the standard library alone, as users' Pythons run it.

As a program it is `nvidia-smi` of the hollow GPUs, as scripts ask it: its versions, `-L`, and `--query-gpu=...
--format=csv`. What it says is what the stand-in for NVML says of them, of quiet boards on which nothing runs.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
from argparse import ArgumentParser
from datetime import datetime

CUDA = re.compile(r"^cuda\b[^=]*= *'(\d+)\.(\d+)", re.MULTILINE)  # in torch/version.py
PLANS = "GCPROF_CUDNN"  # the environment variable: `hollow` gives convolutions only workspaces that are asked for
ORDER = (  # of loading: each after those that it depends on
    "libcudart", "libcublasLt", "libcublas", "libcudnn", "libnccl", "libcufft", "libcusparse", "libnvrtc", "libcupti",
    "libcuda", "libnvidia-ml",
)  # fmt: skip
DRIVER, CUDA_VERSION, UNKNOWN = "595.00.00", "13.2", "[N/A]"  # as in hollow/nvml.c
UNITS = (" MiB", " %", " W")


def load(origin: str, folder: str) -> str | None:
    """Load the libraries in `folder` for the torch whose file is `origin`; return why there are none for it, if so."""
    with open(os.path.join(os.path.dirname(origin), "version.py"), encoding="utf-8") as file:
        found = CUDA.search(file.read())
    if found is None:
        return "its torch has no CUDA"
    if not glob.glob(os.path.join(folder, f"libcudart.so.{found[1]}")):
        version = glob.glob(os.path.join(folder, "libcudart.so.*"))[0].rpartition(".")[2]
        return f"its torch is built for CUDA {found[1]}, and gcprof's libraries here are for {version}"
    os.environ.update(variables(origin), TRITON_LIBCUDA_PATH=folder)
    open_all(folder)
    return None


def open_all(folder: str) -> None:
    """Open the libraries in a folder, for all that is loaded after them."""
    for name in ORDER:
        for path in sorted(glob.glob(os.path.join(folder, f"{name}.so.*"))):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def variables(origin: str) -> dict[str, str]:
    """Return what tells the libraries whether NVIDIA's cuDNN beside this torch plans convolutions and attention."""
    path = os.path.join(os.path.dirname(os.path.dirname(origin)), "nvidia", "cudnn", "lib", "libcudnn.so.9")
    is_planned = os.environ.get(PLANS) != "hollow" and os.path.exists(path)
    return {
        "HOLLOW_CUDNN": path if is_planned else "",
        "CUDNN_NVRTC_RUNTIME_LINKING": "1",  # to the hollow NVRTC: its own would compile for seconds
        **({} if is_planned else {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}),  # the hollow cuDNN plans no attention
    }


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
        names, ways = ([word.strip() for word in words.split(",")] for words in (asked.query_gpu, asked.format))
        units = {name: gpu[name].split()[1] for gpu in gpus for name in names if gpu.get(name, "").endswith(UNITS)}
        if "noheader" not in ways:
            print(", ".join(f"{name} [{units[name]}]" if name in units else name for name in names))
        for gpu in gpus:
            values = [(name, gpu.get(name, UNKNOWN)) for name in names]
            print(", ".join(text.split()[0] if "nounits" in ways and name in units else text for name, text in values))
    elif asked.query_compute_apps:
        print(", ".join(asked.query_compute_apps.split(",")))
    else:
        if not asked.list_gpus:
            print(f"NVIDIA-SMI {DRIVER}    Driver Version: {DRIVER}    CUDA Version: {CUDA_VERSION}")
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


if __name__ == "__main__":
    main()
