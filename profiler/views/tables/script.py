"""What a watched command took, as text: one sentence, and a table of phases for each group of processes that agree."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table

from profiler.core import gpu_specs
from profiler.core.units import byte_unit, bytes_text, scaled
from profiler.scripts.report import IN_STEPS, Phase, Process, Variant

UNGUARDED = (
    "what torch, safetensors, torch.distributed.checkpoint, Trainer and Lightning save is kept apart; "
    "other writes are not guarded"
)
ONE = {"steps": "step", "backward passes": "backward pass"}
WIDE = 200  # columns of a pipe or a file


class Live:
    """Says each phase of each process as it ends for the first time."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._seen: set[tuple[Any, ...]] = set()

    def __call__(self, line: dict[str, Any]) -> None:
        if line["kind"] == "unguarded":
            self._say(f"this system lets nobody guard files ({line['why']}): {UNGUARDED}")
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
    if variant.unguarded:
        console.print(f"note: files could not be guarded ({variant.unguarded}): {UNGUARDED}", soft_wrap=True)
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
    reads = dict.fromkeys(line for process in variant.processes for line in process.reads)
    if reads:
        console.print(
            f"note: values of the GPU, which are not computed, were read at {', '.join(reads)}", soft_wrap=True
        )


def process_text(process: Process) -> str:
    """Return the table of one process as text, and what was not measured."""
    return _printed(process).export_text().rstrip("\n")


def process_html(process: Process) -> str:
    """Return the same for a notebook."""
    return _printed(process).export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _printed(process: Process) -> Console:
    console = Console(
        file=StringIO(), width=WIDE, record=True, color_system=None, markup=False, highlight=False, emoji=False
    )
    console.print(_table([process], 1))
    if process.peak_bytes is None:
        console.print("note: no GPU was used; memory is not measured on a CPU")
    for line in dict.fromkeys(process.shortages):
        console.print(f"note: memory ran out at {line}", soft_wrap=True)
    if process.detail:
        console.print(f"{process.outcome.replace('_', ' ')}: {process.detail}", soft_wrap=True)
    return console


def sentence(variant: Variant) -> str:
    """Return whether it fits, and where its peak is."""
    called = " ".join([gpu_specs.find(variant.words["device"].partition(":")[0]).name, *(
        f"{name}={value}" for name, value in variant.words.items() if name != "device")])  # fmt: skip
    room = bytes_text(variant.gpu_bytes)
    process = variant.largest
    if variant.outcome == "out_of_memory":
        ran_out = [process for process in variant.processes if process.outcome == "out_of_memory"]
        short = min(ran_out, key=lambda process: process.died or 0)
        known = f"; {bytes_text(variant.needed_bytes)} would do" if variant.needed_bytes else None
        need = known or "; without a limit of memory it did not end well, so what would do is not known"
        return f"runs out of memory on {called} ({room}): {short.detail}{need}"
    if variant.outcome == "timed_out":
        return f"was ended early on {called} ({room}): below is what ran"
    if variant.outcome != "ok":
        why = next((process.detail for process in variant.processes if process.detail), None)
        if dead := variant.first_dead:
            why = f"{_named(dead)} died first: {dead.detail}" if len(variant.processes) > 1 else dead.detail
        return f"{variant.outcome.replace('_', ' ')} on {called} ({room}){f': {why}' if why else ''}"
    left = variant.gpu_bytes - variant.context_bytes - (process.reserved_bytes or 0)
    peak = process.peak
    where = f"the peak, {bytes_text(peak.peak_bytes)}, is in {_phase_text(peak)}{f', {peak.line}' if peak.line else ''}"
    what = "fits, in what ran, on" if variant.is_cut else "fits"
    return f"{what} {called} ({room}) with {bytes_text(left)} to spare; {where}"


def _named(process: Process) -> str:
    return f"process {process.number}" if process.rank is None else f"rank {process.rank}"


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
    noun = first.steps_are if first.num_steps != 1 else ONE[first.steps_are]
    steps = f"{first.num_steps} {noun}"
    table = Table(title=f"{first.module or 'no model'}{who}, {steps}", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("phase")
    sizes = (f"peak {unit}", f"live {unit}", f"reserved {unit}") if first.peak_bytes is not None else ()
    for name in ("times", *sizes):
        table.add_column(name, justify="right")
    table.add_column("line")
    for phase in first.phases:
        step = (", first step" if phase.is_first_step else ", later steps") if phase.name in IN_STEPS else ""
        is_peak = phase == first.peak
        counts = (phase.peak_bytes, phase.live_bytes, phase.reserved_bytes) if sizes else ()
        figures = [scaled(count, size) for count in counts]
        style = "bold" if is_peak and sizes else None
        table.add_row(f"{phase.name}{step}", str(phase.num), *figures, phase.line, style=style)
    return table
