"""A run folder of an old schema -> the present one, line by line: knows nothing of screens."""

from __future__ import annotations

from pathlib import Path

import msgspec

from profiler.core.migration import Kind, lifted
from profiler.runs import store


def num_old(folder: Path) -> int:
    """How many documents of a run folder, its manifest among them, a step would change.

    Raises UserError (exit code 4) where the folder cannot be read.
    """
    store.load(folder)  # all of it can be read, or nothing is begun
    return sum(_new(line, _kind(where)) != line for where, line in store.documents(folder))


def copied(folder: Path, to: Path) -> None:
    """Write the run folder anew in the present schema; lines that no step concerns stay as they are, to the byte.

    Raises UserError where the new one is there already, or cannot be written.
    """
    manifest, trials = _texts(folder)
    store.save(to, manifest=manifest, trials=trials, logs=sorted((folder / "logs").glob("*.log")))


def in_place(folder: Path) -> None:
    """The same in the folder itself; a folder that is left half done can be read, and migrated again.

    Raises UserError where another process writes to it. A torn last line is cut off.
    """
    writer = store.Writer(folder)
    try:
        manifest, trials = _texts(folder)
        store.replace(folder / "trials.jsonl", trials)
        store.replace(folder / "manifest.json", msgspec.json.format(manifest, indent=1))
    finally:
        writer.close()


def _texts(folder: Path) -> tuple[bytes, bytes]:
    (_, manifest), *lines = store.documents(folder)
    return _new(manifest, "manifest"), b"".join(_new(line, "record") + b"\n" for _, line in lines)


def _new(text: bytes, kind: Kind) -> bytes:
    before = msgspec.json.decode(text)
    after = lifted(before, kind)
    return text if after is before else msgspec.json.encode(after)


def _kind(where: str) -> Kind:
    return "manifest" if where.endswith("manifest.json") else "record"
