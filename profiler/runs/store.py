"""A run folder: manifest.json and the append-only trials.jsonl; created, read, and its files replaced."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from profiler.analysis import progress
from profiler.analysis.sanity import impossible_reading, unsound
from profiler.core import safe_files
from profiler.core.case import Case, Trial, encode
from profiler.core.errors import UserError
from profiler.core.record import SCHEMA, Environment, Record
from profiler.core.schedule import Shard
from profiler.runs import reading
from profiler.runs.reading import Shared


def log_name(case: Case, round: int) -> str:
    """Return the name of a trial's log in the folder `logs`, without its extension."""
    return f"{case.id}-{round}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to do: the whole plan, in order, and where it began."""

    schema: int = SCHEMA
    created: str  # UTC, ISO 8601
    command: str
    plan: tuple[Trial, ...]
    environment: Environment
    sources: dict[str, str] = {}  # digests of the user's own files that the plan names
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
    shard: Shard | UnsetType = UNSET,
) -> Run:
    """Create a new run folder with its manifest, atomically, and return the run, which has no records.

    Raises UserError if there is one already, or (exit code 74) if it cannot be created.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(
        created=now, command=command, plan=plan, environment=environment, sources=dict(sources), shard=shard
    )
    save(folder, manifest=encode(manifest), trials=b"")
    return Run(folder=folder, manifest=manifest, records=())


def save(folder: Path, *, manifest: bytes, trials: bytes, logs: Sequence[Path] = ()) -> None:
    """Create a new run folder of these two files' texts, atomically. Raises UserError as `create` does.

    Only logs that are regular files are copied: links may lead to anything of the user's.
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
                shutil.copyfile(log, new / "logs" / log.name)
        new.rename(folder)
        _sync_folder(folder.parent)
    except OSError as error:
        safe_files.remove(new)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # another process made it meanwhile
            refuse_existing(folder)
        raise unwritable(folder, error) from error


def refuse_existing(folder: Path) -> None:
    """Raise UserError if a new run folder cannot have this name: it exists (2), or cannot be created there (74)."""
    try:
        if folder.exists():
            hint = "name a new folder with -o, or go on with --resume"
            raise UserError(f"'{folder}' is there already", hint=hint)
    except OSError as error:
        raise unwritable(folder, error) from error
    above = next(path for path in folder.absolute().parents if path.exists())
    if not os.access(above, os.W_OK | os.X_OK) or not above.is_dir():
        raise unwritable(folder, NotADirectoryError(0, f"'{above}' is not a folder that can be written to"))


def refuse_link(folder: Path) -> None:
    """Raise UserError (exit code 74) if a folder of a run is a link, which may lead out of it."""
    if folder.is_symlink():
        hint = "a run folder that was made elsewhere may lead anywhere: remove the link"
        raise UserError(f"'{folder}' is a link: what is written there would be elsewhere", hint=hint, exit_code=74)


def replace(path: Path, text: bytes) -> None:
    """Replace a file of a run folder, atomically. Raises UserError (exit code 74) if that fails."""
    new = safe_files.beside(path)
    try:
        _write_safely(new, text)
        new.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        safe_files.remove(new)
        raise unwritable(path.parent, error) from error


def load(folder: Path, *, without: Collection[str] = (), texts: list[bytes] | None = None) -> Run:
    """Read a run folder, complete or not. Raises UserError (exit code 4) if it is none or cannot be read.

    Readings named in `without` are checked, but not kept. `texts` gets the manifest and each record's line as written.
    """
    if not os.path.isfile(folder / "manifest.json"):
        raise UserError(f"'{folder}' is not a run folder", hint="`gcprof list` shows the runs", exit_code=4)
    text = reading.whole(folder / "manifest.json")
    manifest: Manifest = reading.decoded(text, Manifest, folder / "manifest.json")
    lines, shared = [text], Shared(manifest.plan, without=without)
    records, num_bytes, torn = list[Record](), 0, False
    for where, line in reading.numbered(folder / "trials.jsonl"):
        if reading.is_torn(line):
            torn = True
            continue
        records.append(shared.read(line, where))
        num_bytes += len(line)
        if texts is not None:
            lines.append(line.removesuffix(b"\n"))
    if texts is not None:
        texts += lines
    return of_records(folder, manifest, records, num_bytes=num_bytes, is_torn=torn)


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
        warnings.append(f"numbers that cannot be: {impossible[0]}{more}; `gcprof validate` shows all that is wrong")
    return Run(folder=folder, manifest=manifest, records=tuple(judged), warnings=tuple(warnings), num_bytes=num_bytes)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a run folder. Raises UserError (exit code 4) if it cannot be read."""
    path = folder / "manifest.json"
    manifest: Manifest = reading.decoded(reading.whole(path), Manifest, path)
    return manifest


def read_record(line: bytes, where: str) -> Record:
    """Decode one line of trials.jsonl. Raises UserError (exit code 4) that begins with `where`."""
    record: Record = reading.decoded(line, Record, where)
    return record


def unwritable(folder: Path, error: OSError) -> UserError:
    """Return the error for a run folder that cannot be written to."""
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
