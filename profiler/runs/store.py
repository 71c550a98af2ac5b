"""A run folder: manifest.json and the append-only trials.jsonl; read, created, written to by one writer, and removed.

Only runs below the results are removed, never one that is being written to, and never through a link.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple, force_setattr

from profiler.analysis import progress
from profiler.analysis.progress import impossible_reading, unsound
from profiler.core import catalogue, safe_files
from profiler.core.case import Case, Key, Trial, decode, encode
from profiler.core.errors import UserError
from profiler.core.record import HARDWARE, SCHEMA, SOFTWARE, Environment, Equality, Record
from profiler.core.schedule import Shard
from profiler.runs import RESULTS, reference_folder

DIGITS = 16  # of a SHA-256: enough to notice a changed file
T = TypeVar("T")
IGNORED = ".gitignore"  # in RESULTS, where gcprof made it: a run is no part of the repository that it is in


def log_name(key: Key) -> str:
    """Return the name of a trial's log in the folder `logs`, without its extension."""
    return f"{key[0].id}-{key[1]}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to do: the whole plan, in order, and where it began."""

    schema: int = SCHEMA
    created: str  # UTC, ISO 8601
    command: str
    plan: tuple[Trial, ...]
    environment: Environment
    sources: dict[str, str] = {}  # digests of the user's own files that the plan names
    words: dict[str, Any] | UnsetType = UNSET  # the options that made the plan, without --data; UNSET: none did
    shard: Shard | UnsetType = UNSET  # which shard of a sweep the plan is, if it is not the whole


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run folder, read."""

    folder: Path
    manifest: Manifest
    records: tuple[Record, ...]
    warnings: tuple[str, ...] = ()
    num_bytes: int = 0  # of trials.jsonl, without a torn last line

    @property
    def is_script(self) -> bool:
        """Whether it is a run of a user's script, or one of several that it was merged from is."""
        return any(trial.case.command for trial in self.manifest.plan) or any(record.script for record in self.records)

    @property
    def status(self) -> str:
        """`complete`, or `partial` if trials are owed, are in other shards, or a script was ended from outside."""
        if any(record.variant and record.variant.outcome == "timed_out" for record in self.records):
            return "partial"
        return "partial" if self.manifest.shard else progress.status(self.manifest.plan, self.records)


def load(folder: Path, *, without: Collection[str] = (), lines: list[bytes] | None = None) -> Run:
    """Read a run folder, complete or not. Raises UserError (exit code 4) if it is none or cannot be read.

    Readings named in `without` are checked, but not kept. `lines` gets the line of each record as it was stored.
    """
    if not os.path.isfile(folder / "manifest.json"):
        raise UserError(f"'{folder}' is not a run folder", hint="`gcprof runs list` shows the runs", exit_code=4)
    manifest = read_manifest(folder)
    known: dict[tuple[str, object], Any] = {}
    for trial in manifest.plan:
        _share(trial, ("case",), known)
        _share(trial.case, ("model", "optimizer", "device", "precision", "data", "verify"), known)
    records, num_bytes, is_torn_at_end = list[Record](), 0, False
    for where, line in numbered_lines(folder):
        if is_torn(line):
            is_torn_at_end = True
            continue
        record = decoded(line, Record, where)
        for name in without:
            force_setattr(record.readings, name, None)
        _share(record, ("case", "built", "equality", "environment"), known)
        _share(record.readings, ("static_bytes",), known)
        records.append(record)
        num_bytes += len(line)
        if lines is not None:
            lines.append(line)
    return of_records(folder, manifest, records, num_bytes=num_bytes, is_torn=is_torn_at_end)


def _share(struct: msgspec.Struct, names: Iterable[str], known: dict[tuple[str, object], Any]) -> None:
    """Replace each of these fields by the first object that is equal to it: large runs take half the memory."""
    for name in names:
        part = getattr(struct, name)
        key = tuple(part.items()) if isinstance(part, dict) else part
        if isinstance(part, Equality):
            key = None if part.digests else astuple(part)[:-1]  # all of it but its digests, which cannot be a key
        if part is None or key is None:
            continue
        force_setattr(struct, name, known.setdefault((name, key), part))


def of_records(
    folder: Path, manifest: Manifest, records: Iterable[Record], *, num_bytes: int = 0, is_torn: bool = False
) -> Run:
    """Return a run of the records that its folder has. A record that says ok, and by its numbers is not, is invalid."""
    warnings = ["the last line of trials.jsonl is torn and was ignored"] if is_torn else []
    judged, impossible = list[Record](), list[str]()
    for number, record in enumerate(records, start=1):
        impossible += [f"trials.jsonl:{number}: {text}" for text in impossible_reading(record.readings)]
        reason = unsound(record)
        judged.append(msgspec.structs.replace(record, outcome="invalid", detail=reason) if reason else record)
    if impossible:
        more = f", and {len(impossible) - 1} more" if len(impossible) > 1 else ""
        warnings.append(
            f"numbers that cannot be: {impossible[0]}{more}; `gcprof runs validate` shows all that is wrong"
        )
    return Run(folder=folder, manifest=manifest, records=tuple(judged), warnings=tuple(warnings), num_bytes=num_bytes)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a run folder. Raises UserError (exit code 4) if it cannot be read."""
    path = folder / "manifest.json"
    try:
        text = safe_files.read(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    return decoded(text, Manifest, str(path))


def numbered_lines(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield location (`FOLDER/trials.jsonl:3`) and text of each record's line, none if there is no file.

    Raises UserError (exit code 4) if it cannot be read.
    """
    path = folder / "trials.jsonl"
    if not os.path.lexists(path):
        return
    try:
        for number, line in enumerate(safe_files.lines(path), start=1):
            yield f"{path}:{number}", line
    except OSError as error:
        raise _unreadable(path, error) from error


def is_torn(line: bytes) -> bool:
    """Whether a line is the beginning of a record, or zeros, which some file systems leave. Other ends are damage."""
    return not line.endswith(b"\n") and (line.startswith(b"{") or not line.strip(b"\0"))


def decoded(text: bytes, kind: type[T], where: str) -> T:
    """Decode a line or a document. Raises UserError (exit code 4) that begins with `where`.

    A new schema converts the older ones here; so far there is one.
    """
    try:
        schema = safe_files.written_schema(text)
        if schema > SCHEMA:
            message = f"{where}: written by a newer gcprof (schema {schema}, this one reads {SCHEMA})"
            raise UserError(message, hint="upgrade gcprof", exit_code=4)
        value: T = decode(text, kind)
        return value
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{where}: {error}", hint="the file is damaged; the other runs are not", exit_code=4) from error


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot read '{path}': {error.strerror}", hint="the other runs are fine", exit_code=4)


def new_folder(root: Path, models: Sequence[str]) -> Path:
    """Return a path that no other run has: time (UTC), models, and three random bytes. Creates nothing."""
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
    words: dict[str, Any] | UnsetType = UNSET,
    shard: Shard | UnsetType = UNSET,
) -> Run:
    """Create a new run folder with its manifest, and return the run, which has no records.

    Raises UserError if there is one already, or (exit code 74) if it cannot be created.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(
        created=now, command=command, plan=plan, environment=environment, sources=dict(sources),
        words=words, shard=shard,
    )  # fmt: skip
    save(folder, manifest=encode(manifest), trials=b"")
    return Run(folder=folder, manifest=manifest, records=())


def save(folder: Path, *, manifest: bytes, trials: bytes, logs: Sequence[Path] = ()) -> None:
    """Create a new run folder of these two files' texts. Raises UserError as `create` does.

    The manifest comes last: without it a folder is no run. Only logs that are regular files are copied: links may lead
    to anything of the user's.
    """
    refuse_existing(folder)
    is_first = folder.parent == RESULTS and not os.path.lexists(RESULTS)
    try:
        folder.mkdir(parents=True)
        if is_first:  # a folder that gcprof makes by itself is no part of the user's repository
            (RESULTS / IGNORED).write_text("*\n", encoding="utf-8")
    except FileExistsError:  # another process made it meanwhile
        raise _taken(folder) from None
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        (folder / "logs").mkdir()
        (folder / "derived").mkdir()
        for log in logs:
            if safe_files.is_regular(log):
                shutil.copyfile(log, folder / "logs" / log.name)
        (folder / "trials.jsonl").write_bytes(trials)
        safe_files.write(folder / "manifest.json", msgspec.json.format(manifest, indent=1))
    except (OSError, UserError) as error:
        safe_files.remove(folder)
        raise unwritable(folder, error) if isinstance(error, OSError) else error from None


def refuse_existing(folder: Path) -> None:
    """Raise UserError if a new run folder cannot have this name: it exists (2), or cannot be created there (74)."""
    if os.path.lexists(folder):
        raise _taken(folder)
    above = next(path for path in folder.absolute().parents if os.path.exists(path))
    if not os.access(above, os.W_OK | os.X_OK) or not above.is_dir():
        raise unwritable(folder, NotADirectoryError(0, f"'{above}' is not a folder that can be written to"))


def _taken(folder: Path) -> UserError:
    return UserError(f"'{folder}' is there already", hint="name a new folder with -o, or go on with --resume")


def refuse_link(folder: Path) -> None:
    """Raise UserError (exit code 74) if a folder of a run is a link, which may lead out of it."""
    if folder.is_symlink():
        hint = "a run folder that was made elsewhere may lead anywhere: remove the link"
        raise UserError(f"'{folder}' is a link: what is written there would be elsewhere", hint=hint, exit_code=74)


def unwritable(folder: Path, error: OSError) -> UserError:
    """Return the error for a run folder that cannot be written to."""
    message = f"cannot write to '{folder}': {error.strerror}"
    return UserError(message, hint="name a folder you may write to with -o", exit_code=74)


class Writer:
    """The only writer of a run folder: when `append` returns, the record is on disk, in its `trials.jsonl`.

    `is_locked` is False if the file system has no locks: then other writers are not kept out. Raises UserError if
    another process writes to the same folder. A torn last line, left by a crash, is cut off; any other incomplete end
    of the file is damage, and refused (exit code 4). What killed processes were making is removed.
    """

    def __init__(self, folder: Path) -> None:
        for name in ("logs", "derived"):
            refuse_link(folder / name)
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
        except OSError as error:
            message = f"cannot write the result: {error.strerror} (it takes {len(line):,} bytes)"
            raise UserError(message, hint="free some space; what was printed is safe", exit_code=74) from error

    def close(self) -> None:
        os.close(self._file)


def refuse_removal(folder: Path) -> None:
    """Raise UserError for what is no run of the user's below the results, or is reached through a link."""
    whole = folder.resolve()
    if RESULTS.resolve() not in whole.parents:
        message = f"'{folder}' is not below '{RESULTS}': only runs there are removed"
        raise UserError(message, hint="rm -r removes others")
    if reference_folder().resolve() in whole.parents:
        raise UserError(f"'{folder}' is a reference run of gcprof", hint="`gcprof runs list` shows your own")
    if folder.is_symlink() or RESULTS.is_symlink():
        raise UserError(f"'{folder}' is a link, and what it leads to is not removed", hint="remove the link itself")


def remove(folder: Path) -> None:
    """Remove a run folder with its contents; links in it are removed, not followed. The last takes RESULTS with it.

    Raises UserError if it is refused, or if a process writes to it or to one of its shards.
    """
    refuse_removal(folder)
    with ExitStack() as stack:
        for part in (folder, *(path.parent for path in folder.glob("shards/*/trials.jsonl"))):
            stack.callback(os.close, _locked(part)[0])
        try:
            shutil.rmtree(folder)  # follows no link
            if [path.name for path in RESULTS.iterdir()] == [IGNORED]:
                shutil.rmtree(RESULTS)
        except OSError as error:
            message = f"cannot remove '{folder}': {error.strerror}"
            raise UserError(message, hint="what is left of it is no run any more", exit_code=74) from None


def size_bytes(folder: Path) -> int:
    """Return the size of all files in a folder; links are not followed."""
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(file).st_size for file in files)


def is_written(folder: Path) -> bool:
    """Whether another process writes to a run folder now, if the file system has locks."""
    try:
        os.close(_locked(folder)[0])
    except UserError:
        return True
    return False


def _locked(folder: Path) -> tuple[int, bool]:
    """Return the open trials.jsonl, and whether it is locked. Raises UserError if another process has it."""
    try:
        file = os.open(folder / "trials.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        hint = "wait for it, or name another folder with -o"
        raise UserError(f"another gcprof is writing to {folder}", hint=hint) from None
    except OSError:  # some network file systems have no locks
        return file, False
    return file, True


def _cut_torn_line(path: Path, file: int) -> int:
    """Cut off a torn last line; return the size then. Raises UserError (exit code 4) if the end is damage instead."""
    size = os.fstat(file).st_size
    end = os.pread(file, safe_files.MOST_BYTES, max(0, size - safe_files.MOST_BYTES))
    line = end[end.rfind(b"\n") + 1 :]
    if line and not is_torn(line):
        message = f"the last line of '{path}' is damaged: it does not end, and is not the beginning of a record"
        raise UserError(message, hint=f"gcprof runs validate {path.parent}", exit_code=4)
    os.ftruncate(file, size - len(line))
    return size - len(line)


def changes(before: Manifest, *, environment: Environment, sources: Mapping[str, str]) -> tuple[str, ...]:
    """Return every difference of files, versions and device, as `name before -> now`.

    Of files without digests: their names are those of a folder that may come from anyone.
    """
    then, now = before.sources, sources
    known = {name: getattr(before.environment, name) for name in (*SOFTWARE, *HARDWARE)}
    return (
        *(f"{name} was another file" for name in then if name in now and then[name] != now[name]),
        *(f"{name} is not there" for name in then if name not in now),
        *(f"{name} was not recorded" for name in now if name not in then),
        *(
            f"{name} {old} -> {new}"
            for name, old in known.items()
            if old is not None and old != (new := getattr(environment, name))
        ),
    )


def code_digests(cases: Iterable[Case]) -> dict[str, str]:
    """Return the digest of each file of the user's own that the cases name (models' code, plans), by that name.

    The cases must be of words that the user typed. Missing files are left out. What these files import is not looked
    at.
    """
    return {name: digest(path.read_bytes()) for name, path in code_files(cases).items() if path and path.is_file()}


def missing_code(cases: Iterable[Case]) -> tuple[str, ...]:
    """Return the names of the user's files that the cases name and that are missing."""
    return tuple(name for name, path in code_files(cases).items() if not (path and path.is_file()))


def digest(text: bytes) -> str:
    """Return the digest of a file with this text, also of one that is still to be written."""
    return hashlib.sha256(text).hexdigest()[:DIGITS]


def code_files(cases: Iterable[Case]) -> dict[str, Path | None]:
    """Return the path of each file of code or plans that the cases name, by that name; None if it is not found."""
    files: dict[str, Path | None] = {}
    for case in cases:
        name, file = case.model.name, case.strategy.options.get("file")
        if catalogue.CODE.fullmatch(name):
            place = name.rpartition(":")[0]
            try:
                files[place] = catalogue.place(name)
            except UserError:
                files[place] = None
        if case.strategy.name == "plan" and file:
            files[file] = Path(file)
    return files
