"""Keeps built libraries: whole or not at all, and only where nobody else can write, since they are executed."""

from __future__ import annotations

import fcntl
import grp
import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from profiler.core.errors import UserError

BUILDING = ".building-"  # prefix of the folder in which a build works
LOCK = ".lock"
DIGESTS = "digests.json"  # of the libraries beside it
ELSEWHERE = "XDG_CACHE_HOME chooses another folder"
PRIVATE = 0o700


def folder() -> Path:
    """Returns the folder that keeps the built libraries of every torch: below XDG_CACHE_HOME, or ~/.cache.

    Raises UserError where there is no home.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if root.startswith("~"):
        raise UserError("there is no home for the hollow CUDA libraries", hint=ELSEWHERE, exit_code=3)
    return Path(root) / "gcprof" / "hollow"


def is_whole(kept: Path) -> bool:
    """Whether a folder has its libraries as they were built: none truncated, changed, missing or added."""
    try:
        digests = msgspec.json.decode((kept / DIGESTS).read_bytes(), type=dict[str, str])
        return digests == _digests(kept)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, msgspec.DecodeError, ValueError):
        return False


def publish(out: Path, kept: Path) -> None:
    """Rename a finished folder to `kept`; what is there is removed. The caller holds the lock."""
    (out / DIGESTS).write_bytes(msgspec.json.encode(_digests(out)))
    if kept.is_dir() and not kept.is_symlink():
        kept.rename(out.with_name("broken"))  # removed with the folder that the build worked in
    else:
        kept.unlink(missing_ok=True)
    out.rename(kept)


def _digests(kept: Path) -> dict[str, str]:
    """Returns the SHA-256 of each library in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(kept.glob("lib*.so*"))}


@contextmanager
def locked(kept: Path) -> Iterator[None]:
    """Makes a folder that only its user can enter, and lets one process at a time work in it.

    Raises UserError (exit code 3) where others can write there, or above it.
    """
    for path in reversed([kept, *kept.parents]):
        with suppress(FileExistsError):  # a file in its place is found by what comes next
            path.mkdir(mode=PRIVATE)
    refuse_if_others_write(kept)
    with os.fdopen(os.open(kept / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def working_folder(kept: Path) -> Iterator[Path]:
    """A folder for one build, which is removed at its end, with those of builds that were killed.

    The caller holds the lock, so that no other build is at work.
    """
    for leftover in kept.glob(f"{BUILDING}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(dir=kept, prefix=BUILDING))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def refuse_if_others_write(kept: Path) -> None:
    """Raises UserError (exit code 3) where another user could put other libraries into a folder, or in its place.

    A folder and all above it must be its user's or root's, and writable by nobody else; above, by others where the
    sticky bit keeps them from what is not theirs, as in /tmp.
    """
    for path in (kept, *kept.parents):
        status = path.stat()
        reason = None
        if status.st_uid not in (os.getuid(), 0):
            reason = f"belongs to {_user(status.st_uid)}"
        elif _is_written_by_others(status) and not (path != kept and status.st_mode & stat.S_ISVTX):
            reason = "can be written by other users"
        if reason:
            raise UserError(
                f"rehearsing would run libraries from {kept}, and {path} {reason}",
                hint=f"chmod go-w '{path}', if it is yours; {ELSEWHERE}",
                exit_code=3,
            )


def _is_written_by_others(status: os.stat_result) -> bool:
    """Whether a folder can be written by users that are not its owner; a group of the user alone is none."""
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_own_group(status.st_gid)


def _is_own_group(number: int) -> bool:
    """Whether a group is the user's private one: of the same name, with nobody else in it."""
    with suppress(KeyError):  # a user or a group without a name
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(number)
        return user.pw_gid == number and user.pw_name == group.gr_name and {*group.gr_mem} <= {user.pw_name}
    return False


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
