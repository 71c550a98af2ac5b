"""Loads the hollow CUDA libraries for the torch that a script is about to import; the standard library alone."""

from __future__ import annotations

import ctypes
import glob
import os
import re
from collections.abc import Callable
from functools import wraps
from importlib.machinery import ExtensionFileLoader
from typing import Any

CUDA = re.compile(r"^cuda\b[^=]*= *'(\d+)\.", re.MULTILINE)  # in torch/version.py
MISSING = re.compile(r"(?:undefined symbol: |symbol )((?:cu|nccl|nvrtc|nvml)\w+)")  # in the loader's error


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
    own_cudnn = os.path.join(os.path.dirname(os.path.dirname(origin)), "nvidia", "cudnn", "lib", "libcudnn.so.9")
    is_planned = os.environ.get("GCPROF_CUDNN") != "hollow" and os.path.exists(own_cudnn)
    os.environ["HOLLOW_CUDNN"] = own_cudnn if is_planned else ""  # NVIDIA's own plans convolutions and attention
    if not is_planned:
        os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"  # the hollow cuDNN plans no attention
    os.environ["CUDNN_NVRTC_RUNTIME_LINKING"] = "1"  # to the hollow NVRTC: its own would compile for seconds
    for name in os.environ["GCPROF_ORDER"].split(","):  # each after those that it depends on
        for path in sorted(glob.glob(os.path.join(places[found[1]], f"{name}.so.*"))):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return None


def tell_missing(note: Callable[[str], None]) -> None:
    """Note libraries that do not load for lack of a CUDA function: whoever loads them may catch that and go on."""

    def told(plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def load(*arguments: Any, **keywords: Any) -> Any:
            try:
                return plain(*arguments, **keywords)
            except (OSError, ImportError) as error:
                if missing := MISSING.search(str(error)):
                    library = os.path.basename(str(error).partition(":")[0])
                    note(
                        f"{library} does not load: it needs {missing[1]}, which the hollow GPU's libraries do not have"
                    )
                raise

        return load

    ctypes.CDLL.__init__ = told(ctypes.CDLL.__init__)  # type: ignore[method-assign]
    ExtensionFileLoader.create_module = told(ExtensionFileLoader.create_module)  # type: ignore[method-assign]
