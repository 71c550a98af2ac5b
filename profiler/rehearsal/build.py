"""The libraries of the hollow device: those that came with gcprof, or built here by the C compiler at hand.

They know nothing of torch: one set serves every torch of a CUDA version, and older ones of its major version, with
stubs for all functions that NVIDIA's own libraries export. `python -m profiler.rehearsal.build FOLDER SITE...` makes
those of a wheel, from the folders in which NVIDIA's packages of each CUDA major version are installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from profiler.core.errors import UserError
from profiler.rehearsal import loader

SOURCES = Path(__file__).parent / "hollow"
PLATFORM = ("linux", "x86_64")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-builtin-declaration-mismatch")
NOT_EXECUTABLE = "failed to map segment"  # of dlopen, where a file system is mounted noexec
LOAD = "import runpy, sys; runpy.run_path(sys.argv[1])['open_all'](sys.argv[2])"
BUILDING = ".building-"  # prefix of the folder in which a build works
TOOLS = "apt install gcc binutils, or dnf install gcc binutils; CC names another compiler"
ELSEWHERE = "XDG_CACHE_HOME chooses another folder"
PREBUILT = Path(__file__).parent / "prebuilt"  # in a wheel for Linux: a folder `cu13` for each CUDA major version
ORIGIN = "origin.json"  # in such a folder: the digest of the sources, and the CUDA version of the headers
OF_DRIVER = re.compile(r"CUDAAPI\s+(cu[A-Z]\w+)\s*\(")  # in cuda.h, as what follows
RENAMED = re.compile(r"^#define\s+cu[A-Z]\w+\s+(?:__CUDA_API_\w+\()?(cu[A-Z]\w+)", re.MULTILINE)
VERSION = re.compile(r"(_v\d+)?(_pts[dz])?$")  # of a function's name
LOOKS_UP = ("cuGetProcAddress", "cuGetExportTable")
OF_MAJOR = re.compile(r"cu\d+")  # a folder of NVIDIA's wheels
IN_HEADER = re.compile(r"#define CUDA_VERSION (\d+)")  # in cuda.h: 13020 is CUDA 13.2


STUBS = """#include "refused.h"
int set_error(int error);
static long refuse(const char *name, int *called) {
    if (!*called) tell_refused(name);
    *called = 1;
    return NOT_SUPPORTED;
}
#define API __attribute__((visibility("default")))
#define UNKNOWN(name) API long name(void) { static int called; return refuse(#name, &called); }
#define KNOWN(name) API long name(void) { return 0; }
"""


class Library(NamedTuple):
    """A library that torch loads, and how its stand-in is built."""

    name: str
    not_supported: int  # returned by functions that are neither in the sources nor `known`
    sources: tuple[str, ...]
    flags: tuple[str, ...] = ()
    known: str = ""  # a pattern of functions that only compute values on the device: stubs that return success


RUNTIME = ("device.c", "memory.c", "kernels.c", "streams.c", "graphs.c", "driver.c", "driver_cudnn.c")
BLAS = (  # the routines whose results are on the device, as torch calls them
    r"cublas(([SDCZ]|Cs|Zd)?([Aa]xpy|copy|[Ss]cal|swap|[Dd]ot[cu]?|[Rr]ot|gemv|ger[cu]?|hemv|her2?|symv|syr2?|tr[ms]v|"
    r"[Gg]emm|gemm3m|hemm|her2?kx?|symm|syr2?kx?|tr[ms]m|dgmm|geam|getr[fi])(Strided)?(Batched)?(Ex)?(_v2)?(_64)?|"
    r"Set(AtomicsMode|Emulation\w+|FixedPoint\w+|MathMode|PointerMode|SmCountTarget|Workspace)(_v2)?)"
)
BLAS_LT = r"cublasLt(Matmul|\w+SetAttribute)"
DNN = (
    r"cudnn(BatchNormalization\w+|PoolingForward|SpatialTf\w+|"
    r"Set(Activation|Convolution|Filter|Pooling|Spatial|Tensor)\w+)"
)
CUDA = r"cudaMem(PrefetchAsync|Advise)(_ptsz)?"  # advice on managed memory
NCCL = r"nccl(CommDeregister|CommWindowDeregister)"
FFT = r"cufft(Destroy|SetAutoAllocation|SetStream|SetWorkArea|XtExec)"
SPARSE = (
    r"cusparse(Set(Stream|PointerMode|Mat\w+)|CsrSet\w+|DnMatSet\w+|SpMatSetAttribute|SpM[MV]|SpS[MV]_(analysis|solve)|"
    r"SDDMM(_preprocess)?|Xcoo2csr|XcoosortByRow|Xcsrsort|CreateIdentityPermutation|[SDCZ]bsrm[mv])"
)
NVRTC = r"nvrtc(AddNameExpression|CompileProgram)"
LIBRARIES = (  # each with its library's code for "not supported", or where it has none for an internal error
    Library("libcudart", 801, RUNTIME, known=CUDA),
    Library("libcublas", 15, ("blas.c",), known=BLAS),
    Library("libcublasLt", 15, ("blas.c",), ("-DLT",), known=BLAS_LT),
    Library("libcudnn", 3000, ("cudnn.c", "cudnn_graph.c"), known=DNN),  # since cuDNN 9, which torch has since 2.4
    Library("libnccl", 3, ("nccl.c", "messages.c", "reduce.c"), known=NCCL),
    Library("libcufft", 16, ("cufft.c",), known=FFT),
    Library("libcusparse", 10, ("cusparse.c",), known=SPARSE),
    Library("libnvrtc", 11, ("nvrtc.c",), known=NVRTC),
    Library("libcupti", 27, ("cupti.c",)),
)


class Torch(NamedTuple):
    """An installed torch with CUDA."""

    folder: Path
    cuda: tuple[int, int]  # the version that it is built for
    digest: str  # of its own version

    @property
    def origin(self) -> str:
        return str(self.folder / "__init__.py")


def libraries() -> Path:
    """Return the folder of the libraries for the installed torch: prebuilt, or else built here if not done yet.

    What is built is kept in the user's cache folder under a digest of the sources and the CUDA version. Raises
    UserError with exit code 3 if the system is not Linux x86-64, torch is missing or has no CUDA, a tool is missing, a
    source does not compile, or others can write to the folder; and with 74 if the folder cannot be written.
    """
    return prebuilt(installed()) or built()


def prebuilt(torch: Torch) -> Path | None:
    """Return the folder of the libraries that came with gcprof and serve this torch; None where there are none."""
    folder = PREBUILT / f"cu{torch.cuda[0]}"
    try:
        digest, cuda = json.loads((folder / ORIGIN).read_bytes())
    except FileNotFoundError:
        return None
    return folder if digest == sources_digest() and tuple(cuda) >= torch.cuda else None


def built() -> Path:
    """Return the folder of the libraries that are built here; build them if they are missing.

    They are built in a working folder that is renamed, so that the folder is whole or absent.
    """
    torch = installed()
    kept = place(torch)
    if not kept.is_dir():
        words = compiler()
        with locked() as work:
            if not kept.is_dir():  # no other process has built it meanwhile
                version = ".".join(map(str, torch.cuda))
                print(f"building the hollow CUDA libraries for CUDA {version}: once, for some seconds", file=sys.stderr)
                out = work / "lib"
                out.mkdir(mode=0o700)
                _Build(torch.folder.parent, torch.cuda[0], words, work, out).run()
                out.rename(kept)
    refuse_if_others_write(kept)
    return kept


def place(torch: Torch) -> Path:
    """Return the folder for libraries that are built here for this torch, built or not."""
    return cache_folder().resolve() / f"{sources_digest()}-cu{torch.cuda[0]}.{torch.cuda[1]}"


def installed() -> Torch:
    """Return the installed torch without importing it. Raises UserError where nothing can be rehearsed with it."""
    here = sys.platform, platform.machine()
    if here != PLATFORM:
        raise UserError(
            f"rehearsing works on Linux x86-64 only, and this is {platform.system()} {here[1]}",
            hint="`gcprof predict` needs no device and works here",
            exit_code=3,
        )
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("rehearsing needs torch, which is not installed", hint="pip install torch", exit_code=3)
    folder = Path(spec.submodule_search_locations[0])
    text = (folder / "version.py").read_text(encoding="utf-8") if (folder / "version.py").exists() else ""
    version = loader.CUDA.search(text)
    if version is None or not (folder / "lib" / "libtorch_cuda.so").exists():
        raise UserError(
            "rehearsing needs a CUDA build of torch on Linux, and this one has no CUDA",
            hint="no GPU is needed for it: pip install torch takes the CUDA build",
            exit_code=3,
        )
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Torch(folder, (int(version[1]), int(version[2])), digest)


def sources_digest() -> str:
    """Return a digest of all sources, those in Python too."""
    digest, room = hashlib.sha256(), Path(__file__).parent
    for source in sorted([*room.glob("*.py"), *(path for path in SOURCES.rglob("*") if path.is_file())]):
        digest.update(str(source.relative_to(room)).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def compiler() -> tuple[str, ...]:
    """Return the words of the C compiler's command: those of $CC, or the first of COMPILERS that is installed.

    Raises UserError if there is none.
    """
    words = tuple(os.environ.get("CC", "").split()) or tuple(filter(shutil.which, COMPILERS))[:1]
    if not words or shutil.which(words[0]) is None:
        asked = f"'{words[0]}'" if words else "cc, gcc or clang"
        raise UserError(f"rehearsing needs a C compiler: {asked}, which is not here", hint=TOOLS, exit_code=3)
    return words


def cache_folder() -> Path:
    """Return the folder that keeps the built libraries of every torch: below XDG_CACHE_HOME, or ~/.cache.

    Raises UserError if there is no home folder.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if root.startswith("~"):
        raise UserError("there is no home for the hollow CUDA libraries", hint=ELSEWHERE, exit_code=3)
    return Path(root) / "gcprof" / "hollow"


@contextmanager
def locked() -> Iterator[Path]:
    """Create the cache folder, for its user alone, and lock it; yield a folder in it that is removed at the end.

    What is finished there is renamed to its place. Raises UserError: exit code 3 if others can write to the folder, 74
    if it cannot be written.
    """
    kept = cache_folder()
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_if_others_write(kept)
        with (kept / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in kept.glob(f"{BUILDING}*"):  # of killed builds
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=kept, prefix=BUILDING) as work:
                yield Path(work)
    except OSError as error:
        said = f"the hollow device's libraries cannot be kept in {kept}: {error.strerror or error}"
        raise UserError(said, hint=ELSEWHERE, exit_code=74) from None


def refuse_if_others_write(kept: Path) -> None:
    """Raise UserError (exit code 3) if the folder is another user's, or all users can write to it."""
    status = kept.stat()
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & stat.S_IWOTH:
        raise UserError(
            f"rehearsing would run libraries from {kept}, which others can write",
            hint=f"chmod go-w '{kept}', if it is yours; {ELSEWHERE}",
            exit_code=3,
        )


def of_nvidia(site: Path, cuda: int, pattern: str) -> list[Path]:
    """Return the paths in NVIDIA's wheels for a major version of CUDA, below site-packages.

    From 13 on they are in a folder `cu13`, and before in one for each library. An environment whose torch was replaced
    by one for another version has both.
    """
    majors = {
        path: {int(part[2:]) for part in path.relative_to(site).parts if OF_MAJOR.fullmatch(part)}
        for path in sorted(site.glob(f"nvidia/**/{pattern}"))
    }
    return sorted((path for path in majors if majors[path] <= {cuda}), key=lambda path: not majors[path])


class _Build:
    """Builds every library that a torch loads into `out`, with objects and stubs in `work`."""

    def __init__(self, site: Path, cuda: int, compiler: tuple[str, ...], work: Path, out: Path) -> None:
        self._site, self._cuda = site, cuda  # where NVIDIA's wheels are installed, and the major version that is meant
        self._compiler = compiler
        self._work = work
        self._out = out

    def run(self) -> None:
        nvml = "libnvidia-ml.so.1"
        self._compile("-shared", f"-Wl,-soname,{nvml}", str(SOURCES / "nvml.c"), "-o", f"{self._out}/{nvml}")
        for library in LIBRARIES:
            real = next(iter(of_nvidia(self._site, self._cuda, f"lib/{library.name}.so.*")), None)
            if real is None:
                raise UserError(
                    f"the hollow device cannot be built: there is no {library.name} of NVIDIA's beside this torch",
                    hint="torch's wheels bring it: pip install torch",
                    exit_code=3,
                )
            self._library(library, real)
        # libcuda.so.1 is empty, and depends on the runtime library, which has the driver's functions
        (runtime,) = self._out.glob("libcudart.so.*")
        empty = self._work / "empty.c"
        empty.touch()
        link = ("-shared", str(empty), "-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed")
        out = f"{self._out}/libcuda.so.1"
        self._compile(*link, f"-L{self._out}", f"-l:{runtime.name}", "-Wl,-rpath,$ORIGIN", "-o", out)
        (self._out / "libcuda.so").symlink_to("libcuda.so.1")  # for Triton before 3.9
        # not every library can be loaded, nor from every folder
        self._run(sys.executable, "-P", "-c", LOAD, loader.__file__, str(self._out))

    def _library(self, library: Library, real: Path) -> None:
        """Compile the sources of one library, with stubs for all other functions that NVIDIA's own exports."""
        objects = []
        # the wheels' own headers, then triton's copy, which alone has crt/ and may be of another CUDA version
        own_headers = [f"-I{path}" for path in of_nvidia(self._site, self._cuda, "include")]
        others = (str(SOURCES / "include"), f"{self._site}/triton/backends/nvidia/include")
        headers = [*own_headers, *(word for path in others for word in ("-idirafter", path))]
        for source in library.sources:
            objects.append(f"{self._work}/{library.name}-{source}.o")
            self._compile(*headers, *library.flags, "-c", str(SOURCES / source), "-o", objects[-1])
        own = {symbol for path in objects for symbol in self._symbols(path, "-g", "--defined-only")}
        exported = self._symbols(str(real), "-D", "--defined-only")
        is_versioned = any("@" in symbol for symbol in exported)
        names = {symbol.partition("@")[0] for symbol in exported} - own - {real.name}
        if library.sources == RUNTIME:
            names |= self._of_the_driver(own)
        stubs, versions = self._work / f"{library.name}.c", self._work / f"{library.name}.map"
        lines = [
            f"{'KNOWN' if re.fullmatch(library.known, name) else 'UNKNOWN'}({name})"
            for name in sorted(names)
            if not name.startswith("_Z")  # of C++
        ]
        code = f"set_error({library.not_supported})" if library.sources == RUNTIME else str(library.not_supported)
        text = [f"#define NOT_SUPPORTED {code}", STUBS, *lines, ""]
        stubs.write_text("\n".join(text), encoding="utf-8")
        versions.write_text(f"{real.name if is_versioned else ''} {{\n  global: *;\n}};\n", encoding="utf-8")
        link = ("-shared", f"-I{SOURCES}", f"-Wl,-soname,{real.name}", f"-Wl,--version-script,{versions}")
        self._compile(*link, *objects, str(stubs), "-o", f"{self._out}/{real.name}", "-lpthread", "-ldl", "-lm")

    def _of_the_driver(self, own: set[str]) -> set[str]:
        """Return the driver's functions that its header has and the sources do not, in no version of theirs.

        Without those that look up others: who finds none of these asks for each function by its name.
        """
        header = of_nvidia(self._site, self._cuda, "include/cuda.h")[0].read_text(encoding="utf-8")
        found = set(OF_DRIVER.findall(header)) | set(RENAMED.findall(header))
        here = {VERSION.sub("", symbol) for symbol in own}
        return {name for name in found if VERSION.sub("", name) not in here and not name.startswith(LOOKS_UP)}

    def _symbols(self, path: str, *words: str) -> list[str]:
        return [line.split()[-1] for line in self._run("nm", *words, path).splitlines() if line.strip()]

    def _compile(self, *words: str) -> None:
        self._run(*self._compiler, *FLAGS, *words)

    def _run(self, *words: str) -> str:
        """Run a tool and return what it prints; its temporary files are in the working folder, which is removed.

        Raises UserError (exit code 3) with the tool's message if it fails.
        """
        environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(self._work)}
        try:
            done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        except FileNotFoundError:
            raise UserError(f"rehearsing needs '{words[0]}', which is not here", hint=TOOLS, exit_code=3) from None
        if not done.returncode:
            return done.stdout
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode} and no message"]
        message = next((line for line in lines if "error" in line), lines[-1])
        raise UserError(
            f"the hollow device cannot be built: {Path(words[0]).name}: {message}",
            hint=ELSEWHERE if NOT_EXECUTABLE in message else None,
            exit_code=3,
        )


def main(root: Path, sites: Sequence[Path]) -> None:
    """Build the libraries of a wheel into a folder `cuMAJOR` for each of the sites."""
    for site in sites:
        header = next(site.glob("nvidia/**/include/cuda.h")).read_text(encoding="utf-8")
        number = int(IN_HEADER.findall(header)[0])
        cuda = number // 1000, number % 1000 // 10
        folder = root / f"cu{cuda[0]}"
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as work:
            _Build(site, cuda[0], compiler(), Path(work), folder).run()
        (folder / ORIGIN).write_text(json.dumps([sources_digest(), cuda]), encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(site) for site in sys.argv[2:]])
