"""Builds the hollow CUDA libraries with gcc, once for each installed torch, against the headers in its wheels."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from profiler.core.errors import UserError

SOURCES = Path(__file__).parent / "hollow"
FLAGS = ("-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-builtin-declaration-mismatch")
BUILDING = ".building-"  # prefix of the folder in which a build works
OLD_SECONDS = 3600  # a build takes seconds: an older folder was left by one that was killed
NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
ASK_ARCHS = """
import torch
print(*sorted({int(arch.split("_")[1].rstrip("af")) for arch in torch._C._cuda_getArchFlags().split()}), sep=",")
"""
STUBS = """#include <stdio.h>
#include <stdlib.h>
static void log_first_call(const char *name, int *called) {
    if (!*called && getenv("HOLLOW_LOG")) fprintf(stderr, "hollow: %s\\n", name);
    *called = 1;
}
#define API __attribute__((visibility("default")))
#define STUB(name) API long name(void) { static int called; log_first_call(#name, &called); return STATUS; }
"""


class Library(NamedTuple):
    """A library that torch loads, and how its stand-in is built."""

    name: str
    symbols: str  # a pattern of its functions' names, for callers that ask for no version of them
    status: int  # what the generated stubs return
    sources: tuple[str, ...]
    flags: tuple[str, ...] = ()


NOT_SUPPORTED = 801  # cudaErrorNotSupported
RUNTIME = ("device.c", "memory.c", "kernels.c", "streams.c", "driver.c")


def libraries(folder: Path | None = None) -> Path:
    """Returns the folder of the libraries for the installed torch, which are built if they do not exist yet.

    They are kept in the user's cache folder under a digest of torch's version and of the sources. Raises UserError with
    exit code 3 where torch is absent or has no CUDA, a tool is missing, or a source does not compile, and with 74 where
    the folder cannot be written.
    """
    torch = _torch()
    kept = (folder or cache()) / _digest(torch)
    if kept.is_dir():
        return kept
    for tool in ("gcc", "nm", "readelf"):
        if shutil.which(tool) is None:
            raise UserError(
                f"rehearsing needs '{tool}', which is not here",
                hint="install gcc and binutils: apt install gcc, or dnf install gcc",
                exit_code=3,
            )
    try:
        _build_into(kept, torch)
    except OSError as error:
        raise UserError(
            f"the hollow device's libraries cannot be kept in {kept.parent}: {error.strerror or error}",
            hint="XDG_CACHE_HOME chooses another folder",
            exit_code=74,
        ) from None
    return kept


def cache() -> Path:
    """Returns the folder that keeps the built libraries of every torch: below XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "gcprof" / "hollow"


def _torch() -> Path:
    """Returns the folder of the installed torch without importing it. Raises UserError where it has no CUDA."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("rehearsing needs torch, which is not installed", hint="pip install torch", exit_code=3)
    torch = Path(spec.submodule_search_locations[0])
    if not (torch / "lib" / "libtorch_cuda.so").exists():
        raise UserError(
            "rehearsing needs a CUDA build of torch on Linux, and this one has no CUDA",
            hint="no GPU is needed for it: pip install torch takes the CUDA build",
            exit_code=3,
        )
    return torch


def _digest(torch: Path) -> str:
    """Returns a digest of torch's version and of the sources, this file included."""
    digest = hashlib.sha256((torch / "version.py").read_bytes())
    for source in [Path(__file__), *sorted(path for path in SOURCES.rglob("*") if path.is_file())]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _build_into(kept: Path, torch: Path) -> None:
    """Build in a temporary folder and rename it, so that `kept` is complete or absent."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    _sweep(kept.parent)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=BUILDING) as name:
        out = Path(name) / "lib"
        out.mkdir()
        _build(torch, Path(name), out)
        _publish(out, kept)


def _sweep(folder: Path) -> None:
    """Remove the folders of builds that were killed."""
    for leftover in folder.glob(f"{BUILDING}*"):
        with suppress(FileNotFoundError):  # its build has just ended
            if time.time() - leftover.stat().st_mtime > OLD_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)


def _publish(out: Path, kept: Path) -> None:
    """Rename the finished folder to `kept`, unless another process has published the same build first."""
    try:
        out.rename(kept)
    except OSError:
        if not kept.is_dir():
            raise


def _build(torch: Path, work: Path, out: Path) -> None:
    """Build every library that this torch loads into `out`, with objects and stubs in `work`."""
    site = torch.parent
    needed = _needed(torch)
    archs = _run(sys.executable, "-c", ASK_ARCHS, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}).strip()
    major = next(name for name in needed if name.startswith("libcudart.")).rpartition(".")[2]
    table = (
        Library("libcudart", r"(__)?cuda[A-Z]", NOT_SUPPORTED, RUNTIME, (f"-DARCHS={archs}",)),
        Library("libcublas", r"cublas[A-KM-Z]", 0, ("blas.c",)),
        Library("libcublasLt", r"cublasLt", 0, ("blas.c",), ("-DLT",)),
        Library("libcudnn", r"cudnn", 0, ("cudnn.c",)),
        Library("libnccl", r"nccl[A-Z]", 0, ("nccl.c",)),
        Library("libcufft", r"cufft[A-Z]", 0, ("cufft.c",)),
        Library("libnvrtc", r"nvrtc[A-Z]", 0, ("nvrtc.c",), (f"-DCUDA_MAJOR={major}",)),
    )
    callers = [*torch.glob("lib/*.so"), *site.glob("torchvision/*.so"), *site.glob("nvidia/*/lib/libcusolver.so.*")]
    for library in table:
        soname = next((name for name in needed if name.startswith(f"{library.name}.so.")), None)
        if soname:
            _library(library, soname, _headers(site), callers, work, out)
    _driver(next(path.name for path in out.glob("libcudart.so.*")), out)
    nvml = "libnvidia-ml.so.1"
    _run("gcc", *FLAGS, "-shared", f"-Wl,-soname,{nvml}", str(SOURCES / "nvml.c"), "-o", f"{out}/{nvml}")


def _headers(site: Path) -> list[str]:
    """Returns gcc's flags for the headers: the wheels' own, then triton's copy, which alone has crt/.

    Triton's may be of another CUDA version, so it is searched last.
    """
    own = [f"-I{path}" for path in sorted(site.glob("nvidia/*/include"))]
    return [*own, "-idirafter", str(SOURCES / "include"), "-idirafter", f"{site}/triton/backends/nvidia/include"]


def _needed(torch: Path) -> list[str]:
    """Returns the SONAMEs that torch's libraries depend on."""
    callers = [
        *torch.glob("lib/libtorch_*.so"),
        *torch.glob("lib/libc10_cuda.so"),
        *torch.glob("lib/libcaffe2_nvrtc.so"),
    ]
    return sorted({name for path in callers for name in NEEDED.findall(_run("readelf", "-d", str(path)))})


def _library(library: Library, soname: str, headers: list[str], callers: list[Path], work: Path, out: Path) -> None:
    """Compile the sources of one library, with stubs for its other functions that the callers use."""
    objects = []
    for source in library.sources:
        objects.append(f"{work}/{soname}-{source}.o")
        _run("gcc", *FLAGS, *headers, *library.flags, "-c", str(SOURCES / source), "-o", objects[-1])
    own = {symbol for path in objects for symbol in _symbols(path, "-g", "--defined-only")}
    wanted, is_versioned = _wanted(library, soname, callers)
    stubs, versions = work / f"{soname}.c", work / f"{soname}.map"
    lines = [f"STUB({name})" for name in sorted(wanted - own)]
    stubs.write_text("\n".join([f"#define STATUS {library.status}", STUBS, *lines, ""]), encoding="utf-8")
    versions.write_text(f"{soname if is_versioned else ''} {{\n  global: *;\n}};\n", encoding="utf-8")
    link = ("-shared", f"-Wl,-soname,{soname}", f"-Wl,--version-script,{versions}")
    _run("gcc", *FLAGS, *link, *objects, str(stubs), "-o", f"{out}/{soname}", "-lpthread", "-ldl")


def _wanted(library: Library, soname: str, callers: Iterable[Path]) -> tuple[set[str], bool]:
    """Returns the functions of a library that the callers use, and whether they ask for versioned symbols."""
    wanted: set[str] = set()
    is_versioned = False
    for path in callers:
        for symbol in _symbols(str(path), "-D", "--undefined-only"):
            name, _, version = symbol.partition("@")
            is_versioned |= version == soname
            if version == soname or (not version and re.match(library.symbols, name)):
                wanted.add(name)
    return wanted, is_versioned


def _driver(runtime: str, out: Path) -> None:
    """Link libcuda.so.1, which is empty but for its dependency on the runtime: that has the driver's functions.

    Triton before 3.9 links `libcuda.so`.
    """
    link = ("-shared", "-fPIC", "-x", "c", "/dev/null", "-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed")
    _run("gcc", *link, f"-L{out}", f"-l:{runtime}", "-Wl,-rpath,$ORIGIN", "-o", f"{out}/libcuda.so.1")
    (out / "libcuda.so").symlink_to("libcuda.so.1")


def _symbols(path: str, *words: str) -> list[str]:
    return [line.split()[-1] for line in _run("nm", *words, path).splitlines() if line.strip()]


def _run(*words: str, env: dict[str, str] | None = None) -> str:
    """Returns what a tool prints. Raises UserError (exit code 3) with its error message where it fails."""
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        message = next((line for line in lines if "error" in line), lines[-1])
        raise UserError(f"the hollow device cannot be built: {Path(words[0]).name}: {message}", exit_code=3)
    return done.stdout
