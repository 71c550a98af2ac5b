"""Runs of scripts compared: their phases in pairs, by strategy, values of -L, rank and phase; and limits on changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from profiler.core.errors import UserError
from profiler.core.units import change_text
from profiler.scripts.gates import Limit
from profiler.scripts.report import Variant, phase_name

WHOLE = "whole"  # of all phases of a process
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

    def ratio(self, quantity: str) -> float | None:
        """Return `peak` or `reserved` over the baseline's; None where a side has none."""
        if self.before is None or self.after is None:
            return None
        first, second = (getattr(point, f"{quantity}_bytes") for point in (self.before, self.after))
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
        remarks = tuple(_remarks(baseline, other))
        found.append(Comparison(before=baseline.name, after=other.name, pairs=pairs, remarks=remarks))
    return tuple(found)


def tripped(comparisons: Sequence[Comparison], limits: Sequence[Limit]) -> list[str]:
    """Return in words what exceeds a limit: also what the baseline has, and is missing or no longer ok.

    Raises UserError (exit code 4) if nothing of the baseline is ok, so that no gate passes by comparing nothing.
    """
    if limits and not any(pair.before and pair.before.is_ok for compared in comparisons for pair in compared.pairs):
        raise UserError(f"--fail-on {limits[0].text}: nothing of the baseline is ok", hint="leave it out", exit_code=4)
    return [text for limit in limits for compared in comparisons for text in _over(compared, limit)]


def _points(side: Side, *, with_device: bool) -> dict[Key, Point]:
    found: dict[Key, Point] = {}
    for variant in side.variants:
        values = [f"{name} {text}" for name, text in variant.words.items() if name not in ("device", "strategy")]
        device = variant.words["device"] if with_device else ""
        for process in variant.processes:
            label = process.label(variant.processes)
            key = (device, variant.words.get("strategy", "none"), ", ".join(values), label)
            parts = {WHOLE: (process.peak_bytes, process.reserved_bytes, process.peak.line)}
            parts |= {phase_name(one): (one.peak_bytes, one.reserved_bytes, one.line) for one in process.phases}
            for name, (peak, reserved, line) in parts.items():
                found[*key, name] = Point(
                    key=(*key, name), outcome=process.outcome, peak_bytes=peak, reserved_bytes=reserved, line=line
                )
    return found


def _remarks(baseline: Side, other: Side) -> Iterator[str]:
    for name in ("devices", "torch"):
        first, second = (getattr(side, name) for side in (baseline, other))
        if first != second:
            words = (value if isinstance(value, str) else ", ".join(value) for value in (first, second))
            yield f"{name.removesuffix('s')}: {' -> '.join(word or 'not known' for word in words)}"
    changed = [name for name, text in baseline.sources.items() if other.sources.get(name, text) != text]
    if changed:
        yield f"another file: {', '.join(changed)}"


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
