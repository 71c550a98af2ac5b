"""A run folder: manifest.json and the append-only trials.jsonl. Knows nothing of measuring or of screens."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from profiler import strict_json
from profiler.case import Trial, decode, encode
from profiler.errors import UserError
from profiler.migration import lifted
from profiler.record import SCHEMA, Environment, Record

APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run set out to do: the whole plan, in order, and where it began."""

    schema: int = SCHEMA
    created: str  # UTC, ISO 8601
    command: str
    plan: tuple[Trial, ...]
    environment: Environment


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run folder, read."""

    folder: Path
    manifest: Manifest
    records: tuple[Record, ...]
    warnings: tuple[str, ...] = ()


class Writer:
    """The one writer of a run folder: every record that `append` returned from is on disk.

    Raises UserError where another process writes to the same folder. A torn last line, left by a crash, is cut off.
    """

    def __init__(self, folder: Path) -> None:
        for name in ("logs", "derived"):
            refuse_link(folder / name)
        try:
            self._file = os.open(folder / "trials.jsonl", APPENDING, 0o644)
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise UserError(
                f"another gcprof is writing to {folder}", hint="wait for it, or name another folder with -o"
            ) from None
        _cut_torn_line(folder / "trials.jsonl")

    def append(self, record: Record) -> None:
        """Write one record and wait until it is on disk. Raises UserError (exit code 74) where that fails."""
        rest = memoryview(encode(record) + b"\n")
        try:
            while rest:  # a disk takes what still fits, and only then says that it is full
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            raise UserError(
                f"cannot write the result: {error.strerror}",
                hint="free some space; what was printed is safe",
                exit_code=74,
            ) from error

    def close(self) -> None:
        os.close(self._file)


def new_folder(root: Path, models: Sequence[str]) -> Path:
    """A name that no other run has: time (UTC), models, and three random bytes. Makes nothing yet."""
    words = "-".join(dict.fromkeys(model.partition(":")[0] for model in models))
    slug = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:40]
    return root / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{slug}-{secrets.token_hex(3)}"


def create(folder: Path, *, plan: tuple[Trial, ...], command: str, environment: Environment) -> None:
    """Make a new run folder with its manifest, at once or not at all.

    Raises UserError where there is one already, or (exit code 74) where it cannot be made.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(created=now, command=command, plan=plan, environment=environment)
    save(folder, manifest=encode(manifest), trials=b"")


def save(folder: Path, *, manifest: bytes, trials: bytes) -> None:
    """Make a new run folder of these two files' texts, at once or not at all. Raises UserError as `create` does."""
    refuse_existing(folder)
    making = folder.with_name(f".{folder.name}.{secrets.token_hex(3)}.new")
    try:
        making.mkdir(parents=True)
        (making / "logs").mkdir()
        (making / "derived").mkdir()
        _write_safely(making / "trials.jsonl", trials)
        _write_safely(making / "manifest.json", msgspec.json.format(manifest, indent=1))
        making.rename(folder)
        _sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(making, ignore_errors=True)
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
    making = path.with_name(f".{path.name}.{secrets.token_hex(3)}.new")
    try:
        _write_safely(making, text)
        making.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        making.unlink(missing_ok=True)
        raise _unwritable(path.parent, error) from error


def load(folder: Path) -> Run:
    """Read a run folder, complete or not. Raises UserError (exit code 4) where it is none or cannot be read."""
    if not (folder / "manifest.json").is_file():
        raise UserError(f"'{folder}' is not a run folder", hint="`gcprof list` shows the runs", exit_code=4)
    manifest = read_manifest(folder)
    path = folder / "trials.jsonl"
    records, warnings = [], []
    for where, line in _numbered(path):
        if _is_torn(line):
            warnings.append("the last line of trials.jsonl is torn and was ignored")
        else:
            records.append(read_record(line.removesuffix(b"\n"), where))
    return Run(folder=folder, manifest=manifest, records=tuple(records), warnings=tuple(warnings))


def read_manifest(folder: Path) -> Manifest:
    """Raises UserError (exit code 4) where it cannot be read."""
    found: Manifest = _decode(_read(folder / "manifest.json"), Manifest, folder / "manifest.json")
    return found


def read_record(line: bytes, where: str) -> Record:
    """One line of trials.jsonl. Raises UserError (exit code 4) that begins with where it is."""
    try:
        strict_json.check_length(line)
    except strict_json.Malformed as error:
        raise _damaged(where, error) from None
    found: Record = _decode(line, Record, where)
    return found


def documents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The whole lines of a run folder by where they are, `FOLDER/trials.jsonl:3`, the manifest first; not decoded.

    Raises UserError (exit code 4) where a file cannot be read.
    """
    yield str(folder / "manifest.json"), _read(folder / "manifest.json")
    for where, line in _numbered(folder / "trials.jsonl"):
        if not _is_torn(line):
            yield where, line.removesuffix(b"\n")


def torn(folder: Path) -> str | None:
    """Where the torn last line is; None where there is none. Raises UserError (exit code 4) as `documents` does."""
    return next((where for where, line in _numbered(folder / "trials.jsonl") if _is_torn(line)), None)


def runs(folder: Path) -> list[Path]:
    """The run folders below a folder, oldest first."""
    found = [path.parent for path in folder.glob("*/manifest.json") if not path.parent.name.startswith(".")]
    return sorted(found, key=lambda path: path.name)


def _read(path: Path) -> bytes:
    try:
        return strict_json.read(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    except strict_json.Malformed as error:
        raise _damaged(path, error) from error


def _numbered(path: Path) -> Iterator[tuple[str, bytes]]:
    """The lines of a file, which may be missing, by where they are: `FOLDER/trials.jsonl:3`."""
    if not path.exists():
        return
    if not path.is_file():  # a device or a pipe may have no end
        raise _damaged(path, OSError("it is no regular file"))
    try:
        for number, line in enumerate(strict_json.lines(path), start=1):
            yield f"{path}:{number}", line
    except OSError as error:
        raise _unreadable(path, error) from error


def _is_torn(line: bytes) -> bool:
    """Whether it is the beginning of a record, or what some file systems leave of it: zeros. Other ends are damage."""
    is_begun = line.startswith(b"{") or not line.strip(b"\0")
    return is_begun and not line.endswith(b"\n") and len(line) <= strict_json.LINE_BYTES


def _decode(text: bytes, kind: type[Any], where: object) -> Any:
    try:
        schema = SCHEMA_OF.decode(text).schema
        if schema > SCHEMA:
            raise UserError(
                f"{where}: written by a newer gcprof (schema {schema}, this one reads {SCHEMA})",
                hint="upgrade gcprof",
                exit_code=4,
            )
        found = decode(text if schema == SCHEMA else _lifted(text, kind), kind)
        if not _is_own(found, text):
            strict_json.check(text)
        return found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError) as error:
        raise _damaged(where, error) from error


def _is_own(found: Any, text: bytes) -> bool:
    """Whether gcprof would write the same: then nothing is in it twice or hidden, and there is no need to look."""
    own = encode(found)
    return own == text or (isinstance(found, Manifest) and msgspec.json.format(own, indent=1) == text)


def _lifted(text: bytes, kind: type[Any]) -> bytes:
    """An old document in the present schema: old files always open."""
    return msgspec.json.encode(lifted(msgspec.json.decode(text), "manifest" if kind is Manifest else "record"))


class _Schema(msgspec.Struct):
    schema: int


SCHEMA_OF = msgspec.json.Decoder(_Schema)


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot read '{path}': {error.strerror}", hint="the other runs are fine", exit_code=4)


def _damaged(where: object, error: Exception) -> UserError:
    return UserError(f"{where}: {error}", hint="the file is damaged; the other runs are not", exit_code=4)


def _unwritable(folder: Path, error: OSError) -> UserError:
    message = f"cannot write to '{folder}': {error.strerror}"
    return UserError(message, hint="name a folder you may write to with -o", exit_code=74)


def _write_safely(path: Path, text: bytes) -> None:
    with path.open("xb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut_torn_line(path: Path) -> None:
    text = path.read_bytes()
    if text and not text.endswith(b"\n"):
        os.truncate(path, text.rfind(b"\n") + 1)
