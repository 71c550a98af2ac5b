"""Smoke test of the hollow device, once for each torch before anything is rehearsed: its bytes against arithmetic.

`python -m profiler.rehearsal.smoke` repeats the test and prints all figures.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from profiler.core.errors import UserError
from profiler.rehearsal import build, loader

SETTINGS = {  # that the arithmetic of smoke_step.py relies on, and the device: an H100 with 1 GiB
    "HOLLOW_KIND": f"Hollow H100|9|0|132|2048|32|228|227|{1 << 30}",
    "HOLLOW_COUNT": "1",
    "HOLLOW_CONTEXT_BYTES": "0",
    "HOLLOW_CUDNN_WORKSPACE": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "CUBLASLT_WORKSPACE_SIZE": "128",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1",
    loader.PLANS: "hollow",
    "HOLLOW_LOG": "1",
}
CHANGE_FIGURES = ("PYTORCH_", "TORCH_", "CUBLAS", "CUDA_", "CUDNN", "HOLLOW_", "GCPROF_HOLLOW")
LIMIT_SECONDS = 600
UNSUPPORTED = "hollow: not supported: "  # printed by STUBS of build.py and by driver.c
PROGRAM = """
import json, os, runpy, sys; from importlib.util import find_spec
loader, libraries, step, path = sys.argv[1:]
sys.path[:] = json.loads(path) or sys.path[1:]
if why := runpy.run_path(loader)["load"](find_spec("torch").origin, libraries):
    sys.exit(why)
runpy.run_path(step)["main"]()
sys.stdout.flush()
os._exit(0)
"""  # in an interpreter that may have nothing but torch


class Check(msgspec.Struct, frozen=True, array_like=True):
    """One figure of the allocator: as expected by arithmetic, and as read."""

    phase: str
    expected: int  # bytes
    got: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a smoke test."""

    torch: str
    checks: tuple[Check, ...]
    archs: str = ""  # that its kernels are compiled for: `75,80,90`
    not_supported: tuple[str, ...] = ()  # functions that were called, and that the hollow libraries do not have

    def wrong(self) -> list[Check]:
        """Return the figures that are not as expected."""
        return [check for check in self.checks if check.got != check.expected]


def proven_libraries() -> tuple[Path, Verdict]:
    """Return the folder of the libraries for the installed torch, and its verdict; test them if that is not done yet.

    Prebuilt ones with which the step does not end are passed over, and others built. Raises UserError as
    `build.libraries` does, and with exit code 3 if a figure is not as expected.
    """
    folder = build.libraries()
    try:
        verdict = _read(folder) or _keep(folder, run(folder))
    except UserError:
        if build.prebuilt(build.installed()) is None:
            raise
        folder = build.built()
        verdict = _read(folder) or _keep(folder, run(folder))
    if verdict.wrong():
        raise UserError(
            refusal(verdict), hint="`python -m profiler.rehearsal.smoke` tries it again and shows more", exit_code=3
        )
    return folder, verdict


def readiness() -> str:
    """Return in words whether the libraries for the installed torch are built and tested, or what will compile them.

    Raises UserError if nothing can be rehearsed.
    """
    torch = build.installed()
    prebuilt = build.prebuilt(torch)
    folder = prebuilt or build.place(torch)
    verdict = _read(folder)
    if prebuilt is None and (verdict is None or not folder.is_dir()):
        words = shlex.join(build.compiler())
        return f"not built yet: the first rehearsal compiles its libraries by `{words}` into {folder.parent}"
    if verdict and verdict.wrong():
        raise UserError(refusal(verdict))
    tried = "tried" if verdict else "tried at the first rehearsal"
    return f"ready: its libraries are {'prebuilt' if prebuilt else 'built'} and {tried}, in {folder}"


def foreign(folder: Path, python: str, torch: str) -> Verdict:
    """Return the verdict on these libraries and the torch of another interpreter; test them if that is not done yet.

    `torch` is its `__file__`. Raises UserError (exit code 3) if the step does not finish.
    """
    version = Path(torch).with_name("version.py").read_bytes()
    digest = f"{python} {hashlib.sha256(version).hexdigest()}"
    return _read(folder, digest) or _keep(folder, run(folder, python, ()), digest)


def run(folder: Path, python: str = sys.executable, path: Sequence[str] = sys.path) -> Verdict:
    """Run a training step on the hollow device of these libraries, in a new process; return its figures.

    `path` is that of the process's imports, its own where it is empty. Raises UserError (exit code 3) if the step does
    not finish.
    """
    step = Path(__file__).with_name("smoke_step.py")
    words = [python, "-c", PROGRAM, loader.__file__, str(folder), str(step), json.dumps([*path])]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(CHANGE_FIGURES)}
    try:
        done = subprocess.run(
            words, env={**kept, **SETTINGS}, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise _ended(f"took more than {LIMIT_SECONDS} s") from None
    lines = done.stderr.splitlines()
    unsupported = tuple(line.removeprefix(UNSUPPORTED) for line in lines if line.startswith(UNSUPPORTED))
    if done.returncode:
        last = next((line for line in reversed(lines) if line and not line.startswith("hollow:")), "it printed nothing")
        raise _ended(f"ended with exit code {done.returncode}: {last}{_named(unsupported)}")
    verdict = msgspec.json.decode(done.stdout.splitlines()[-1], type=Verdict)
    return msgspec.structs.replace(verdict, not_supported=unsupported)


def refusal(verdict: Verdict) -> str:
    """Return why nothing is rehearsed, in one line: the first figure that is wrong, and what was not supported."""
    first, *others = verdict.wrong()
    more = f", and {len(others)} more" if others else ""
    return (
        f"torch {verdict.torch} on the hollow device is not as arithmetic has it: {first.phase}: expected "
        f"{first.expected:,} bytes, got {first.got:,}{more}{_named(verdict.not_supported)}"
    )


def _ended(how: str) -> UserError:
    return UserError(
        f"a training step on the hollow device {how}", hint="nothing is rehearsed with this torch", exit_code=3
    )


def _named(unsupported: tuple[str, ...]) -> str:
    return f" (not supported: {', '.join(unsupported)})" if unsupported else ""


def verdict_file(folder: Path, torch: str = "") -> Path:
    """Return where the verdict on these libraries and the installed torch, or another of this digest, is kept."""
    key = f"{folder.resolve()} {build.sources_digest()} {torch or build.installed().digest}"
    return build.cache_folder() / f"smoke-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _read(folder: Path, torch: str = "") -> Verdict | None:
    """Return the verdict that is kept in a folder; None if there is none that can be read, or it is of no figures."""
    try:
        verdict = msgspec.json.decode(verdict_file(folder, torch).read_bytes(), type=Verdict)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    return verdict if verdict.checks else None


def _keep(folder: Path, verdict: Verdict, torch: str = "") -> Verdict:
    """Write the verdict and return it. Raises UserError as `build.locked` does."""
    file = verdict_file(folder, torch)
    with build.locked() as work:
        (work / file.name).write_bytes(msgspec.json.encode(verdict))
        (work / file.name).rename(file)
    return verdict


def main() -> int:
    """Test the hollow device again and print every figure; return the exit code, 3 if a figure is wrong."""
    try:
        folder = build.libraries()
        verdict = _keep(folder, run(folder))
    except UserError as error:
        print(f"{error.message}; {error.hint}" if error.hint else error.message, file=sys.stderr)
        return error.exit_code
    for check in verdict.checks:
        result = "as expected" if check.got == check.expected else f"expected {check.expected:,}"
        print(f"{check.phase:<28} {check.got:>13,}  {result}")
    print(f"not supported, and called: {', '.join(verdict.not_supported) or 'nothing'}")
    if verdict.wrong():
        print(refusal(verdict), file=sys.stderr)
        return 3
    print(f"torch {verdict.torch}: {len(verdict.checks)} figures of the allocator are as arithmetic has them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
