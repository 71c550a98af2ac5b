"""Builds the hollow CUDA libraries with the C compiler at hand, against the headers in the installed torch's wheels."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from profiler.core.errors import UserError
from profiler.rehearsal import cache
from profiler.rehearsal.cuda_libraries import STUBS, Library, table

SOURCES = Path(__file__).parent / "hollow"
PLATFORM = ("linux", "x86_64")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-builtin-declaration-mismatch")
NOT_EXECUTABLE = "failed to map segment"  # of dlopen, where a file system is mounted noexec
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a tool's errors if a disk, quota or size limit is full
LIMIT_SECONDS = 300  # for one call of a tool; all of a build take half a minute
NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
ASK_ARCHS = """
import torch
print(*sorted({int(arch.split("_")[1].rstrip("af")) for arch in torch._C._cuda_getArchFlags().split()}), sep=",")
"""
LOAD = """
import json, sys; from pathlib import Path; sys.path[:] = json.loads(sys.argv[1])
from profiler.rehearsal import device; device.load(Path(sys.argv[2]))
"""


def libraries() -> Path:
    """Return the folder of the libraries for the installed torch; build them if they are missing or damaged.

    They are kept in the user's cache folder under a digest of torch's version and of the sources. Raises UserError with
    exit code 3 if the system is not Linux x86-64, torch is missing or has no CUDA, a tool is missing, a source does not
    compile, or others can write to the folder; and with 74 if the folder cannot be written.
    """
    kept = place()
    try:
        if not cache.is_whole(kept):
            _build_into(kept, _torch())
    except OSError as error:
        raise UserError(
            f"the hollow device's libraries cannot be kept in {kept.parent}: {error.strerror or error}",
            hint=cache.ELSEWHERE,
            exit_code=74,
        ) from None
    cache.refuse_if_others_write(kept)
    return kept


def place() -> Path:
    """Return the folder for the installed torch's libraries, built or not. Raises UserError if none can be built."""
    _refuse_other_systems()
    return cache.folder().resolve() / _digest(_torch())


def _refuse_other_systems() -> None:
    here = sys.platform, platform.machine()
    if here != PLATFORM:
        raise UserError(
            f"rehearsing works on Linux x86-64 only, and this is {platform.system()} {here[1]}",
            hint="`gcprof predict` needs no device and works here",
            exit_code=3,
        )


def _torch() -> Path:
    """Return the folder of the installed torch without importing it. Raises UserError where it has no CUDA."""
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
    """Return a digest of torch's version and of all sources, those in Python too."""
    digest = hashlib.sha256((torch / "version.py").read_bytes())
    room = Path(__file__).parent
    for source in sorted([*room.glob("*.py"), *(path for path in SOURCES.rglob("*") if path.is_file())]):
        digest.update(str(source.relative_to(room)).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def compiler() -> tuple[str, ...]:
    """Return the words of the C compiler's command: those of $CC, or the first of COMPILERS that is installed.

    Raises UserError if the compiler, or a tool that is needed besides, is not installed.
    """
    asked = os.environ.get("CC", "").strip()
    here = ((name,) for name in COMPILERS if shutil.which(name))
    words = _words(asked) if asked else next(here, ())
    if not words:
        raise UserError(
            "rehearsing needs a C compiler: cc, gcc or clang, and none of them is here",
            hint="apt install gcc, or dnf install gcc; or CC names another",
            exit_code=3,
        )
    for tool in (words[0], "nm", "readelf"):
        if shutil.which(tool) is None:
            named = f"CC asks for '{tool}'" if tool == words[0] else f"rehearsing needs '{tool}'"
            raise UserError(
                f"{named}, which is not here",
                hint="apt install gcc binutils, or dnf install gcc binutils",
                exit_code=3,
            )
    return words


def _words(text: str) -> tuple[str, ...]:
    """Return the words of a command; where its quotes are not closed, the text as one word."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return (text,)


def _build_into(kept: Path, torch: Path) -> None:
    """Build in a temporary folder and rename it, so that `kept` is whole or absent; a broken `kept` is replaced."""
    words = compiler()
    with cache.locked(kept.parent):
        if cache.is_whole(kept):  # another process has built it meanwhile
            return
        begins = f"building the hollow CUDA libraries for torch {metadata.version('torch')}, and trying them"
        print(f"{begins}: once, for half a minute or so", file=sys.stderr)
        with cache.working_folder(kept.parent) as work:
            out = work / "lib"
            out.mkdir(mode=0o700)
            _Build(torch, words, work, out).run()
            cache.publish(out, kept)


class _Build:
    """Builds every library that a torch loads into `out`, with objects and stubs in `work`."""

    def __init__(self, torch: Path, compiler: tuple[str, ...], work: Path, out: Path) -> None:
        self._torch = torch
        self._site = torch.parent
        self._compiler = compiler
        self._work = work
        self._out = out

    def run(self) -> None:
        nvml = "libnvidia-ml.so.1"  # first, since a compiler that does not work fails here at once
        self._compile("-shared", f"-Wl,-soname,{nvml}", str(SOURCES / "nvml.c"), "-o", f"{self._out}/{nvml}")
        self._load()
        needed = self._needed()
        runtime = next((name for name in needed if name.startswith("libcudart.so.")), None)
        if runtime is None:
            raise UserError(
                "the hollow device cannot be built: this torch loads no libcudart, which it would stand in for",
                hint="torch's wheels do: pip install torch",
                exit_code=3,
            )
        archs = self._run(sys.executable, "-P", "-c", ASK_ARCHS, CUDA_VISIBLE_DEVICES="").strip()
        major = runtime.rpartition(".")[2]
        for library in table(archs, major):
            soname = next((name for name in needed if name.startswith(f"{library.name}.so.")), None)
            if soname:
                self._library(library, soname)
        self._driver(runtime)
        self._load()

    def _load(self) -> None:
        """Load what is built so far in a process of its own: not every library can be loaded, nor from every folder."""
        self._run(sys.executable, "-P", "-c", LOAD, json.dumps(sys.path), str(self._out))

    def _headers(self) -> list[str]:
        """Return the compiler's flags for the headers: the wheels' own, then triton's copy, which alone has crt/.

        Triton's may be of another CUDA version, so it is searched last.
        """
        own = [f"-I{path}" for path in sorted(self._site.glob("nvidia/*/include"))]
        triton = f"{self._site}/triton/backends/nvidia/include"
        return [*own, "-idirafter", str(SOURCES / "include"), "-idirafter", triton]

    def _needed(self) -> list[str]:
        """Return the SONAMEs that torch's libraries depend on."""
        names = ("libtorch_*.so", "libc10_cuda.so", "libcaffe2_nvrtc.so")
        callers = [path for name in names for path in (self._torch / "lib").glob(name)]
        return sorted({name for path in callers for name in NEEDED.findall(self._run("readelf", "-d", str(path)))})

    def _library(self, library: Library, soname: str) -> None:
        """Compile the sources of one library, with stubs for its other functions that the callers use."""
        objects = []
        for source in library.sources:
            objects.append(f"{self._work}/{soname}-{source}.o")
            self._compile(*self._headers(), *library.flags, "-c", str(SOURCES / source), "-o", objects[-1])
        own = {symbol for path in objects for symbol in self._symbols(path, "-g", "--defined-only")}
        wanted, is_versioned = self._wanted(library, soname)
        stubs, versions = self._work / f"{soname}.c", self._work / f"{soname}.map"
        kinds = {name: "KNOWN" if re.fullmatch(library.known, name) else "UNKNOWN" for name in sorted(wanted - own)}
        lines = [f"{kind}({name})" for name, kind in kinds.items()]
        text = [f"#define NOT_SUPPORTED {library.not_supported}", STUBS, *lines, ""]
        stubs.write_text("\n".join(text), encoding="utf-8")
        versions.write_text(f"{soname if is_versioned else ''} {{\n  global: *;\n}};\n", encoding="utf-8")
        link = ("-shared", f"-Wl,-soname,{soname}", f"-Wl,--version-script,{versions}")
        self._compile(*link, *objects, str(stubs), "-o", f"{self._out}/{soname}", "-lpthread", "-ldl")

    def _callers(self) -> Iterable[Path]:
        yield from self._torch.glob("lib/*.so")
        yield from self._site.glob("torchvision/*.so")
        yield from self._site.glob("nvidia/*/lib/libcusolver.so.*")

    def _wanted(self, library: Library, soname: str) -> tuple[set[str], bool]:
        """Return the functions of a library that the callers use, and whether they ask for versioned symbols."""
        wanted: set[str] = set()
        is_versioned = False
        for path in self._callers():
            for symbol in self._symbols(str(path), "-D", "--undefined-only"):
                name, _, version = symbol.partition("@")
                is_versioned |= version == soname
                if version == soname or (not version and re.match(library.symbols, name)):
                    wanted.add(name)
        return wanted, is_versioned

    def _driver(self, runtime: str) -> None:
        """Link libcuda.so.1: an empty library that depends on the runtime library, which has the driver's functions.

        The link `libcuda.so` is for Triton before 3.9.
        """
        empty = self._work / "empty.c"
        empty.touch()
        link = ("-shared", str(empty), "-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed")
        out = f"{self._out}/libcuda.so.1"
        self._compile(*link, f"-L{self._out}", f"-l:{runtime}", "-Wl,-rpath,$ORIGIN", "-o", out)
        (self._out / "libcuda.so").symlink_to("libcuda.so.1")

    def _symbols(self, path: str, *words: str) -> list[str]:
        return [line.split()[-1] for line in self._run("nm", *words, path).splitlines() if line.strip()]

    def _compile(self, *words: str) -> None:
        self._run(*self._compiler, *FLAGS, *words)

    def _run(self, *given: str, **more: str) -> str:
        """Run a tool and return what it prints; its temporary files are in the working folder, which is removed.

        Raises OSError if the disk is full, and UserError (exit code 3) with the tool's message if it fails otherwise.
        """
        words = list(given)
        environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(self._work), **more}
        try:
            done = _run_limited(words, environment)
        except subprocess.TimeoutExpired:
            raise self._failed(words, f"took more than {LIMIT_SECONDS} s") from None
        if not done.returncode:
            return done.stdout
        for number in FULL:
            if os.strerror(number) in done.stderr or (number == errno.EFBIG and "File size limit" in done.stderr):
                raise OSError(number, os.strerror(number))
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode} and no message"]
        raise self._failed(words, next((line for line in lines if "error" in line), lines[-1]))

    def _failed(self, words: list[str], message: str) -> UserError:
        is_asked = os.environ.get("CC", "").strip() and (words[0] == self._compiler[0] or LOAD in words)
        hint = f"CC chose '{os.environ['CC']}'; without it cc, gcc or clang is taken" if is_asked else None
        return UserError(
            f"the hollow device cannot be built: {Path(words[0]).name}: {message}",
            hint=cache.ELSEWHERE if NOT_EXECUTABLE in message else hint,
            exit_code=3,
        )


def _run_limited(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a tool; kill it and what it started if it raises. Raises subprocess.TimeoutExpired after LIMIT_SECONDS."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, process_group=0
    ) as tool:
        try:
            out, err = tool.communicate(timeout=LIMIT_SECONDS)
        except BaseException:
            os.killpg(tool.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(words, tool.returncode, out, err)
