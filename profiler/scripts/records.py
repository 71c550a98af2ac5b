"""Variants of a user's command as the records of a run folder, one a process, and read from them again."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from profiler import __version__
from profiler.core import gpu_specs
from profiler.core.case import Case, Choice, Trial
from profiler.core.gpu_specs import HOLLOW
from profiler.core.record import Environment, ProcessFacts, Readings, Record, VariantFacts
from profiler.core.safe_files import hide
from profiler.scripts.report import Process, Variant

NO_PROCESS = Process(
    rank=None, number=0, outcome="failed", detail="no process of it used a GPU", num_steps=0, peak_bytes=None,
    reserved_bytes=None, module="", phases=(),
)  # fmt: skip
SOURCES = (".py", ".sh", ".toml", ".yaml", ".yml", ".json")  # files that a command names and reads
MOST_BYTES = 1 << 20  # of such a file
DIGITS = 16  # of a SHA-256, as in runs/store.py


def records(variants: Sequence[Variant], *, started: str | None = None) -> tuple[Record, ...]:
    """Return a record for each process of each variant; one without phases where no process used a GPU."""
    return tuple(
        _record(variant, process, place, started)
        for variant in variants
        for place, process in enumerate(variant.processes or (NO_PROCESS,))
    )


def variants(stored: Iterable[Record]) -> tuple[Variant, ...]:
    """Return the variants of a script's records, each with its processes, in order; the last record of a case counts.

    Records of anything else are left out.
    """
    last = {record.case: record for record in stored if is_script(record)}
    groups: dict[Case, list[Record]] = {}
    for case, record in last.items():
        groups.setdefault(msgspec.structs.replace(case, model=Choice(""), process=UNSET), []).append(record)
    return tuple(_variant(sorted(group, key=lambda record: record.case.process or 0)) for group in groups.values())


def is_script(record: Record) -> bool:
    """Whether a record is of a process of a user's script."""
    return bool(record.script) and bool(record.variant)


def plan(stored: Iterable[Record]) -> tuple[Trial, ...]:
    """Return the plan of a run that has ended: a trial for each record."""
    return tuple(Trial(case=record.case, passes=("memory",)) for record in stored)


def name_of(command: Sequence[str]) -> str:
    """Return what a command is called: its first file of Python or of the shell, else its program."""
    named = [word for word in command if word.endswith((".py", ".sh"))]
    return os.path.basename(named[0] if named else command[0] if command else "script")


def sources(command: Iterable[str]) -> dict[str, str]:
    """Return the digest of each file of SOURCES that the command names and that is there; of a path, its last name."""
    found = {}
    for word in command:
        path = Path(word.partition("=")[2] or word)
        if path.suffix in SOURCES and path.is_file() and path.stat().st_size <= MOST_BYTES:
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]
    return found


def environment(variant: Variant, process: Process | None = None, started: str | None = None) -> Environment:
    """Return gcprof's versions, torch's as the process has it, and the GPU, if there is one."""
    here = variant.words["device"] if variant.gpu_bytes else None  # the name of a GPU
    return Environment(
        gcprof=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=process.torch if process else None,
        device_name=HOLLOW + gpu_specs.find(variant.gpu).name if variant.gpu else here,
        device_bytes=variant.gpu_bytes,
        started=started,
    )


def _record(variant: Variant, process: Process, place: int, started: str | None) -> Record:
    words = variant.words
    case = Case(
        model=Choice(process.module or name_of(variant.command)),
        strategy=Choice("none"),
        optimizer=Choice("own"),
        batch_size=None,
        device=variant.device,
        data="own",
        verify="off",
        command=tuple(map(hide, variant.command)),
        values=tuple((name, hide(text)) for name, text in words.items() if name not in ("device", "strategy")),
        process=place,
    ).under(Choice(words.get("strategy", "none")))
    outcome, detail = _outcome(variant, process)
    peak: dict[str, Any] = (
        {"peak_bytes": process.peak_bytes, "peak_phase": process.peak.name} if process.peak_bytes else {}
    )
    return Record(
        case=case,
        outcome=outcome,  # type: ignore[arg-type]  # one of them
        detail=detail and hide(detail),
        readings=Readings(reserved_bytes=process.reserved_bytes, **peak),
        environment=environment(variant, process, started),
        num_steps=process.num_steps,
        rank=UNSET if process.rank is None else process.rank,
        phases=process.phases,
        script=_part(process, ProcessFacts),
        variant=msgspec.structs.replace(
            _part(variant, VariantFacts), words={name: hide(text) for name, text in words.items()}
        ),
    )


def _outcome(variant: Variant, process: Process) -> tuple[str, str | None]:
    """Return the outcome of a process and why: one that is ok is no saving where nothing was wrapped, or is wrong."""
    if variant.outcome == "skipped":
        return "skipped", variant.detail or process.detail
    if process is NO_PROCESS and variant.outcome != "ok":
        return variant.outcome, variant.detail or process.detail
    if process.outcome == "ok" and variant.equality and variant.equality.verdict == "differ":
        return "invalid", variant.equality.detail or "its gradients differ from those of none"
    return process.outcome, process.detail


def _variant(group: Sequence[Record]) -> Variant:
    first = group[0]
    assert first.variant, "only records of scripts come here"
    processes = tuple(_process(record) for record in group if record.phases)
    words = {"device": Choice(first.case.device).name, **first.variant.words}
    named = {"device": first.case.device, "command": first.case.command or (), "words": words}
    return Variant(**{**msgspec.structs.asdict(first.variant), **named}, processes=processes)


def _process(record: Record) -> Process:
    assert record.script, "only records of scripts come here"
    is_named = Choice(record.case.model) != name_of(record.case.command or ())
    return Process(
        **msgspec.structs.asdict(record.script),
        rank=None if record.rank is UNSET else record.rank,
        outcome=record.outcome,
        detail=record.detail,
        num_steps=record.num_steps,
        peak_bytes=record.readings.peak_bytes,
        reserved_bytes=record.readings.reserved_bytes,
        module=str(record.case.model) if is_named else "",
        phases=record.phases or (),
    )


def _part(whole: msgspec.Struct, kind: type[Any]) -> Any:
    """Return the fields that a struct has from its base."""
    return kind(**{name: getattr(whole, name) for name in kind.__struct_fields__})
