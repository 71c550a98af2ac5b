"""The libraries of the hollow device: built once, whole or not at all, and what is said where they cannot be built."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.core.errors import UserError
from profiler.rehearsal import build, smoke
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


@pytest.mark.parametrize(("cuda", "expected"), [(12, ["cuda_runtime"]), (13, ["cu13", "cuda_runtime"])])
def test_beside_a_torch_that_was_replaced_its_own_version_of_nvidias_files_is_taken(tmp_path, cuda, expected):
    """As torch 2.9 for CUDA 12 in an environment that had torch 2.11 for CUDA 13, whose wheels stay."""
    for folder in ("cu13", "cuda_runtime"):
        (tmp_path / "nvidia" / folder / "include").mkdir(parents=True)
        (tmp_path / "nvidia" / folder / "include" / "cuda.h").touch()

    found = build.of_nvidia(tmp_path, cuda, "include/cuda.h")

    assert [path.parts[-3] for path in found] == expected


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


@pytest.fixture(scope="module")
def built(hollow, tmp_path_factory):
    """A cache that two processes filled at once, beside what a killed build had left there; and what each said."""
    root = tmp_path_factory.mktemp("cache")
    (root / "gcprof" / "hollow" / f"{build.BUILDING}killed" / "lib").mkdir(parents=True)
    both = [started(root), started(root)]
    said = [process.communicate(timeout=PATIENCE_SECONDS) for process in both]
    return root, [process.returncode for process in both], said


def test_a_torch_without_cuda_is_refused(tmp_path):
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()

    said = caught(tmp_path, f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{CAUGHT}")

    assert said[:2] == ["3", "rehearsing needs a CUDA build of torch on Linux, and this one has no CUDA"]


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


# --- who can write there


def writable_by_all(folder: Path) -> None:
    folder.chmod(0o777)


def anothers(folder: Path) -> None:
    os.chown(folder, NOBODY, -1)


@pytest.mark.parametrize("let_in", [writable_by_all, pytest.param(anothers, marks=as_root)])
def test_a_folder_where_others_can_write_is_refused(let_in, tmp_path):
    let_in(tmp_path)

    with pytest.raises(UserError, match="others can write") as refused:
        build.refuse_if_others_write(tmp_path)

    assert refused.value.exit_code == 3
    assert "XDG_CACHE_HOME" in str(refused.value.hint)
