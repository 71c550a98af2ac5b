"""Notes libraries that do not load for lack of a CUDA function, which whoever loads them may catch and pass over."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from functools import wraps
from importlib.machinery import ExtensionFileLoader
from typing import Any

MISSING = re.compile(r"(?:undefined symbol: |symbol )((?:cu|nccl|nvrtc|nvml)\w+)")  # in the loader's error


def begin(note: Callable[[str], None]) -> None:
    """Have libraries that ctypes or an import loads named, with the function that they lack."""
    kinds: tuple[tuple[Any, str], ...] = ((ctypes.CDLL, "__init__"), (ExtensionFileLoader, "create_module"))
    for kind, name in kinds:
        setattr(kind, name, _told(getattr(kind, name), note))


def _told(plain: Callable[..., Any], note: Callable[[str], None]) -> Callable[..., Any]:
    @wraps(plain)
    def load(*arguments: Any, **keywords: Any) -> Any:
        try:
            return plain(*arguments, **keywords)
        except (OSError, ImportError) as error:
            if missing := MISSING.search(str(error)):
                library = os.path.basename(str(error).partition(":")[0])
                note(f"{library} does not load: it needs {missing[1]}, which the hollow GPU's libraries do not have")
            raise

    return load
