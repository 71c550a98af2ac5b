"""What a watched command took, as text: one sentence, and a table of phases for each group of processes that agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from profiler.core import gpu_specs
from profiler.core.units import byte_unit, bytes_text, scaled
from profiler.scripts.report import IN_STEPS, Phase, Process, Variant

WIDE = 200  # columns of a pipe or a file


class Live:
    """Says each phase of each process as it ends for the first time."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._seen: set[tuple[Any, ...]] = set()

    def __call__(self, line: dict[str, Any]) -> None:
        if line["kind"] != "phase":
            return
        key = (line["process"], line["phase"], line["step"] == 0)
        if key not in self._seen:
            self._seen.add(key)
            peak = max(device[0] for device in line["devices"].values())
            rank = line["process"].partition(".")[0]
            who = "" if rank == "-" else f"rank {rank}: "
            where = f", {line['line']}" if line["line"] else ""
            step = f", step {line['step'] + 1}" if line["phase"] in IN_STEPS[:4] else ""
            self._say(f"{who}{line['phase']}{step}: peak {bytes_text(peak)}{where}")


def write(variant: Variant, *, file: TextIO, width: int | None, color: str) -> None:
    """Print the sentence, then a table for each group of processes; nothing where no process used a GPU."""
    if not variant.processes:
        return
    modes: dict[str, dict[str, Any]] = {"always": {"force_terminal": True}, "never": {"color_system": None}}
    asked = modes.get(color, {})
    console = Console(file=file, width=width or WIDE, markup=False, highlight=False, emoji=False, **asked)
    console.print(sentence(variant), soft_wrap=True)
    groups: dict[tuple[Any, ...], list[Process]] = {}
    for process in variant.processes:
        groups.setdefault(_in_steps(process), []).append(process)
    for group in groups.values():
        console.print(_table(group, len(variant.processes)))
    unstepped = [phase for process in variant.processes if not process.num_steps for phase in process.phases]
    if any(phase.name == "backward" and phase.num > 1 for phase in unstepped):
        console.print("note: no optimizer of torch.optim made a step, so that all steps are the first", soft_wrap=True)
    caught = [line for process in variant.processes if process.outcome == "ok" for line in process.shortages]
    if caught:
        where = ", ".join(dict.fromkeys(caught))
        times = f"{len(caught)} time{'' if len(caught) == 1 else 's'}"
        console.print(f"note: memory ran out {times}, and the script went on: {where}", soft_wrap=True)
    unseen = {"evaluation", "generation", "saving"} - {
        one.name for process in variant.processes for one in process.phases
    }
    if variant.is_cut and unseen:
        console.print(f"note: not seen, if there is any: {', '.join(sorted(unseen))}", soft_wrap=True)
    for text in dict.fromkeys(text for process in variant.processes for text in process.notes):
        console.print(f"note: {text}", soft_wrap=True)
    reads = dict.fromkeys(line for process in variant.processes for line in process.reads)
    if reads:
        console.print(
            f"note: values of the GPU, which are not computed, were read at {', '.join(reads)}", soft_wrap=True
        )


def sentence(variant: Variant) -> str:
    """Return whether it fits, and where its peak is."""
    called = " ".join([gpu_specs.find(variant.words["device"].partition(":")[0]).name, *(
        f"{name}={value}" for name, value in variant.words.items() if name != "device")])  # fmt: skip
    room = bytes_text(variant.gpu_bytes)
    process = variant.largest
    if variant.outcome == "out_of_memory":
        short = next(process for process in variant.processes if process.outcome == "out_of_memory")
        known = f"; {bytes_text(variant.needed_bytes)} would do" if variant.needed_bytes else None
        need = known or "; without a limit of memory it did not end well, so what would do is not known"
        return f"runs out of memory on {called} ({room}): {short.detail}{need}"
    if variant.outcome == "timed_out":
        return f"was ended early on {called} ({room}): below is what ran"
    if variant.outcome != "ok":
        why = next((process.detail for process in variant.processes if process.detail), None)
        return f"{variant.outcome.replace('_', ' ')} on {called} ({room}){f': {why}' if why else ''}"
    left = variant.gpu_bytes - variant.context_bytes - process.reserved_bytes
    peak = process.peak
    where = f"the peak, {bytes_text(peak.peak_bytes)}, is in {_phase_text(peak)}{f', {peak.line}' if peak.line else ''}"
    what = "fits, in what ran, on" if variant.is_cut else "fits"
    return f"{what} {called} ({room}) with {bytes_text(left)} to spare; {where}"


def _phase_text(phase: Phase) -> str:
    if phase.name not in IN_STEPS:
        return f"the {phase.name}"
    article = "" if phase.name.startswith("after") else "the "
    return f"{article}{phase.name} of {'the first step' if phase.is_first_step else 'later steps'}"


def _in_steps(process: Process) -> tuple[Any, ...]:
    """Return the bytes of the phases that all ranks have; one of them may also evaluate and save."""
    steps = [one for one in process.phases if one.name in IN_STEPS]
    return tuple((one.name, one.is_first_step, one.peak_bytes, one.live_bytes, one.reserved_bytes) for one in steps)


def _table(group: list[Process], num_processes: int) -> Table:
    first = max(group, key=lambda process: len(process.phases))
    size, unit = byte_unit(phase.peak_bytes for phase in first.phases)
    ranks = [str(process.rank if process.rank is not None else process.number) for process in group]
    kind = "process" if first.rank is None else "rank"
    several = "processes" if first.rank is None else "ranks"
    who = f", {several if len(ranks) > 1 else kind} {', '.join(ranks)}" if num_processes > 1 else ""
    steps = f"{first.num_steps} step{'' if first.num_steps == 1 else 's'}"
    table = Table(title=f"{first.module or 'no model'}{who}, {steps}", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("phase")
    for name in ("times", f"peak {unit}", f"live {unit}", f"reserved {unit}"):
        table.add_column(name, justify="right")
    table.add_column("line")
    for phase in first.phases:
        step = (", first step" if phase.is_first_step else ", later steps") if phase.name in IN_STEPS else ""
        is_peak = phase == first.peak
        figures = (scaled(count, size) for count in (phase.peak_bytes, phase.live_bytes, phase.reserved_bytes))
        table.add_row(f"{phase.name}{step}", str(phase.num), *figures, phase.line, style="bold" if is_peak else None)
    return table
