"""Keeps the user's files from what a command writes: needs torch and the standard library alone.

As a program, `gcprof_saving.py SCRATCH REFUSED WORD...`, it runs a command so that its writes to files vanish when it
ends. In a mount namespace of its own, each folder below `/`, or where file systems are mounted in it, below that, is
covered by an overlay, whose changes are kept in SCRATCH; files beside such folders cannot be written. The command reads
what it wrote; everybody else sees the files as they were. What lies beside SCRATCH, in most cases in /tmp, is changed
in memory, and so is what lies in /dev/shm. Devices and processes (/dev, /proc, /sys, /run) stay as they are, and so
does SCRATCH itself. Where the system allows none of this, the open descriptor REFUSED gets the reason.

There, what a script saves goes to a scratch folder, the folder GCPROF_SAVING: what it saves by torch.save, safetensors,
torch.distributed.checkpoint, by `save_pretrained` and Trainer of transformers, and by Lightning's checkpoints. What the
same run loads again by the same libraries is what it has saved. All else that it writes, by `open` for example, is
written as ever.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any

ROOT = os.path.realpath(os.environ.get("GCPROF_SAVING", os.devnull))
SMALL = 1 << 20  # bytes: a smaller file of a redirected folder is copied, since it may be written in place


def begin(finder: Any) -> None:
    """Redirect what is imported already, and the rest as it is imported: `finder` is that of `sitecustomize`."""
    for name, redirect in HOOKS.items():
        if name in sys.modules:
            redirect(sys.modules[name])

    def load(name: str, execute: Callable[[], None], origin: str) -> None:
        execute()
        HOOKS[name](sys.modules[name])

    sys.meta_path.insert(0, finder({name: partial(load, name) for name in HOOKS}))


def there(path: Any) -> Any:
    """Return where a file that would be written to `path` goes, in a folder that exists; a stream is left alone."""
    if not isinstance(path, str | os.PathLike) or "://" in os.fspath(path):
        return path
    place = _place(path)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.islink(place):
        os.remove(place)  # to a file of the user's
    return type(path)(place) if isinstance(path, os.PathLike) else place  # type: ignore[call-arg]


def here(path: Any) -> Any:
    """Return what is to be read for `path`: what this run saved there, or the file itself."""
    if not isinstance(path, str | os.PathLike) or not os.path.exists(place := _place(path)):
        return path
    return type(path)(place) if isinstance(path, os.PathLike) else place  # type: ignore[call-arg]


def _place(path: str | os.PathLike[str]) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    whole = os.path.join(os.path.realpath(folder), name)
    return whole if f"{whole}{os.sep}".startswith(ROOT + os.sep) else os.path.join(ROOT, whole.lstrip(os.sep))


def folder_there(path: str) -> str:
    """Return the folder that stands for a folder: with its small files, and links to the large ones."""

    def copy(source: str, target: str) -> str:
        if os.path.getsize(source) > SMALL:
            os.symlink(os.path.realpath(source), target)
            return target
        return str(shutil.copy2(source, target))

    place: str = there(path)
    with suppress(FileExistsError):  # another rank was first
        os.makedirs(place)
        if os.path.isdir(path) and place != os.fspath(path):
            shutil.copytree(path, place, dirs_exist_ok=True, copy_function=copy)
    return place


# ---- functions that save, load and remove


def _with(change: Callable[[Any], Any], function: Callable[..., Any], place: int, name: str) -> Callable[..., Any]:
    """Return the function with the argument in this place, or of this name, changed."""

    @wraps(function)
    def call(*words: Any, **keywords: Any) -> Any:
        if place < len(words):
            words = (*words[:place], change(words[place]), *words[place + 1 :])
        elif name in keywords:
            keywords[name] = change(keywords[name])
        return function(*words, **keywords)

    return call


def _removing(plain: Callable[..., None]) -> Callable[..., None]:
    """Return a method that removes what this run saved, and no file of the user's."""

    @wraps(plain)
    def remove(self: Any, path: Any) -> None:
        if os.fspath(here(path)).startswith(ROOT + os.sep):
            plain(self, here(path))

    return remove


# ---- libraries


def _torch(torch: Any) -> None:
    torch.save = torch.serialization.save = _with(there, torch.save, 1, "f")
    torch.load = torch.serialization.load = _with(here, torch.load, 0, "f")


def _safetensors(module: Any) -> None:
    if not hasattr(module.serialize_file, "__code__"):  # of the library itself: not ours already
        module.serialize_file = _with(there, module.serialize_file, 1, "filename")
        module.safe_open = _with(here, module.safe_open, 0, "filename")


def _distributed(module: Any) -> None:
    files = module.FileSystem
    stream = files.create_stream

    @wraps(stream)
    def create_stream(self: Any, path: Any, mode: str) -> Any:
        return stream(self, here(path) if mode.startswith("r") else there(path), mode)

    files.create_stream = create_stream
    files.rename = _with(there, _with(there, files.rename, 1, "path"), 2, "new_path")
    files.mkdir = _with(there, files.mkdir, 1, "path")
    files.exists = _with(here, files.exists, 1, "path")
    files.rm_file = _removing(files.rm_file)


def _hub(module: Any) -> None:
    """Redirect `save_pretrained` of every class that has one: all of them can be pushed to the hub."""

    def __init_subclass__(kind: Any, /, **keywords: Any) -> None:
        if "save_pretrained" in vars(kind):
            kind.save_pretrained = _with(folder_there, kind.save_pretrained, 1, "save_directory")

    module.PushToHubMixin.__init_subclass__ = classmethod(__init_subclass__)


def _trainer(module: Any) -> None:
    plain = module.TrainingArguments.__post_init__

    @wraps(plain)
    def __post_init__(self: Any) -> None:
        self.output_dir = folder_there(self.output_dir or "trainer_output")
        plain(self)

    module.TrainingArguments.__post_init__ = __post_init__


def _lightning(module: Any) -> None:
    kind = module.TorchCheckpointIO
    kind.save_checkpoint = _with(there, kind.save_checkpoint, 2, "path")
    kind.load_checkpoint = _with(here, kind.load_checkpoint, 1, "path")
    kind.remove_checkpoint = _removing(kind.remove_checkpoint)


HOOKS: dict[str, Callable[[Any], None]] = {
    "torch": _torch,
    "safetensors": _safetensors,
    "safetensors.torch": _safetensors,
    "torch.distributed.checkpoint.filesystem": _distributed,
    "transformers.utils.hub": _hub,
    "transformers.training_args": _trainer,
    "lightning.fabric.plugins.io.torch_io": _lightning,
    "lightning_fabric.plugins.io.torch_io": _lightning,
}


# ---- files guarded by overlays

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
