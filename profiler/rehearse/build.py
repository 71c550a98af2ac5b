"""Builds the hollow CUDA libraries for the installed torch, once: from the headers that its wheels bring, by gcc."""

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

from profiler.errors import UserError

SOURCES = Path(__file__).parent / "hollow"
FLAGS = ("-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-builtin-declaration-mismatch")
BUILDING = ".building-"  # what the name of a folder begins with in which a build is at work
OLD_SECONDS = 3600  # no build takes so long
NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
ASK_ARCHS = """
import torch
print(*sorted({int(arch.split("_")[1].rstrip("af")) for arch in torch._C._cuda_getArchFlags().split()}), sep=",")
"""
STUBS = """#include <stdio.h>
#include <stdlib.h>
static void told(const char *name, int *once) {
    if (!*once && getenv("HOLLOW_LOG")) fprintf(stderr, "hollow: %s\\n", name);
    *once = 1;
}
#define API __attribute__((visibility("default")))
#define STUB(name) API long name(void) { static int once; told(#name, &once); return STATUS; }
"""


class Library(NamedTuple):
    """A library that torch needs, and what stands in for it."""

    name: str
    symbols: str  # a pattern of its functions, where the genuine library gives them no version
    status: int  # what functions return that have no source of their own
    sources: tuple[str, ...]
    flags: tuple[str, ...] = ()


NOT_SUPPORTED = 801  # cudaErrorNotSupported
RUNTIME = ("device.c", "memory.c", "kernels.c", "streams.c", "driver.c")


def libraries(folder: Path | None = None) -> Path:
    """Returns the folder of the libraries for the installed torch; builds them where they are not there yet.

    They are kept in the user's cache folder, by the digest of torch's version and of the sources. Raises UserError with
    exit code 3 where torch is absent or has no CUDA, where a tool is missing, or where a source does not compile; with
    74 where they cannot be kept.
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
    """The folder of the installed torch, which is not imported. Raises UserError where it has no CUDA."""
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
    """One word for torch's build and for these sources."""
    digest = hashlib.sha256((torch / "version.py").read_bytes())
    for source in [Path(__file__), *sorted(path for path in SOURCES.rglob("*") if path.is_file())]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _build_into(kept: Path, torch: Path) -> None:
    """Build beside the folder, which appears whole or not at all."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    _sweep(kept.parent)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=BUILDING) as name:
        out = Path(name) / "lib"
        out.mkdir()
        _build(torch, Path(name), out)
        _publish(out, kept)


def _sweep(folder: Path) -> None:
    """Remove what builds have left that were killed: nothing else is so old."""
    for left in folder.glob(f"{BUILDING}*"):
        with suppress(FileNotFoundError):  # its build has just ended
            if time.time() - left.stat().st_mtime > OLD_SECONDS:
                shutil.rmtree(left, ignore_errors=True)


def _publish(out: Path, kept: Path) -> None:
    """Give the finished folder its name; another process may have been first, with the same."""
    try:
        out.rename(kept)
    except OSError:
        if not kept.is_dir():
            raise


def _build(torch: Path, work: Path, out: Path) -> None:
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
    _run(
        "gcc",
        *FLAGS,
        "-shared",
        "-Wl,-soname,libnvidia-ml.so.1",
        str(SOURCES / "nvml.c"),
        "-o",
        f"{out}/libnvidia-ml.so.1",
    )


def _headers(site: Path) -> list[str]:
    """Those of the wheels; what they leave out (crt/) is in triton's own copy, which may be of another CUDA: last."""
    own = [f"-I{path}" for path in sorted(site.glob("nvidia/*/include"))]
    return [*own, "-idirafter", str(SOURCES / "include"), "-idirafter", f"{site}/triton/backends/nvidia/include"]


def _needed(torch: Path) -> list[str]:
    """The SONAMEs that torch's libraries ask the loader for."""
    callers = [
        *torch.glob("lib/libtorch_*.so"),
        *torch.glob("lib/libc10_cuda.so"),
        *torch.glob("lib/libcaffe2_nvrtc.so"),
    ]
    return sorted({name for path in callers for name in NEEDED.findall(_run("readelf", "-d", str(path)))})


def _library(library: Library, soname: str, headers: list[str], callers: list[Path], work: Path, out: Path) -> None:
    """Compile the sources, and stubs for all else that torch takes from this library."""
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
    """The functions that the callers take from a library, and whether they ask for its version of them."""
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
    """The driver's own name leads to the runtime, which has its functions; Triton before 3.9 links `libcuda.so`."""
    link = ("-shared", "-fPIC", "-x", "c", "/dev/null", "-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed")
    _run("gcc", *link, f"-L{out}", f"-l:{runtime}", "-Wl,-rpath,$ORIGIN", "-o", f"{out}/libcuda.so.1")
    (out / "libcuda.so").symlink_to("libcuda.so.1")


def _symbols(path: str, *words: str) -> list[str]:
    return [line.split()[-1] for line in _run("nm", *words, path).splitlines() if line.strip()]


def _run(*words: str, env: dict[str, str] | None = None) -> str:
    """What a tool prints. Raises UserError (exit code 3) with its last words where it fails."""
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        said = next((line for line in lines if "error" in line), lines[-1])
        raise UserError(f"the hollow device cannot be built: {Path(words[0]).name}: {said}", exit_code=3)
    return done.stdout
