"""A run folder: manifest.json and the append-only trials.jsonl."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from profiler.core import safe_files
from profiler.core.case import Case, Trial, encode
from profiler.core.errors import UserError
from profiler.core.record import SCHEMA, Environment, Record
from profiler.core.schedule import Shard
from profiler.runs import reading
from profiler.runs.sharing import Shared

SPOOL_BYTES = 8 << 20  # of a process's own lines in memory; more are in a nameless file of the run's folder


def log_name(case: Case, round: int) -> str:
    """What the log of a trial is called, in the folder `logs` and without its ending."""
    return f"{case.id}-{round}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run set out to do: the whole plan, in order, and where it began."""

    schema: int = SCHEMA
    created: str  # UTC, ISO 8601
    command: str
    plan: tuple[Trial, ...]
    environment: Environment
    sources: dict[str, str] = {}  # digests of the user's own files that the plan names
    shard: Shard | UnsetType = UNSET  # which part of a sweep the plan is, where it is not the whole


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run folder, read."""

    folder: Path
    manifest: Manifest
    records: tuple[Record, ...]
    warnings: tuple[str, ...] = ()


class LostFileError(UserError):
    """A file of a run is no longer what its writer made of it; `kept` is the run folder with its records, if any."""

    def __init__(self, message: str, *, hint: str, kept: Path | None = None) -> None:
        super().__init__(message, hint=hint, exit_code=74)
        self.kept = kept


class Writer:
    """The one writer of a run folder: every record that `append` returned from is on disk, in the file of that name.

    `is_locked` is False where the file system knows no locks: then nobody is kept from writing besides. Raises
    UserError where another process writes to the same folder. A torn last line, left by a crash, is cut off; another
    end of the file is damage, and refused (exit code 4).
    """

    def __init__(self, folder: Path) -> None:
        for name in ("logs", "derived"):
            refuse_link(folder / name)
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
        """Write one record and wait until it is on disk. Raises UserError (exit code 74) where that fails.

        Raises LostFileError where somebody removed, replaced or cut the file, before or meanwhile.
        """
        self._pending = line = encode(record) + b"\n"
        self.check()
        self._write(line)
        self._size += len(line)
        self._pending = b""
        self.check()

    def check(self) -> None:
        """Raises LostFileError where a file is not the one that was written; all records are kept beside the folder."""
        change = self._change()
        if change is None:
            return
        what = f"{change} while this run went on"
        name = f"{self._folder.absolute().name[:200]}-kept-{secrets.token_hex(3)}"
        kept = self._folder.parent / name if self._folder.name.strip(".") else self._folder.absolute().parent / name
        try:
            save(kept, manifest=self._manifest, trials=self._records())
        except (UserError, OSError) as error:
            why = error.message if isinstance(error, UserError) else error.strerror
            message = f"{what}, and its records cannot be kept: {why}"
            raise LostFileError(message, hint="what was printed is all there is") from error
        raise LostFileError(
            f"{what}: nothing more is measured, and its records are kept in '{kept}'",
            hint=f"gcprof show {kept} shows them, gcprof run --resume {kept} goes on there",
            kept=kept,
        )

    def close(self) -> None:
        with suppress(OSError):  # a name that cannot be removed now the next writer signs anew
            self._signature.unlink(missing_ok=True)  # while the lock is held: the next holder signs anew
        with suppress(OSError):  # what a full disk does not take of the copy, the file has
            self._own.close()
        os.close(self._file)

    def _change(self) -> str | None:
        """What somebody did to the files of the run, in words; None where they are as they were written."""
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
        """All that the file held, which it still does where only its name is gone; else what this process wrote."""
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
            raise UserError(
                f"cannot write the result: {error.strerror} (it takes {len(line):,} bytes)",
                hint="free some space; what was printed is safe",
                exit_code=74,
            ) from error


def new_folder(root: Path, models: Sequence[str]) -> Path:
    """A name that no other run has: time (UTC), models, and three random bytes. Makes nothing yet."""
    words = "-".join(dict.fromkeys(model.partition(":")[0] for model in models))
    slug = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:40]
    return root / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{slug}-{secrets.token_hex(3)}"


def create(
    folder: Path,
    *,
    plan: tuple[Trial, ...],
    command: str,
    environment: Environment,
    sources: Mapping[str, str],
    shard: Shard | UnsetType = UNSET,
) -> None:
    """Make a new run folder with its manifest, at once or not at all.

    Raises UserError where there is one already, or (exit code 74) where it cannot be made.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(
        created=now, command=command, plan=plan, environment=environment, sources=dict(sources), shard=shard
    )
    save(folder, manifest=encode(manifest), trials=b"")


def save(folder: Path, *, manifest: bytes, trials: bytes, logs: Sequence[Path] = ()) -> None:
    """Make a new run folder of these two files' texts, at once or not at all. Raises UserError as `create` does.

    Of the logs regular files are copied, where they are there: links may lead to anything of the user's.
    """
    refuse_existing(folder)
    new = safe_files.beside(folder)
    try:
        new.mkdir(parents=True)
        safe_files.sweep(folder.parent)
        (new / "logs").mkdir()
        (new / "derived").mkdir()
        _write_safely(new / "trials.jsonl", trials)
        _write_safely(new / "manifest.json", msgspec.json.format(manifest, indent=1))
        for log in logs:
            if safe_files.is_regular(log):
                _copy(log, new / "logs" / log.name)
        new.rename(folder)
        _sync_folder(folder.parent)
    except OSError as error:
        safe_files.remove(new)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another process made it meanwhile
            refuse_existing(folder)
        raise _unwritable(folder, error) from error


def refuse_existing(folder: Path) -> None:
    """Raises UserError where a run folder of this name cannot be new: it is there, or a file is in its way (74)."""
    try:
        if folder.exists():
            hint = "name a new folder with -o, or go on with --resume"
            raise UserError(f"'{folder}' is there already", hint=hint)
    except OSError as error:
        raise _unwritable(folder, error) from error
    above = next(path for path in folder.absolute().parents if path.exists())
    if not os.access(above, os.W_OK | os.X_OK) or not above.is_dir():
        raise _unwritable(folder, NotADirectoryError(0, f"'{above}' is not a folder that can be written to"))


def refuse_link(folder: Path) -> None:
    """Raises UserError (exit code 74) for a folder of a run that leads out of it."""
    if folder.is_symlink():
        hint = "a run folder that was made elsewhere may lead anywhere: remove the link"
        raise UserError(f"'{folder}' is a link: what is written there would be elsewhere", hint=hint, exit_code=74)


def replace(path: Path, text: bytes) -> None:
    """Write a file of a run folder anew, at once or not at all. Raises UserError (exit code 74) where that fails."""
    new = safe_files.beside(path)
    try:
        _write_safely(new, text)
        new.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        safe_files.remove(new)
        raise _unwritable(path.parent, error) from error


def load(folder: Path, *, without: Collection[str] = ()) -> Run:
    """Read a run folder, complete or not. Raises UserError (exit code 4) where it is none or cannot be read.

    Readings of the names in `without` are read and checked like all, and not kept.
    """
    if not os.path.isfile(folder / "manifest.json"):
        raise UserError(f"'{folder}' is not a run folder", hint="`gcprof list` shows the runs", exit_code=4)
    manifest = read_manifest(folder)
    path = folder / "trials.jsonl"
    records, warnings, shared = [], [], Shared(manifest.plan, without=without)
    for where, line in reading.numbered(path):
        if reading.is_torn(line):
            warnings.append("the last line of trials.jsonl is torn and was ignored")
        else:
            records.append(shared.read(line.removesuffix(b"\n"), where))
    return Run(folder=folder, manifest=manifest, records=tuple(records), warnings=tuple(warnings))


def read_manifest(folder: Path) -> Manifest:
    """Raises UserError (exit code 4) where it cannot be read."""
    path = folder / "manifest.json"
    manifest: Manifest = reading.decoded(reading.whole(path), Manifest, path)
    return manifest


def read_record(line: bytes, where: str) -> Record:
    """One line of trials.jsonl. Raises UserError (exit code 4) that begins with where it is."""
    record: Record = reading.decoded(line, Record, where)
    return record


def documents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The whole lines of a run folder by where they are, `FOLDER/trials.jsonl:3`, the manifest first; not decoded.

    Raises UserError (exit code 4) where a file cannot be read.
    """
    yield str(folder / "manifest.json"), reading.whole(folder / "manifest.json")
    for where, line in reading.numbered(folder / "trials.jsonl"):
        if not reading.is_torn(line):
            yield where, line.removesuffix(b"\n")


def torn(folder: Path) -> str | None:
    """Where the torn last line is; None where there is none. Raises UserError (exit code 4) as `documents` does."""
    return next((where for where, line in reading.numbered(folder / "trials.jsonl") if reading.is_torn(line)), None)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep every writer out of a run folder meanwhile. Raises UserError where one is in it, or might be."""
    file, is_locked = _locked(folder)
    try:
        if not is_locked and os.path.lexists(folder / ".writer"):
            writer = safe_files.lock_holder(folder / ".writer")
            raise UserError(f"a gcprof may be writing to {folder}: {writer}", hint=f"remove {folder / '.writer'} first")
        yield
    finally:
        os.close(file)


def _locked(folder: Path) -> tuple[int, bool]:
    """The open trials.jsonl, and whether nobody else can have it. Raises UserError."""
    path = folder / "trials.jsonl"
    while True:
        try:
            file = safe_files.opened_to_append(path)
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            is_locked = safe_files.lock(file)
        except safe_files.TakenError:
            os.close(file)
            raise UserError(
                f"another gcprof is writing to {folder}: {safe_files.lock_holder(folder / '.writer')}",
                hint="wait for it, or name another folder with -o",
            ) from None
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            return file, is_locked
        os.close(file)  # who held it wrote the file anew: this one is of no folder any more


def _unwritable(folder: Path, error: OSError) -> UserError:
    message = f"cannot write to '{folder}': {error.strerror}"
    return UserError(message, hint="name a folder you may write to with -o", exit_code=74)


def _write_safely(path: Path, text: bytes) -> None:
    with path.open("xb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)


def _copy(path: Path, to: Path) -> None:
    with safe_files.opened(path) as file, to.open("xb") as copy:
        shutil.copyfileobj(file, copy)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut_torn_line(path: Path, file: int) -> None:
    """Raises UserError (exit code 4) where the end is no torn record, but damage."""
    line = reading.unended(path)
    if not line:
        return
    if not reading.is_torn(line):
        message = f"the last line of '{path}' is damaged: it does not end, and is not the beginning of a record"
        raise UserError(message, hint=f"gcprof validate {path.parent}", exit_code=4)
    os.ftruncate(file, os.fstat(file).st_size - len(line))
