"""Adds records to the trials.jsonl of a run folder, as its only writer, under a lock; and removes run folders.

Only runs below the results are removed, never one that is being written to, and never through a link.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path

from profiler.core import safe_files
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.runs import RESULTS, store
from profiler.runs.find import reference_folder


class Writer:
    """The only writer of a run folder: when `append` returns, the record is on disk, in its `trials.jsonl`.

    `is_locked` is False if the file system has no locks: then other writers are not kept out. Raises UserError if
    another process writes to the same folder. A torn last line, left by a crash, is cut off; any other incomplete end
    of the file is damage, and refused (exit code 4). What killed processes were making is removed.
    """

    def __init__(self, folder: Path) -> None:
        for name in ("logs", "derived"):
            store.refuse_link(folder / name)
        self._path = folder / "trials.jsonl"
        self._file, self.is_locked = _locked(folder)
        try:
            self.num_bytes = _cut_torn_line(self._path, self._file)
        except UserError:
            self.close()
            raise
        for place in (folder, folder / "derived"):
            safe_files.sweep(place)

    def append(self, record: Record) -> None:
        """Write one record and wait until it is on disk. Raises UserError (exit code 74) if that fails."""
        line = record.take_line() + b"\n"
        rest = memoryview(line)
        try:
            while rest:  # a disk takes what still fits, and only then says that it is full
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
            is_there = os.fstat(self._file).st_nlink
        except OSError as error:
            message = f"cannot write the result: {error.strerror} (it takes {len(line):,} bytes)"
            raise UserError(message, hint="free some space; what was printed is safe", exit_code=74) from error
        if not is_there:
            message = f"'{self._path}' was removed while this run went on: its records are lost"
            raise UserError(message, hint="nothing more is measured; run it again", exit_code=74)

    def close(self) -> None:
        os.close(self._file)


def tidy(folder: Path) -> None:
    """Clean up what a killed writer left in a run folder; does nothing while another process writes there."""
    with suppress(UserError):
        Writer(folder).close()


def refuse_removal(folder: Path) -> None:
    """Raise UserError for what is no run of the user's below the results, or is reached through a link."""
    root, whole = Path(os.path.abspath(RESULTS)), Path(os.path.abspath(folder))
    if root not in whole.parents:
        message = f"'{folder}' is not below '{RESULTS}': only runs there are removed"
        raise UserError(message, hint="rm -r removes others")
    if reference_folder().resolve() in whole.resolve().parents:
        raise UserError(f"'{folder}' is a reference run of gcprof", hint="`gcprof runs list` shows your own")
    links = [path for path in (root, whole, *whole.parents) if root in (path, *path.parents) and path.is_symlink()]
    if links:
        raise UserError(f"'{links[0]}' is a link, and what it leads to is not removed", hint="remove the link itself")


def remove(folder: Path) -> None:
    """Remove a run folder with its contents; links in it are removed, not followed.

    Raises UserError if it is refused, or if a process writes to it or to one of its shards.
    """
    refuse_removal(folder)
    with ExitStack() as stack:
        for part in (folder, *(path.parent for path in folder.glob("shards/*/trials.jsonl"))):
            stack.callback(os.close, _locked(part)[0])
        try:
            shutil.rmtree(folder)  # follows no link
        except OSError as error:
            message = f"cannot remove '{folder}': {error.strerror}"
            raise UserError(message, hint="what is left of it is no run any more", exit_code=74) from None


def size_bytes(folder: Path) -> int:
    """Return the size of all files in a folder; links are not followed."""
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(file).st_size for file in files)


def _locked(folder: Path) -> tuple[int, bool]:
    """Return the open trials.jsonl, and whether it is locked. Raises UserError if another process has it."""
    try:
        file = os.open(folder / "trials.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise store.unwritable(folder, error) from error
    try:
        return file, safe_files.lock(file)
    except safe_files.TakenError:
        os.close(file)
        hint = "wait for it, or name another folder with -o"
        raise UserError(f"another gcprof is writing to {folder}", hint=hint) from None


def _cut_torn_line(path: Path, file: int) -> int:
    """Cut off a torn last line; return the size then. Raises UserError (exit code 4) if the end is damage instead."""
    size = os.fstat(file).st_size
    end = os.pread(file, safe_files.MOST_BYTES, max(0, size - safe_files.MOST_BYTES))
    line = end[end.rfind(b"\n") + 1 :]
    if not line:
        return size
    if not store.is_torn(line):
        message = f"the last line of '{path}' is damaged: it does not end, and is not the beginning of a record"
        raise UserError(message, hint=f"gcprof runs validate {path.parent}", exit_code=4)
    os.ftruncate(file, size - len(line))
    return size - len(line)
