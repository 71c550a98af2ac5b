"""The libraries of the hollow device: built once, whole or not at all, and what is said where they cannot be built."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profiler.core.errors import UserError
from profiler.rehearsal import build
from tests.hollow import BUILD
from tests.program import PATIENCE_SECONDS, environment


def started(folder: Path, code: str = BUILD, **more: str) -> subprocess.Popen[str]:
    """A process that builds into a cache of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(**{"XDG_CACHE_HOME": str(folder), **more}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def built(hollow, tmp_path_factory):
    """A cache that two processes filled at once, beside what a killed build had left there; and what each said."""
    cache = tmp_path_factory.mktemp("cache")
    left = cache / "gcprof" / "hollow" / f"{build.BUILDING}killed"
    (left / "lib").mkdir(parents=True)
    old = time.time() - 2 * build.OLD_SECONDS
    os.utime(left, (old, old))
    both = [started(cache), started(cache)]
    said = [process.communicate(timeout=PATIENCE_SECONDS) for process in both]
    return cache, [process.returncode for process in both], said


@pytest.mark.slow
def test_two_builds_at_once_leave_one_whole_folder(built):
    cache, codes, said = built
    (folder,) = (cache / "gcprof" / "hollow").iterdir()

    assert codes == [0, 0], said
    assert {out.strip() for out, _ in said} == {str(folder)}
    assert {path.name.partition(".so")[0] for path in folder.iterdir()} >= {
        "libcudart",
        "libcublas",
        "libcudnn",
        "libnccl",
    }


@pytest.mark.slow
def test_what_is_built_is_kept_so_that_the_next_process_needs_no_compiler(built, monkeypatch):
    cache, _, said = built
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PATH", str(cache))  # there is no tool in it

    assert str(build.libraries()) == said[0][0].strip()


def test_without_a_compiler_it_says_in_one_line_what_to_install(hollow, tmp_path):
    done = hollow.gcprof(
        "run", "--model", "mlp", "--device", "cuda", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path), PATH=str(tmp_path)
    )

    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == "gcprof: rehearsing needs 'gcc', which is not here"
    assert "apt install gcc" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_torch_without_cuda_is_refused(tmp_path):
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    process = started(tmp_path, f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{CAUGHT}")

    out, _ = process.communicate(timeout=PATIENCE_SECONDS)

    assert out.splitlines() == ["3", "rehearsing needs a CUDA build of torch on Linux, and this one has no CUDA"]


CAUGHT = """
from profiler.core.errors import UserError
from profiler.rehearsal.build import libraries
try:
    libraries()
except UserError as error:
    print(error.exit_code)
    print(error.message)
"""


def test_a_cache_that_is_a_file_is_refused(hollow, tmp_path, monkeypatch):
    (tmp_path / "gcprof").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(UserError, match=r"cannot be kept in .*: Not a directory") as refused:
        build.libraries()

    assert refused.value.exit_code == 74


@pytest.mark.slow
def test_a_full_disk_leaves_no_folder_that_looks_whole(hollow, tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
    process = started(tmp_path, limit + CAUGHT)

    out, error = process.communicate(timeout=PATIENCE_SECONDS)

    assert out.splitlines()[0] in ("3", "74"), error
    assert "hollow device" in out
    assert list((tmp_path / "gcprof" / "hollow").iterdir()) == []
