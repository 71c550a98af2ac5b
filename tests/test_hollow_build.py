"""The libraries of the hollow device: built once, whole or not at all, and what is said where they cannot be built."""

import importlib.util
import json
import os
import platform
import shutil
from types import SimpleNamespace

import pytest

from profiler.core.errors import UserError
from profiler.rehearsal import build, smoke

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


# --- libraries that came with gcprof


@pytest.mark.nightly
@pytest.mark.parametrize("newer", [0, 1])
def test_prebuilt_libraries_of_this_cuda_or_a_newer_one_are_taken_and_no_compiler_is_asked(
    newer, hollow, tmp_path, monkeypatch
):
    """The libraries of a wheel, as far as choosing them goes: a folder with their origin, for the installed torch."""
    major, minor = build.installed().cuda
    folder = tmp_path / f"cu{major}"
    shutil.copytree(build.libraries(), folder)
    (folder / build.ORIGIN).write_text(json.dumps([build.sources_digest(), (major, minor + newer)]), encoding="ascii")
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")

    assert smoke.proven_libraries()[0] == build.libraries() == folder
    assert smoke.readiness().startswith("ready: its libraries are prebuilt and tried")


@pytest.mark.parametrize(("machine", "noun"), [("aarch64", "Linux aarch64"), ("x86_64", "no CUDA")])
def test_a_system_or_a_torch_without_cuda_is_refused(machine, noun, tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "torch")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(platform, "machine", lambda: machine)

    with pytest.raises(UserError, match=noun) as refused:
        build.libraries()

    assert refused.value.exit_code == 3


@pytest.mark.parametrize("is_anothers", [False, pytest.param(True, marks=as_root)])
def test_a_folder_where_others_can_write_is_refused(is_anothers, tmp_path):
    os.chown(tmp_path, NOBODY, -1) if is_anothers else tmp_path.chmod(0o777)

    with pytest.raises(UserError, match="others can write") as refused:
        build.refuse_if_others_write(tmp_path)

    assert refused.value.exit_code == 3
