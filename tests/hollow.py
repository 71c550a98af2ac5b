"""Runs programs on a hollow CUDA device, each in a process of its own."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from profiler.rehearsal.build import COMPILERS
from profiler.rehearsal.device import ASKED
from tests.program import PATIENCE_SECONDS, Done, environment, gcprof

OPEN = "from profiler.rehearsal.device import open_if_asked; open_if_asked()\n"
LEAVE = "\nimport os, sys; sys.stdout.flush(); os._exit(0)"  # unfinalized: autograd's threads may use Python


def absent() -> str | None:
    """Why no hollow device can be had here; None where one can."""
    spec = find_spec("torch")
    folders = list((spec.submodule_search_locations or ()) if spec else ())
    if not folders or not Path(folders[0], "lib", "libtorch_cuda.so").exists():
        return "torch has no CUDA here"
    if not any(map(shutil.which, COMPILERS)):
        return "there is no C compiler"
    return None if shutil.which("nm") else "there is no nm"


class Hollow:
    """Runs programs on hollow devices, as `device` says: h100, or t4,count=2."""

    def python(self, code: str, device: str = "h100", **more: str) -> Any:
        """The value that the code leaves in `found`, through JSON."""
        text = f"{OPEN}{code}\nimport json; print(json.dumps(found)){LEAVE}"
        done = self.run(text, device, **more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def run(self, code: str, device: str = "h100", **more: str) -> Done:
        """The finished process of a Python program."""
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment(**{ASKED: device, **more}),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def gcprof(self, *words: str, cwd: Path, device: str = "h100", **more: str) -> Done:
        """The finished process of a gcprof command."""
        return gcprof(*words, cwd=cwd, **{ASKED: device, **more})
