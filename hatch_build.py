"""Puts the prebuilt libraries of the hollow CUDA device, where GCPROF_PREBUILT names their folder, into the wheel."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NEEDED = re.compile(r"GLIBC_(\d+)\.(\d+)")


class Prebuilt(BuildHookInterface):
    """Without the variable the wheel is pure, and a compiler builds the libraries when something is rehearsed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries, and tag the wheel with the oldest glibc that has all that they use."""
        if folder := os.environ.get("GCPROF_PREBUILT"):
            files = [str(path) for path in Path(folder).glob("cu*/lib*.so.*")]
            symbols = subprocess.run(["objdump", "-T", *files], capture_output=True, text=True, check=True).stdout
            major, minor = max((int(a), int(b)) for a, b in NEEDED.findall(symbols))
            build_data["force_include"][folder] = "profiler/rehearsal/prebuilt"
            build_data["tag"] = f"py3-none-manylinux_{major}_{minor}_x86_64"
            build_data["pure_python"] = False
