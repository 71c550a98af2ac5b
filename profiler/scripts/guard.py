"""Runs a command so that its writes to files vanish when it ends: `guard.py SCRATCH REFUSED WORD...`.

In a mount namespace of its own, each folder below `/`, or where file systems are mounted in it, below that, is covered
by an overlay, whose changes are kept in SCRATCH; files beside such folders cannot be written. The command reads what it
wrote; everybody else sees the files as they were. What lies beside SCRATCH, in most cases in /tmp, is changed in
memory, and so is what lies in /dev/shm. Devices and processes (/dev, /proc, /sys, /run) stay as they are, and so does
SCRATCH itself. Where the system allows none of this, the open descriptor REFUSED gets the reason.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys
import tempfile
from collections.abc import Collection, Sequence

NEW_NAMESPACE, NEW_USER = 0x20000, 0x10000000  # CLONE_NEWNS and CLONE_NEWUSER of sched.h
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 1 << 14, 1 << 18  # MS_... of mount(2)
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
LEFT = ("/dev", "/proc", "/sys", "/run")
SHARED = "/dev/shm"  # memory that processes share by files: covered like a folder, though it is in one that is left
FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}  # MS_...
REFUSED = 125  # the exit code where the system allows no such namespace, as `env` and `timeout` have for their failures

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    scratch, refused, *words = sys.argv[1:]
    try:
        cover(scratch, words)
    except OSError as error:
        os.write(int(refused), f"{error.filename}: {error.strerror}".encode())
        sys.exit(REFUSED)
    os.close(int(refused))
    _libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)  # whoever kills gcprof ends the command, which may end its own
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"gcprof: {words[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def cover(scratch: str, words: Sequence[str]) -> None:
    """Cover this process's view of the file system, for a command of these words.

    Raises OSError where the system allows no overlay.
    """
    here, scratch = os.getcwd(), os.path.realpath(scratch)
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        fields = [line.split() for line in file]
    # every place on which something is mounted, with the options of the last such mount
    mounted = {field[4].encode().decode("unicode_escape"): field[5].split(",") for field in fields}
    places = _places(mounted) if os.getuid() == 0 else _own_places(mounted, words)
    places += [SHARED] if SHARED in mounted and not _has_mounts(SHARED, mounted) else []
    places = [place for place in places if not _is_within(place, scratch)]
    user, group = os.getuid(), os.getgid()
    _check(_libc.unshare(NEW_NAMESPACE | (0 if user == 0 else NEW_USER)), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        if user:
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _mount("none", "/", None, RECURSIVE | PRIVATE)
    lower = {place: os.open(place, os.O_PATH) for place in places}
    kept = os.open(scratch, os.O_PATH)
    memory = os.path.join(scratch, "memory")
    os.mkdir(memory)
    _mount("tmpfs", memory, "tmpfs", 0)
    for number, place in enumerate(places):
        is_around = _is_within(scratch, place)  # an overlay's changes cannot be within what it covers
        is_in_memory = is_around or place == SHARED
        upper, work = (
            os.path.join(memory if is_in_memory else scratch, f"{kind}{number}") for kind in ("upper", "work")
        )
        os.mkdir(upper)
        os.mkdir(work)
        status = os.fstat(lower[place])
        if os.getuid() == 0:
            os.chown(upper, status.st_uid, status.st_gid)
        os.chmod(upper, stat.S_IMODE(status.st_mode))  # which are those of the covered folder
        options = f"lowerdir=/proc/self/fd/{lower[place]},upperdir={upper},workdir={work}"
        _mount("overlay", place, "overlay", 0, options if os.getuid() == 0 else f"{options},userxattr")
        if is_around:
            _mount(f"/proc/self/fd/{kept}", scratch, None, BIND)
    for place, given in mounted.items():  # files beside those folders
        if "rw" in given and place not in places and not any(_is_within(place, left) for left in LEFT):
            _mount("none", place, None, REMOUNT | BIND | READ_ONLY | sum(FLAGS.get(option, 0) for option in given))
    os.chdir(here)


def _is_within(path: str, folder: str) -> bool:
    """Whether the path is the folder, or below it."""
    return f"{path}/".startswith(f"{folder}/")


def _has_mounts(folder: str, mounted: Collection[str]) -> bool:
    return any(place.startswith(f"{folder}/") for place in mounted)


def _places(mounted: Collection[str]) -> list[str]:
    """Return the outermost folders in which no other file system is mounted, those of LEFT aside.

    An overlay would hide what is mounted within it, and for others than root the system refuses it.
    """
    found: list[str] = []
    around = ["/"]
    while around:
        for entry in os.scandir(around.pop()):
            if entry.is_dir(follow_symlinks=False) and entry.path not in LEFT:
                (around if _has_mounts(entry.path, mounted) else found).append(entry.path)
    return sorted(found)


def _own_places(mounted: Collection[str], words: Sequence[str]) -> list[str]:
    """Return what covers all that a user who is not root can write to: the outermost folders that are theirs.

    On the way to the working folder, to home, to temporary files and to what the command names. An overlay cannot
    change what belongs to others; such folders cannot be written, even where they let this user write.
    """
    named = [part for word in words for part in (word, word.partition("=")[2]) if os.path.exists(part)]
    found = set()
    for path in (os.getcwd(), os.path.expanduser("~"), tempfile.gettempdir(), "/tmp", "/var/tmp", *named):
        parts = os.path.realpath(path).split(os.sep)
        folders = ("/".join(parts[:count]) for count in range(2, len(parts) + 1))
        for folder in folders:
            status = os.stat(folder)
            is_ours = stat.S_ISDIR(status.st_mode) and (status.st_uid == os.getuid() or status.st_mode & stat.S_ISVTX)
            if is_ours and not _has_mounts(folder, mounted):
                if not any(_is_within(folder, left) for left in LEFT):
                    found.add(folder)
                break
    return sorted(found)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode() if kind else None, flags, options.encode())
    _check(_libc.mount(*words), target)


def _check(result: int, name: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


if __name__ == "__main__":
    main()
