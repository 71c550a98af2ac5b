"""The folder of built libraries and of verdicts on them: nobody else can write there, since they are executed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiler.core.errors import UserError

BUILDING = ".building-"  # prefix of the folder in which a build works
ELSEWHERE = "XDG_CACHE_HOME chooses another folder"


def folder() -> Path:
    """Return the folder that keeps the built libraries of every torch: below XDG_CACHE_HOME, or ~/.cache.

    Raises UserError if there is no home folder.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if root.startswith("~"):
        raise UserError("there is no home for the hollow CUDA libraries", hint=ELSEWHERE, exit_code=3)
    return Path(root) / "gcprof" / "hollow"


@contextmanager
def locked(kept: Path) -> Iterator[Path]:
    """Create a folder that only its user can enter, and lock it; yield a folder in it that is removed at the end.

    What is finished there is renamed to its place. Raises UserError (exit code 3) if others can write to the folder.
    """
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_if_others_write(kept)
    with (kept / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in kept.glob(f"{BUILDING}*"):  # of killed builds
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=kept, prefix=BUILDING) as work:
            yield Path(work)


def refuse_if_others_write(kept: Path) -> None:
    """Raise UserError (exit code 3) if the folder is another user's, or all users can write to it."""
    status = kept.stat()
    if status.st_uid in (os.getuid(), 0) and not status.st_mode & stat.S_IWOTH:
        return
    raise UserError(
        f"rehearsing would run libraries from {kept}, which others can write",
        hint=f"chmod go-w '{kept}', if it is yours; {ELSEWHERE}",
        exit_code=3,
    )
