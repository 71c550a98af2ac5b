"""The libraries of the hollow device: built once, whole or not at all, and what is said where they cannot be built."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.core.errors import UserError
from profiler.rehearsal import build, cache, smoke
from tests.faults.trials import gone
from tests.hollow import BUILD
from tests.program import PATIENCE_SECONDS, environment

CAUGHT = """
from profiler.core.errors import UserError
from profiler.rehearsal.build import libraries
try:
    print(libraries())
except UserError as error:
    print(error.exit_code)
    print(error.message)
    print(error.hint)
"""
NOBODY = 54321  # a user and a group that are not this process's
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")


def started(folder: Path, code: str = BUILD, **more: str) -> subprocess.Popen[str]:
    """A process that builds into a cache of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(**{"XDG_CACHE_HOME": str(folder), **more}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def caught(folder: Path, code: str = CAUGHT, **more: str) -> list[str]:
    """What is said where a build into a cache of its own fails: the exit code, the message and the hint."""
    out, error = started(folder, code, **more).communicate(timeout=PATIENCE_SECONDS)
    assert out, error
    return out.splitlines()


def folders(root: Path) -> list[Path]:
    """What is kept in a cache, without the lock."""
    return [path for path in (root / "gcprof" / "hollow").iterdir() if path.is_dir()]


def program(folder: Path, name: str, text: str) -> Path:
    """A shell script that can be run."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def tools(folder: Path, *compilers: str, says: str = "error: it compiles nothing") -> str:
    """A PATH with compilers that fail, and with the tools that are needed beside them."""
    for name in compilers:
        program(folder, name, f'echo "{name}: {says}" >&2; exit 1')
    (folder / "nm").symlink_to(str(shutil.which("nm")))
    return str(folder)


@pytest.fixture(scope="module")
def built(hollow, tmp_path_factory):
    """A cache that two processes filled at once, beside what a killed build had left there; and what each said."""
    root = tmp_path_factory.mktemp("cache")
    (root / "gcprof" / "hollow" / f"{cache.BUILDING}killed" / "lib").mkdir(parents=True)
    both = [started(root), started(root)]
    said = [process.communicate(timeout=PATIENCE_SECONDS) for process in both]
    return root, [process.returncode for process in both], said


@pytest.fixture
def kept(built, tmp_path):
    """A copy of the cache, and the one folder in it."""
    shutil.copytree(built[0], tmp_path, symlinks=True, dirs_exist_ok=True)
    (folder,) = folders(tmp_path)
    return tmp_path, folder


# --- what is built


@pytest.mark.nightly
def test_two_builds_at_once_leave_one_whole_folder(built):
    root, codes, said = built
    (folder,) = folders(root)

    assert codes == [0, 0], said
    assert {out.strip() for out, _ in said} == {str(folder)}
    assert sorted(error.count("building the hollow CUDA libraries") for _, error in said) == [0, 1]
    assert {path.name.partition(".so")[0] for path in folder.glob("lib*")} >= {
        "libcudart",
        "libcublas",
        "libcudnn",
        "libnccl",
    }


# --- compilers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cc", "gcc", "clang"])
def test_any_of_three_compilers_is_taken(name, hollow, tmp_path):
    said = caught(tmp_path, PATH=tools(tmp_path, name))

    assert said[:2] == ["3", f"the hollow device cannot be built: {name}: {name}: error: it compiles nothing"]


def test_libraries_that_cannot_be_loaded_are_not_kept(hollow, tmp_path):
    """Those with a sanitizer need its own library to be there before any other."""
    said = caught(tmp_path, CC="gcc -fsanitize=address")

    assert (said[0], folders(tmp_path)) == ("3", [])
    assert "ASan" in said[1]
    assert said[2].startswith("CC chose 'gcc -fsanitize=address'")


@pytest.mark.slow
def test_a_compiler_that_never_ends_is_ended_with_all_that_it_started(hollow, tmp_path):
    program(tmp_path, "gcc", f"sleep 600 & echo $! > {tmp_path}/started; wait")
    limit = "from profiler.rehearsal import build; build.LIMIT_SECONDS = 0.5\n"

    said = caught(tmp_path, limit + CAUGHT, CC=str(tmp_path / "gcc"))

    assert (said[0], folders(tmp_path)) == ("3", [])
    assert "0.5 s" in said[1]
    assert gone({int((tmp_path / "started").read_text())})


def test_without_a_compiler_it_says_in_one_line_what_to_install(hollow, tmp_path):
    done = hollow.gcprof(
        "run", "--model", "mlp", "--device", "cuda", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path), PATH=str(tmp_path)
    )

    told = "gcprof: rehearsing needs a C compiler: cc, gcc or clang, and none of them is here"
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == told
    assert "apt install gcc" in done.stderr
    assert "Traceback" not in done.stderr


# --- another torch, another system


def fake_torch(folder: Path, cuda: str) -> str:
    """The beginning of a program whose torch is built for this CUDA version, without NVIDIA's libraries beside it."""
    library = folder / "torch" / "lib" / "libtorch_cuda.so"
    library.parent.mkdir(parents=True)
    library.touch()
    (folder / "torch" / "__init__.py").touch()
    (folder / "torch" / "version.py").write_text(f"cuda: Optional[str] = {cuda}\n", encoding="utf-8")
    return f"import sys; sys.path.insert(0, {str(folder)!r})\n"


def test_a_torch_without_cuda_is_refused(tmp_path):
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()

    said = caught(tmp_path, f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{CAUGHT}")

    assert said[:2] == ["3", "rehearsing needs a CUDA build of torch on Linux, and this one has no CUDA"]


@pytest.mark.parametrize(
    ("cuda", "reason"),
    [("'13.2'", "there is no libcudart of NVIDIA's beside this torch"), ("None", "this one names no CUDA version")],
)
def test_a_torch_without_nvidias_wheels_is_refused(cuda, reason, hollow, tmp_path):
    said = caught(tmp_path, fake_torch(tmp_path, cuda) + CAUGHT)

    assert said[0] == "3"
    assert reason in said[1]


# --- libraries that came with gcprof


@pytest.fixture
def shipped(built, tmp_path, monkeypatch):
    """The libraries of a wheel, as far as choosing them goes: a folder with their origin, for the installed torch."""
    torch = build.installed()
    folder = tmp_path / f"cu{torch.cuda[0]}"
    shutil.copytree(folders(built[0])[0], folder)

    def of(sources: str = build.sources_digest(), cuda: tuple[int, int] = torch.cuda) -> Path | None:
        (folder / build.ORIGIN).write_text(json.dumps([sources, cuda]), encoding="ascii")
        return build.prebuilt(torch)

    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return of


@pytest.mark.nightly
def test_prebuilt_libraries_of_this_cuda_or_a_newer_one_are_taken_and_no_compiler_is_asked(shipped, monkeypatch):
    major, minor = build.installed().cuda
    monkeypatch.setenv("PATH", "")

    assert shipped(cuda=(major, minor + 1)) == build.libraries()
    assert shipped() == build.libraries()
    assert smoke.proven_libraries()[0] == build.libraries()
    assert smoke.readiness().startswith("ready: its libraries are prebuilt and tried")


@pytest.mark.nightly
def test_prebuilt_libraries_of_other_sources_or_an_older_cuda_are_not_taken(shipped):
    major, minor = build.installed().cuda

    assert shipped(sources="0123") is None
    assert shipped(cuda=(major, minor - 1)) is None


@pytest.mark.nightly
def test_where_prebuilt_libraries_fail_others_are_built(shipped, built, monkeypatch):
    folder = shipped()
    next(folder.glob("libcudart.so.*")).write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(built[0]))

    assert smoke.proven_libraries()[0] == folders(built[0])[0]


@pytest.mark.parametrize(
    ("system", "machine", "name"), [("linux", "aarch64", "Linux aarch64"), ("darwin", "arm64", "Darwin arm64")]
)
def test_another_system_is_refused_with_what_works_there(system, machine, name, monkeypatch):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "system", lambda: name.split()[0])

    with pytest.raises(UserError) as refused:
        build.libraries()

    assert refused.value.exit_code == 3
    assert refused.value.message == f"rehearsing works on Linux x86-64 only, and this is {name}"
    assert "gcprof predict" in str(refused.value.hint)


# --- a cache that is broken


def truncate(folder: Path) -> None:
    library = next(folder.glob("libcudart.so.*"))
    library.write_bytes(library.read_bytes()[:100])


def lose(folder: Path) -> None:
    next(folder.glob("libcublas.so.*")).unlink()


def change(folder: Path) -> None:
    library = next(folder.glob("libcudnn.so.*"))
    library.write_bytes(library.read_bytes().replace(b"cudnn", b"cudnm", 1))


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def replace_by_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder", encoding="utf-8")


def forget_digests(folder: Path) -> None:
    (folder / cache.DIGESTS).write_text("{", encoding="utf-8")


@pytest.mark.nightly
@pytest.mark.parametrize("damage", [truncate, lose, change, empty, replace_by_a_file, forget_digests])
def test_a_broken_folder_is_not_taken_for_whole(damage, kept):
    _, folder = kept
    assert cache.is_whole(folder)

    damage(folder)

    assert not cache.is_whole(folder)


@pytest.mark.nightly
@pytest.mark.parametrize("damage", [truncate, replace_by_a_file])
def test_a_broken_folder_is_built_anew_once(damage, kept):
    root, folder = kept
    damage(folder)

    out, error = started(root).communicate(timeout=PATIENCE_SECONDS)

    assert out.strip() == str(folder), error
    assert cache.is_whole(folder)
    assert folders(root) == [folder]
    assert caught(root, PATH=str(root)) == [str(folder)]  # where there is no compiler any more


# --- a disk that is full


@pytest.mark.nightly
def test_a_full_disk_leaves_no_folder_that_looks_whole(hollow, tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"

    said = caught(tmp_path, limit + CAUGHT)

    assert said[0] == "74"
    assert "hollow device's libraries cannot be kept" in said[1]
    assert folders(tmp_path) == []


# --- who can write there


def writable_by_all(folder: Path) -> str:
    folder.chmod(0o777)
    return "can be written by all users"


def anothers(folder: Path) -> str:
    os.chown(folder, NOBODY, -1)
    return "belongs to another user"


@pytest.mark.parametrize("let_in", [writable_by_all, pytest.param(anothers, marks=as_root)])
def test_a_folder_where_others_can_write_is_refused(let_in, tmp_path):
    reason = let_in(tmp_path)

    with pytest.raises(UserError, match=reason) as refused:
        cache.refuse_if_others_write(tmp_path)

    assert refused.value.exit_code == 3
    assert "XDG_CACHE_HOME" in str(refused.value.hint)
