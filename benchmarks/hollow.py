"""Predicted against PyTorch's own CUDA allocator, on a device that has memory and does no arithmetic.

Each row is a step that is run by PyTorch's CUDA build on the hollow device, in a process of its own, and predicted
without calibration in another. Peak, saved and reserved bytes are compared. `--requests` names what the step asks the
allocator for and the trace does not know of. Fails where an error is above the bound of the worst and its cause is not
known.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

import msgspec

from benchmarks.hollow_rows import CAUSES, DEVICES, MODELS, Row, rows
from profiler import __version__
from profiler.core import catalogue
from profiler.core.case import FAKE, Case, Choice, Trial, encode
from profiler.core.gpu_kinds import REHEARSE
from profiler.core.record import Record
from profiler.engines.local import Local
from profiler.rehearsal.device import PLANS
from profiler.training import models, optimizers, strategies

PEAK, SAVED, RESERVED = "peak_bytes", "saved_bytes", "reserved_bytes"
BOUNDS = {  # of the median, the 95th percentile and the worst error; None: none
    PEAK: (0.001, 0.01, 0.03),
    SAVED: (None, None, 0.005),
    RESERVED: (0.02, None, 0.10),
}
LITTLE = 0.001  # of the peak: what is saved below that, as under offload, is held against the peak
SECTION = "## Against PyTorch's own CUDA allocator\n"
HEAD = (
    SECTION
    + """
Each row is one training step, run on a device that has memory and does no arithmetic: PyTorch's CUDA build, unmodified,
with its own caching allocator. The same step is predicted for that kind of device without calibration. cuDNN's
workspaces are 0 there, in the step and in the prediction. {count} rows: every model in fp32 with SGD on {base} under
`none`, `all` and one more strategy in turn; every model on each device, with precision, optimizer and strategy in turn;
and a selection in which every two values of device, kind of model, precision, optimizer and strategy meet. Where less
than a thousandth of the peak is saved, as under `offload`, its error is a fraction of the peak.
Made by `python -m benchmarks.hollow` with gcprof {version} and torch {torch}.

"""
)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A row with its errors as fractions, by the name of the reading; or why there are none."""

    row: Row
    errors: dict[str, float] = {}
    failed: str | None = None

    @property
    def beyond(self) -> list[str]:
        """The readings of which the error is above the bound of the worst."""
        return [name for name, error in self.errors.items() if abs(error) > BOUNDS[name][2]]


def main() -> int:
    asked = _words()
    chosen = [row for row in rows() if _is_chosen(row, asked)]
    if asked.list:
        print("\n".join(f"{number:3} {_named(row)}" for number, row in enumerate(chosen, start=1)))
        return 0
    until = time.monotonic() + asked.within * 60
    found: list[Compared] = []
    torch = None
    os.environ[PLANS] = "hollow"  # predictions have no workspaces
    with Local(stage_seconds=600.0, rehearses=True) as real, Local(stage_seconds=600.0) as plain:
        for row in sorted(chosen, key=lambda one: DEVICES.index(one.device)):
            if time.monotonic() > until:
                break
            compared, torch = compare(row, real, plain)
            found.append(compared)
            print(_line(compared), flush=True)
            if asked.requests:
                show_requests(row, real)
    text = _summary(found) + _by_kind(found) + _table(found)
    print(f"\n{len(found)} of {len(chosen)} rows\n{text}")
    if asked.output:
        _write(asked.output, HEAD.format(count=len(found), base=DEVICES[0], version=__version__, torch=torch) + text)
    return int(any(one.failed or (one.beyond and not _cause(one.row)) for one in found))


def compare(row: Row, real: Local, plain: Local) -> tuple[Compared, str | None]:
    """The row's errors, and the version of torch. Both steps are made at the same time."""
    with ThreadPoolExecutor() as pool:
        cases = (case(row), case(row, fake=True))
        work = [pool.submit(_record, engine, one) for engine, one in zip((real, plain), cases, strict=True)]
        measured, predicted = (one.result() for one in work)
    torch = measured.environment.torch if measured.environment else None
    if _both_refuse(measured, predicted):
        return Compared(row=row), torch
    for record in (measured, predicted):
        if record.outcome != "ok":
            return Compared(row=row, failed=f"{record.case.device} {record.outcome}: {record.detail}"), torch
    return Compared(row=row, errors={name: _error(name, measured, predicted) for name in BOUNDS}), torch


def _both_refuse(measured: Record, predicted: Record) -> bool:
    """Whether the strategy does not fit the model, and both say so in the same words."""
    return measured.outcome == predicted.outcome == "skipped" and measured.detail == predicted.detail


def case(row: Row, *, fake: bool = False) -> Case:
    return Case(
        model=catalogue.resolve(Choice(row.model), models.TABLE),
        strategy=catalogue.resolve(Choice(row.strategy), strategies.TABLE),
        optimizer=catalogue.resolve(Choice(row.optimizer), optimizers.TABLE),
        batch_size=row.batch_size,
        precision=row.precision,
        device=(FAKE if fake else REHEARSE) + row.device,
        verify="off",
    )


def _record(engine: Local, one: Case) -> Record:
    (record,) = engine.run([Trial(case=one, passes=("memory",))])
    return record


def _error(name: str, measured: Record, predicted: Record) -> float:
    real, foreseen = getattr(measured.readings, name), getattr(predicted.readings, name)
    assert real is not None, "the memory pass ran"
    assert foreseen is not None, "and was predicted"
    if name == SAVED and real < LITTLE * measured.readings.peak_bytes:
        return (foreseen - real) / measured.readings.peak_bytes
    return foreseen / real - 1 if real else math.copysign(math.inf, foreseen) if foreseen else 0.0


def show_requests(row: Row, engine: Local) -> None:
    """Print what has no counterpart on the other side."""
    told = engine.ask("benchmarks.hollow_requests:compare", encode(case(row)).decode(), failing=row.model)
    print(f"    requests: {told['requests'][0]} real, {told['requests'][1]} traced")
    for side in ("real", "traced"):
        for nbytes, times, operators in told[side][:16]:
            print(f"    only {side:6} {nbytes:>13,} x {times:<4} {operators[:150]}")


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="only rows in which all of these words stand")
    parser.add_argument("--kind", nargs="*", default=[], help=f"only of these kinds: {', '.join(MODELS)}")
    parser.add_argument("--devices", nargs="*", default=DEVICES)
    parser.add_argument("--within", type=float, default=60.0, help="minutes: no row is begun later")
    parser.add_argument("--requests", action="store_true", help="name what has no counterpart on the other side")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("-o", "--output", type=Path, help="write the section of this document anew")
    return parser.parse_args()


def _is_chosen(row: Row, asked: argparse.Namespace) -> bool:
    named = f"{_named(row)} "
    of_kind = not asked.kind or any(row.kind.startswith(word) for word in asked.kind)
    return row.device in asked.devices and of_kind and all(word in named for word in asked.only)


def _named(row: Row) -> str:
    return f"{row.device} {row.model} b{row.batch_size} {row.precision} {row.optimizer} {row.strategy}"


def _line(one: Compared) -> str:
    shown = "  ".join(f"{name.partition('_')[0]} {error:+9.3%}" for name, error in one.errors.items())
    mark = "!" if one.failed or one.beyond else " "
    return f"{mark} {one.failed or shown or 'refused by both'}  {_named(one.row)}"


def _summary(found: Sequence[Compared]) -> str:
    lines = ["| | median | 95th percentile | worst |\n|---|--:|--:|--:|\n"]
    for name, bounds in BOUNDS.items():
        told = zip(_told(one.errors[name] for one in found if one.errors), bounds, strict=True)
        cells = [f"{value:.3%}" + (f" (goal {bound:.1%})" if bound else "") for value, bound in told]
        lines.append(f"| {name.partition('_')[0]} | {' | '.join(cells)} |\n")
    return "".join(lines) + "\n"


def _told(errors: Iterable[float]) -> tuple[float, float, float]:
    """Median, 95th percentile and largest of the errors, whatever their sign."""
    sizes = sorted(abs(one) for one in errors)
    if len(sizes) < 2:
        return (*sizes, *sizes, *sizes) if sizes else (0.0, 0.0, 0.0)
    return median(sizes), quantiles(sizes, n=20, method="inclusive")[-1], sizes[-1]


def _by_kind(found: Sequence[Compared]) -> str:
    """The worst and the median of each kind of model."""
    lines = ["| kind | rows | peak | worst | saved, worst | reserved | worst |\n|---|--:|--:|--:|--:|--:|--:|\n"]
    for kind in MODELS:
        own = [one.errors for one in found if one.row.kind == kind and one.errors]
        if own:
            (peak, _, highest), (_, _, saved), (reserved, _, most) = (
                _told(one[name] for one in own) for name in BOUNDS
            )
            cells = " | ".join(f"{value:.3%}" for value in (peak, highest, saved, reserved, most))
            lines.append(f"| {kind} | {len(own)} | {cells} |\n")
    return "".join(lines) + "\n"


def _table(found: Sequence[Compared]) -> str:
    """The rows beyond the bounds, the farthest first; and those without an error."""
    far = [one for one in found if one.beyond]
    far.sort(key=lambda one: -max(abs(one.errors[name]) / BOUNDS[name][2] for name in one.beyond))
    text = (
        f"{len(far)} rows are beyond the bounds of the worst, and {sum(bool(one.failed) for one in found)} failed.\n\n"
    )
    if far:
        text += "| model | batch | device, precision, optimizer, strategy | peak | saved | reserved | cause |\n"
        text += "|---|--:|---|--:|--:|--:|---|\n"
    for one in far:
        row, cells = one.row, " | ".join(f"{error:+.2%}" for error in one.errors.values())
        words = ", ".join((row.device, row.precision, f"`{row.optimizer}`", f"`{row.strategy}`"))
        text += f"| `{row.model}` | {row.batch_size} | {words} | {cells} | {_cause(row) or 'not found'} |\n"
    return text + "".join(f"\n- `{_named(one.row)}`: {one.failed}" for one in found if one.failed)


def _cause(row: Row) -> str | None:
    """Why a row of this model is known to be beyond the bounds."""
    return next((cause for word, cause in CAUSES.items() if word in row.model), None)


def _write(document: Path, section: str) -> None:
    """In place of the document's section, or at its end."""
    text = document.read_text(encoding="utf-8") if document.exists() else ""
    before, _, rest = text.partition(SECTION)
    _, mark, after = rest.partition("\n## ")
    document.write_text(before.rstrip() + "\n\n" + section.rstrip() + "\n" + mark + after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
