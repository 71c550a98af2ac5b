"""The kinds of evidence, devices and outcomes of rows in words, for every table, picture and page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import get_args

from msgspec.structs import replace

from profiler.analysis.axes import Axis
from profiler.analysis.rows import Row
from profiler.core.gpu_specs import FAKE, HOLLOW, MOST_BYTES, parse
from profiler.core.record import Evidence
from profiler.core.units import bytes_text

SAID = {"predicted": "predicted, not measured", "rehearsed": "rehearsed, not measured"}  # for what no device ran
SIZES = {"bytes": "with", "context_bytes": "context", "cudnn_workspace_bytes": "cuDNN workspace"}  # of Device


def device_word(device: str) -> str:
    """Return a case's device as people read it: `rehearse:h100:memory=...` is `h100 with 1.27 GiB`, `fake:t4` `t4`."""
    asked = parse(device)
    if asked.is_predicted:
        return device.removeprefix(FAKE)
    if not asked.is_rehearsed or ":" in asked.name:  # gcprof writes no such name, but a file may contain anything
        return device
    asked = replace(asked, bytes=None) if asked.bytes == MOST_BYTES else asked  # room for any step
    sizes = [
        f"{word} {bytes_text(size)}" for field, word in SIZES.items() if (size := getattr(asked, field)) is not None
    ]
    gpu = asked.name + (f":{asked.count}" if asked.count > 1 else "")
    return f"{gpu} {', '.join(sizes)}" if asked.bytes is not None else ", ".join([gpu, *sizes])


def card(name: str | None) -> str:
    """Return the name of a device; that of a rehearsed GPU is the name of the GPU that it stands for."""
    return (name or "").removeprefix(HOLLOW)


def kinds(rows: Iterable[Row]) -> tuple[Evidence, ...]:
    """Return the kinds of evidence of the rows, each once."""
    return in_order({row.evidence for row in rows})


def kinds_text(present: Collection[Evidence]) -> str:
    """Return `measured, rehearsed and predicted`, as far as they are present."""
    *before, last = in_order(present) or ("",)
    return f"{', '.join(before)} and {last}" if before else last


def in_order(present: Collection[Evidence]) -> tuple[Evidence, ...]:
    """Return these kinds in the usual order: measured, rehearsed, predicted."""
    return tuple(kind for kind in get_args(Evidence) if kind in present)


def counted(counts: Mapping[Evidence, int]) -> str:
    """Return `, rehearsed` or `, 2 measured, 2 predicted`, to follow a number of records; "" if all are measured."""
    present = in_order(counts.keys())
    if len(present) > 1:
        return "".join(f", {counts[kind]} {kind}" for kind in present)
    return "" if present in ((), ("measured",)) else f", {present[0]}"


def marked(quantity: str, rows: Iterable[Row]) -> str:
    """Return the name of a quantity for an axis, with the kinds of evidence of the rows if one is rehearsed."""
    present = kinds(rows)
    return f"{kinds_text(present)} {quantity}" if "rehearsed" in present else quantity


def value_words(axis: Axis, rows: Sequence[Row]) -> list[str]:
    """Return the values of an axis as people read them; devices with their kind of evidence, if there are several."""
    if axis.name != "device":
        return [str(value) for value in axis.values]
    kind_of = {row.case.device: row.evidence for row in rows}
    words = {device: device_word(device) for device in map(str, axis.values)}
    if len(set(kind_of.values())) < 2:
        return list(words.values())
    return [f"{word} ({kind_of[device]})" if device in kind_of else word for device, word in words.items()]


def device(rows: Sequence[Row]) -> str:
    """Return the device of these rows in words; of several devices only the kinds of evidence are named."""
    if len({row.case.device for row in rows}) > 1:
        present = kinds(rows)
        words = ", ".join(f"some {kind}" for kind in present)
        return f"several devices: {words if len(present) > 1 else SAID.get(present[0], present[0])}"
    name = next((row.environment.device_name for row in rows if row.environment and row.environment.device_name), None)
    asked = device_word(rows[0].case.device)
    name = card(name)
    text = f"{asked} ({name})" if name and name != asked else asked
    said = SAID.get(rows[0].evidence)
    return f"{text}: {said}" if said else text


def outcome(row: Row) -> str:
    """Return the outcome in words; a prediction or a rehearsal always says that it is one."""
    words, kind = row.outcome.replace("_", " "), row.evidence
    return words if kind == "measured" else kind if row.outcome == "ok" else f"{words} ({kind})"


def peak_name(row: Row) -> str:
    """Return "peak", with its kind of evidence if it was not measured."""
    return "peak" if row.evidence == "measured" else f"{row.evidence} peak"
