"""Adds records to the trials.jsonl of a run folder, as its only writer, under a lock; and removes run folders.

Only runs below the results are removed, never one that is being written to, and never through a link.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from profiler.core import safe_files
from profiler.core.case import encode
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.runs import RESULTS, reading, store
from profiler.runs.find import reference_folder

SPOOL_BYTES = 8 << 20  # of this process's own lines, kept in memory; more go to an unnamed file in the run's folder


class LostFileError(UserError):
    """Others have changed a file of the run; `kept` is the run folder that its records were saved in, if any."""

    def __init__(self, message: str, *, hint: str, kept: Path | None = None) -> None:
        super().__init__(message, hint=hint, exit_code=74)
        self.kept = kept


class Writer:
    """The only writer of a run folder: when `append` returns, the record is on disk, in its `trials.jsonl`.

    `is_locked` is False if the file system has no locks: then other writers are not kept out. Raises UserError if
    another process writes to the same folder. A torn last line, left by a crash, is cut off; any other incomplete end
    of the file is damage, and refused (exit code 4).
    """

    def __init__(self, folder: Path) -> None:
        for name in ("logs", "derived"):
            store.refuse_link(folder / name)
        self._folder = folder
        self._signature = folder / ".writer"
        self._file, self.is_locked = _locked(folder)
        self._own = tempfile.SpooledTemporaryFile(SPOOL_BYTES, dir=str(folder))  # noqa: SIM115  `close` closes it
        safe_files.sign_lock(self._signature)
        safe_files.sweep(folder)
        try:
            _cut_torn_line(folder / "trials.jsonl", self._file)
            self._manifest = reading.whole(folder / "manifest.json")
            self._manifest_status = (folder / "manifest.json").stat()
        except UserError:
            self.close()
            raise
        self._size = os.fstat(self._file).st_size
        self._pending = b""  # a line that is not in the file yet

    def append(self, record: Record) -> None:
        """Write one record and wait until it is on disk. Raises UserError (exit code 74) if that fails.

        Raises LostFileError if others removed, replaced or cut the file, before or meanwhile.
        """
        self._pending = line = encode(record) + b"\n"
        self.check()
        self._write(line)
        self._size += len(line)
        self._pending = b""
        self.check()

    def check(self) -> None:
        """Raise LostFileError if others have changed a file of the run; all records are saved in a new folder."""
        change = self._change()
        if change is None:
            return
        what = f"{change} while this run went on"
        name = f"{self._folder.absolute().name[:200]}-kept-{secrets.token_hex(3)}"
        kept = self._folder.parent / name if self._folder.name.strip(".") else self._folder.absolute().parent / name
        try:
            store.save(kept, manifest=self._manifest, trials=self._records())
        except (UserError, OSError) as error:
            why = error.message if isinstance(error, UserError) else error.strerror
            message = f"{what}, and its records cannot be kept: {why}"
            raise LostFileError(message, hint="what was printed is all there is") from error
        message = f"{what}: nothing more is measured, and its records are kept in '{kept}'"
        hint = f"gcprof show {kept} shows them, gcprof run --resume {kept} goes on there"
        raise LostFileError(message, hint=hint, kept=kept)

    def close(self) -> None:
        with suppress(OSError):  # a file that cannot be removed is overwritten by the next writer
            self._signature.unlink(missing_ok=True)  # while the lock is held, so that it is not the next writer's
        with suppress(OSError):  # a full disk may refuse the copy, but the file has all of it
            self._own.close()
        os.close(self._file)

    def _change(self) -> str | None:
        """Return in words what others did to the files of the run; None if they are as they were written."""
        own, manifest = os.fstat(self._file), self._manifest_status
        for name, written, size in (
            ("trials.jsonl", own, self._size),
            ("manifest.json", manifest, manifest.st_size),
        ):
            path = self._folder / name
            try:
                named = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return f"'{path}' was removed"
            except OSError as error:
                return f"'{path}' cannot be reached any more ({error.strerror})"
            if not os.path.samestat(written, named):
                return f"'{path}' was replaced"
            if named.st_size < size:
                return f"'{path}' was cut short"
        if own.st_size > self._size and self.is_locked:
            return f"'{self._folder / 'trials.jsonl'}' was written to by others"
        self._size = own.st_size  # without locks another writer may add to it
        return None

    def _records(self) -> bytes:
        """Return all records of the file, even if its name is gone; if its size changed, what this process wrote."""
        if os.fstat(self._file).st_size != self._size:
            self._own.seek(0)
            return self._own.read() + self._pending
        with open(os.dup(self._file), "rb") as file:
            file.seek(0)
            return file.read() + self._pending

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            self._own.write(line)
            while rest:  # a disk takes what still fits, and only then says that it is full
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            message = f"cannot write the result: {error.strerror} (it takes {len(line):,} bytes)"
            raise UserError(message, hint="free some space; what was printed is safe", exit_code=74) from error


def tidy(folder: Path) -> None:
    """Clean up what a killed writer left in a run folder; does nothing while another process writes there."""
    if os.path.lexists(folder / ".writer"):
        with suppress(UserError):
            Writer(folder).close()


def refuse_removal(folder: Path) -> None:
    """Raise UserError for what is no run of the user's below the results, or is reached through a link."""
    root, whole = Path(os.path.abspath(RESULTS)), Path(os.path.abspath(folder))
    if root not in whole.parents:
        message = f"'{folder}' is not below '{RESULTS}': only runs there are removed"
        raise UserError(message, hint="rm -r removes others")
    if reference_folder().resolve() in whole.resolve().parents:
        raise UserError(f"'{folder}' is a reference run of gcprof", hint="`gcprof list` shows your own")
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
            stack.enter_context(held(part))
        try:
            shutil.rmtree(folder)  # follows no link
        except OSError as error:
            message = f"cannot remove '{folder}': {error.strerror}"
            raise UserError(message, hint="what is left of it is no run any more", exit_code=74) from None


def size_bytes(folder: Path) -> int:
    """Return the size of all files in a folder; links are not followed."""
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(file).st_size for file in files)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep every writer out of a run folder inside the context. Raises UserError if there is one, or may be."""
    file, is_locked = _locked(folder)
    try:
        if not is_locked and os.path.lexists(folder / ".writer"):
            writer = safe_files.lock_holder(folder / ".writer")
            raise UserError(f"a gcprof may be writing to {folder}: {writer}", hint=f"remove {folder / '.writer'} first")
        yield
    finally:
        os.close(file)


def _locked(folder: Path) -> tuple[int, bool]:
    """Return the open trials.jsonl, and whether it is locked. Raises UserError if another process has it."""
    path = folder / "trials.jsonl"
    while True:
        try:
            file = safe_files.opened_to_append(path)
        except OSError as error:
            raise store.unwritable(folder, error) from error
        try:
            is_locked = safe_files.lock(file)
        except safe_files.TakenError:
            os.close(file)
            message = f"another gcprof is writing to {folder}: {safe_files.lock_holder(folder / '.writer')}"
            raise UserError(message, hint="wait for it, or name another folder with -o") from None
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            return file, is_locked
        os.close(file)  # the last holder replaced the file: this one is in no folder any more


def _cut_torn_line(path: Path, file: int) -> None:
    """Cut off a torn last line. Raises UserError (exit code 4) if the end is damage instead."""
    line = reading.unended(path)
    if not line:
        return
    if not reading.is_torn(line):
        message = f"the last line of '{path}' is damaged: it does not end, and is not the beginning of a record"
        raise UserError(message, hint=f"gcprof validate {path.parent}", exit_code=4)
    os.ftruncate(file, os.fstat(file).st_size - len(line))
