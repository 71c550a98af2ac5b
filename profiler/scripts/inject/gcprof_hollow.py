"""Loads the hollow CUDA libraries for the torch that a script is about to import; the standard library alone."""

from __future__ import annotations

import ctypes
import glob
import os
import re

CUDA = re.compile(r"^cuda\b[^=]*= *'(\d+)\.", re.MULTILINE)  # in torch/version.py


def load(origin: str) -> str | None:
    """Load those for the CUDA version of the torch at `origin`; return why there are none, where there are none."""
    places = dict(pair.split("=", 1) for pair in os.environ["GCPROF_LIBRARIES"].split(os.pathsep))
    with open(os.path.join(os.path.dirname(origin), "version.py"), encoding="utf-8") as file:
        found = CUDA.search(file.read())
    if found is None:
        return "its torch has no CUDA"
    if found[1] not in places:
        return f"its torch is built for CUDA {found[1]}, and gcprof's libraries here are for {', '.join(places)}"
    os.environ["TRITON_LIBCUDA_PATH"] = places[found[1]]
    os.environ["HOLLOW_CUDNN"] = own_cudnn(origin)
    os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"  # cuDNN plans attention only where NVRTC compiles
    for name in os.environ["GCPROF_ORDER"].split(","):  # each after those that it depends on
        for path in sorted(glob.glob(os.path.join(places[found[1]], f"{name}.so.*"))):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return None


def own_cudnn(origin: str) -> str:
    """Return the path of NVIDIA's cuDNN beside the torch at `origin`, which plans convolutions; empty for none."""
    path = os.path.join(os.path.dirname(os.path.dirname(origin)), "nvidia", "cudnn", "lib", "libcudnn.so.9")
    return path if os.environ.get("GCPROF_CUDNN") != "hollow" and os.path.exists(path) else ""
