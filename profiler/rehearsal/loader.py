"""Loads the hollow CUDA libraries into a process before torch: the standard library alone, as users' Pythons run it."""

from __future__ import annotations

import ctypes
import glob
import os
import re

CUDA = re.compile(r"^cuda\b[^=]*= *'(\d+)\.(\d+)", re.MULTILINE)  # in torch/version.py
PLANS = "GCPROF_CUDNN"  # the environment variable: `hollow` gives convolutions only workspaces that are asked for
ORDER = (  # of loading: each after those that it depends on
    "libcudart", "libcublasLt", "libcublas", "libcudnn", "libnccl", "libcufft", "libnvrtc", "libcupti", "libcuda",
    "libnvidia-ml",
)  # fmt: skip


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
