"""Keeps built libraries: whole or not at all, and only where nobody else can write, since they are executed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from profiler.core.errors import UserError

BUILDING = ".building-"  # prefix of the folder in which a build works
LOCK = ".lock"
DIGESTS = "digests.json"  # of the libraries in the same folder
ELSEWHERE = "XDG_CACHE_HOME chooses another folder"
PRIVATE = 0o700


def folder() -> Path:
    """Return the folder that keeps the built libraries of every torch: below XDG_CACHE_HOME, or ~/.cache.

    Raises UserError if there is no home folder.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if root.startswith("~"):
        raise UserError("there is no home for the hollow CUDA libraries", hint=ELSEWHERE, exit_code=3)
    return Path(root) / "gcprof" / "hollow"


def is_whole(kept: Path) -> bool:
    """Whether a folder has its libraries as they were built: none truncated, changed, missing or added."""
    try:
        digests = msgspec.json.decode((kept / DIGESTS).read_bytes(), type=dict[str, str])
        return bool(digests) and digests == _digests(kept)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, msgspec.DecodeError, ValueError):
        return False


def publish(out: Path, kept: Path) -> None:
    """Rename a finished folder to `kept`, and remove what was there. The caller holds the lock."""
    (out / DIGESTS).write_bytes(msgspec.json.encode(_digests(out)))
    if kept.is_dir() and not kept.is_symlink():
        kept.rename(out.with_name("broken"))  # removed with the build's working folder
    else:
        kept.unlink(missing_ok=True)
    out.rename(kept)


def _digests(kept: Path) -> dict[str, str]:
    """Return the SHA-256 of each library in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(kept.glob("lib*.so*"))}


@contextmanager
def locked(kept: Path) -> Iterator[None]:
    """Create a folder that only its user can enter, and lock it, so that one process at a time works in it.

    Raises UserError (exit code 3) if others can write to it.
    """
    kept.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    kept.mkdir(mode=PRIVATE, exist_ok=True)
    refuse_if_others_write(kept)
    with os.fdopen(os.open(kept / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def working_folder(kept: Path) -> Iterator[Path]:
    """Yield a folder for one build and remove it at the end; those of killed builds are removed first.

    The caller holds the lock, so that no other build is running.
    """
    for leftover in kept.glob(f"{BUILDING}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(dir=kept, prefix=BUILDING))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def refuse_if_others_write(kept: Path) -> None:
    """Raise UserError (exit code 3) if the folder is another user's, or all users can write to it."""
    status = kept.stat()
    reason = None
    if status.st_uid not in (os.getuid(), 0):
        reason = "belongs to another user"
    elif status.st_mode & stat.S_IWOTH:
        reason = "can be written by all users"
    if reason:
        raise UserError(
            f"rehearsing would run libraries from {kept}, which {reason}",
            hint=f"chmod go-w '{kept}', if it is yours; {ELSEWHERE}",
            exit_code=3,
        )
