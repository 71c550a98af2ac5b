"""Variants of a user's command as the records of a run folder, one a process, read from them again, and compared."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from profiler import __version__
from profiler.core import by_key, gpu_specs, units
from profiler.core.case import Case, Choice, Trial
from profiler.core.errors import UserError
from profiler.core.gpu_specs import HOLLOW
from profiler.core.record import Environment, ProcessFacts, Readings, Record, VariantFacts
from profiler.core.safe_files import hide
from profiler.core.units import Limit, bytes_text, change_text
from profiler.scripts.report import Process, Variant, name_of, phase_name, phase_text

NO_PROCESS = Process(
    rank=None, number=0, outcome="failed", detail="no process of it used a GPU", num_steps=0, peak_bytes=None,
    reserved_bytes=None, module="", phases=(),
)  # fmt: skip
SOURCES = (".py", ".ipynb", ".sh", ".toml", ".yaml", ".yml", ".json")  # files that a command names and reads
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
    groups = by_key((msgspec.structs.replace(case, model=Choice(""), process=UNSET), last[case]) for case in last)
    found = []
    for group in groups.values():
        first, facts = group[0], group[0].variant
        assert facts, "only records of scripts come here"
        words = {"device": Choice(first.case.device).name, **facts.words}
        named = {"device": first.case.device, "command": first.case.command or (), "words": words}
        ordered = sorted(group, key=lambda record: record.case.process or 0)
        processes = tuple(_process(record) for record in ordered if record.phases)
        found.append(Variant(**{**msgspec.structs.asdict(facts), **named}, processes=processes))
    return tuple(found)


def is_script(record: Record) -> bool:
    """Whether a record is of a process of a user's script."""
    return bool(record.script) and bool(record.variant)


def plan(stored: Iterable[Record]) -> tuple[Trial, ...]:
    """Return the plan of a run that has ended: a trial for each record."""
    return tuple(Trial(case=record.case, passes=("memory",)) for record in stored)


def command_name(command: Sequence[str]) -> str:
    """Return what a command is called: its first file of Python or of the shell or notebook, else its program."""
    named = [word for word in command if word.endswith((".py", ".ipynb", ".sh"))]
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
    case = Case(
        model=Choice(process.module or command_name(variant.command)),
        strategy=Choice("none"),
        optimizer=Choice("own"),
        batch_size=None,
        device=variant.device,
        data="own",
        verify="off",
        command=tuple(map(hide, variant.command)),
        values=tuple((name, hide(text)) for name, text in variant.filled.items()),
        process=place,
    ).under(Choice(variant.words.get("strategy", "none")))
    outcome, detail = process.outcome, process.detail
    if variant.outcome == "skipped" or (process is NO_PROCESS and variant.outcome != "ok"):
        outcome, detail = variant.outcome, variant.detail or process.detail
    elif outcome == "ok" and variant.equality and variant.equality.verdict == "differ":
        outcome, detail = "invalid", variant.equality.detail or "its gradients differ from those of none"
    peak: dict[str, Any] = (
        {"peak_bytes": process.peak_bytes, "peak_phase": process.peak.name} if process.peak_bytes else {}
    )
    facts = {name: getattr(variant, name) for name in VariantFacts.__struct_fields__}
    return Record(
        case=case,
        outcome=outcome,  # type: ignore[arg-type]  # one of them
        detail=detail and hide(detail),
        readings=Readings(reserved_bytes=process.reserved_bytes, **peak),
        environment=environment(variant, process, started),
        num_steps=process.num_steps,
        rank=UNSET if process.rank is None else process.rank,
        phases=process.phases,
        script=ProcessFacts(**{name: getattr(process, name) for name in ProcessFacts.__struct_fields__}),
        variant=VariantFacts(**{**facts, "words": {name: hide(text) for name, text in variant.words.items()}}),
    )


def _process(record: Record) -> Process:
    assert record.script, "only records of scripts come here"
    is_named = Choice(record.case.model) != command_name(record.case.command or ())
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


# ---- runs compared: their phases in pairs, by strategy, values of -L, rank and phase

WHOLE = "whole"  # of all phases of a process
QUANTITIES, OUT_OF_MEMORY = ("peak", "reserved"), "out-of-memory"
HINT = "write --fail-on 'peak:>10GiB,reserved:>90%,out-of-memory'; a percentage is of the GPU's memory"
HINT_OF_CHANGES = "write --fail-on 'peak:>2%,reserved:>2%,out-of-memory'"
Key = tuple[str, ...]  # device if a run has several, strategy, values, process, phase


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A phase of a process, or all of it."""

    key: Key
    outcome: str  # of the process
    peak_bytes: int | None
    reserved_bytes: int | None
    line: str

    @property
    def is_ok(self) -> bool:
        return self.outcome == "ok"


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """The same phase in the baseline and in another run; None where a run does not have it."""

    key: Key
    before: Point | None
    after: Point | None

    def taken(self, quantity: str) -> list[int | None]:
        """Return the bytes of `peak` or `reserved` on both sides."""
        return [getattr(point, f"{quantity}_bytes", None) for point in (self.before, self.after)]

    def ratio(self, quantity: str) -> float | None:
        """Return `peak` or `reserved` over the baseline's; None where a side has none."""
        first, second = self.taken(quantity)
        return second / first if first and second is not None else None


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A run of scripts."""

    name: str
    variants: tuple[Variant, ...]
    sources: Mapping[str, str] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(variant.words["device"] for variant in self.variants))

    @property
    def torch(self) -> str:
        found = (process.torch for variant in self.variants for process in variant.processes if process.torch)
        return ", ".join(dict.fromkeys(text.partition("+")[0] for text in found))


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The baseline beside one other run."""

    before: str
    after: str
    pairs: tuple[Pair, ...]
    remarks: tuple[str, ...]


def compare(sides: Sequence[Side]) -> tuple[Comparison, ...]:
    """Return the comparisons of each other run with the first one."""
    baseline, *others = sides
    found = []
    for other in others:
        with_device = len(baseline.devices) > 1 or len(other.devices) > 1
        before, after = (_points(side, with_device=with_device) for side in (baseline, other))
        pairs = tuple(Pair(key=key, before=before.get(key), after=after.get(key)) for key in {**before, **after})
        two = baseline, other
        facts = {"device": [", ".join(side.devices) for side in two], "torch": [side.torch for side in two]}
        said = {name: [text or "not known" for text in texts] for name, texts in facts.items() if len(set(texts)) > 1}
        remarks = [f"{name}: {' -> '.join(texts)}" for name, texts in said.items()]
        changed = [name for name, text in baseline.sources.items() if other.sources.get(name, text) != text]
        remarks += [f"another file: {', '.join(changed)}"] if changed else []
        found.append(Comparison(before=baseline.name, after=other.name, pairs=pairs, remarks=tuple(remarks)))
    return tuple(found)


def _points(side: Side, *, with_device: bool) -> dict[Key, Point]:
    found: dict[Key, Point] = {}
    for variant in side.variants:
        values = ", ".join(f"{name} {text}" for name, text in variant.filled.items())
        device = variant.words["device"] if with_device else ""
        for process in variant.processes:
            label = process.label(variant.processes)
            key = (device, variant.words.get("strategy", "none"), values, label)
            parts = {WHOLE: (process.peak_bytes, process.reserved_bytes, process.peak.line)}
            parts |= {phase_name(one): (one.peak_bytes, one.reserved_bytes, one.line) for one in process.phases}
            for name, (peak, reserved, line) in parts.items():
                found[*key, name] = Point(
                    key=(*key, name), outcome=process.outcome, peak_bytes=peak, reserved_bytes=reserved, line=line
                )
    return found


# ---- limits


def parse_limits(text: str, *, is_change: bool = False) -> tuple[Limit, ...]:
    """Return the limits in a text: bytes, or percentages of the GPU's memory; of changes between runs, percentages.

    Raises UserError.
    """
    hint = HINT_OF_CHANGES if is_change else HINT
    return units.parse_limits(text, QUANTITIES, hint=hint, of_memory=not is_change, alone=OUT_OF_MEMORY)


def exceeded(variants: Sequence[Variant], limits: Sequence[Limit]) -> list[str]:
    """Return in words what exceeds a limit. A process that ran out of memory exceeds every one."""
    return [text for limit in limits for variant in variants for text in _exceeding(variant, limit)]


def _exceeding(variant: Variant, limit: Limit) -> Iterator[str]:
    whole = variant.gpu_bytes
    for process in variant.processes:
        where = ", ".join(filter(None, (name_of(variant), process.label(variant.processes))))
        phase = process.peak if limit.quantity == "peak" else process.most_reserved
        taken = phase.peak_bytes if limit.quantity == "peak" else phase.reserved_bytes
        if process.outcome == "out_of_memory":
            yield f"{limit.text}: {where}: out of memory {process.detail or ''}".rstrip()
        elif limit.most is not None and taken is not None:
            if isinstance(limit.most, float) and whole is None:
                raise UserError(f"--fail-on {limit.text}: a CPU has no memory of its own", hint="write bytes: 10GiB")
            if taken > (int(limit.most * (whole or 0)) if isinstance(limit.most, float) else limit.most):
                at = f", {phase.line}" if phase.line else ""
                yield f"{limit.text}: {where}: {bytes_text(taken)}, in {phase_text(phase)}{at}"


def tripped(comparisons: Sequence[Comparison], limits: Sequence[Limit]) -> list[str]:
    """Return in words what exceeds a limit: also what the baseline has, and is missing or no longer ok.

    Raises UserError (exit code 4) if nothing of the baseline is ok, so that no gate passes by comparing nothing.
    """
    if limits and not any(pair.before and pair.before.is_ok for compared in comparisons for pair in compared.pairs):
        raise UserError(f"--fail-on {limits[0].text}: nothing of the baseline is ok", hint="leave it out", exit_code=4)
    return [text for limit in limits for compared in comparisons for text in _over(compared, limit)]


def _over(compared: Comparison, limit: Limit) -> Iterator[str]:
    present = {pair.key[:-1] for pair in compared.pairs if pair.key[-1] == WHOLE and pair.after}
    for pair in compared.pairs:
        before, after = pair.before, pair.after
        if before is None or not before.is_ok:
            continue
        where = f"{limit.text}: {', '.join(filter(None, pair.key))} in {compared.after} against {compared.before}"
        if after is None:
            if limit.most is not None and (pair.key[-1] == WHOLE or pair.key[:-1] in present):
                yield f"{where}: not in this run"
        elif not after.is_ok:
            if pair.key[-1] == WHOLE and (limit.most is not None or after.outcome == "out_of_memory"):
                yield f"{where}: {after.outcome.replace('_', ' ')}"
        elif isinstance(limit.most, float) and (ratio := pair.ratio(limit.quantity)) and ratio > 1 + limit.most:
            yield f"{where}: {change_text(ratio)}"
