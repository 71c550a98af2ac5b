"""What a watched command took, as text: one sentence, and a table of phases for each group of processes that agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from statistics import median
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from profiler.core import gpu_specs
from profiler.core.errors import UserError
from profiler.core.script import Holder, Phase
from profiler.core.units import byte_unit, bytes_text, change_text, few, scaled, seconds_text
from profiler.scripts import estimate
from profiler.scripts.report import IN_STEPS, Process, Variant, name_of, phase_name, phase_text
from profiler.views.tables.grid import of_lines
from profiler.views.tables.terminal import ruled

KEEP_OWN = ("none", "hf")  # strategies under which a script's own checkpoints stay
MOST_NAMED = 3
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
            at = line.get("peak_line", line["line"])
            where = f", {at}" if at else ""
            step = f", step {line['step'] + 1}" if line["phase"] in IN_STEPS[:4] else ""
            self._say(f"{who}{line['phase']}{step}: peak {bytes_text(peak)}{where}")


def write(variant: Variant, *, file: TextIO, width: int | None, color: str) -> None:
    """Print the sentence, then a table for each group of processes; nothing where no process used a GPU."""
    if not variant.processes:
        return
    screen = console(file=file, width=width, color=color)
    screen.print(sentence(variant), soft_wrap=True)
    write_phases(variant, screen)


def write_phases(variant: Variant, screen: Console) -> None:
    """Print what a strategy did, a table for each group of processes, and what is to be noted of them."""
    for line in dict.fromkeys(line for process in variant.processes for line in _applied_lines(process)):
        screen.print(line, soft_wrap=True)
    groups: dict[tuple[Any, ...], list[Process]] = {}
    for process in variant.processes:
        groups.setdefault(_in_steps(process), []).append(process)
    for group in groups.values():
        screen.print(_table(group, len(variant.processes)))
        for title, held in _held(next((process for process in group if process.shortage_holders), group[0])):
            screen.print(title, soft_wrap=True)
            screen.print(_holders(held))
    for text in _remarks(variant):
        screen.print(f"note: {text}", soft_wrap=True)


def _remarks(variant: Variant) -> Iterator[str]:
    """Yield what is to be noted of a variant and its processes."""
    if variant.unguarded:
        yield f"files could not be guarded ({variant.unguarded}): {UNGUARDED}"
    unstepped = [phase for process in variant.processes if not process.num_steps for phase in process.phases]
    if any(phase.name == "backward" and phase.num > 1 for phase in unstepped):
        yield "no optimizer of torch.optim made a step, so that all steps are the first"
    caught = [line for process in variant.processes if process.outcome == "ok" for line in process.shortages]
    if caught:
        times = f"{len(caught)} time{'' if len(caught) == 1 else 's'}"
        yield f"memory ran out {times}, and the script went on: {', '.join(dict.fromkeys(caught))}"
    seen = {one.name for process in variant.processes for one in process.phases}
    if variant.is_cut and (unseen := {"evaluation", "generation", "saving"} - seen):
        yield f"not seen, if there is any: {', '.join(sorted(unseen))}"
    yield from dict.fromkeys(text for process in variant.processes for text in (*process.notes, *_notes(process)))
    reads = dict.fromkeys(line for process in variant.processes for line in process.reads)
    if reads:
        yield f"values of the GPU, which are not computed, were read at {', '.join(reads)}"


def write_summary(variants: Sequence[Variant], *, file: TextIO, width: int | None, color: str) -> None:
    """Print one row for each variant: words, largest peak, reserved, a step's estimated time, and whether it fits."""
    size, unit = byte_unit(process.peak_bytes for variant in variants for process in variant.processes)
    names = [*dict.fromkeys(name for variant in variants for name in variant.words)]
    is_estimated = any(process.estimated_seconds for variant in variants for process in variant.processes)
    lines = []
    for variant in variants:
        words = [variant.words.get(name, "") for name in names]
        figures = ["", ""]
        if variant.processes and variant.outcome != "skipped":
            peak = max(process.peak_bytes or 0 for process in variant.processes)
            figures = [scaled(peak, size), scaled(variant.largest.reserved_bytes, size)]
        times = [_estimate_text(variant, variants)] if is_estimated else []
        lines.append([*words, *figures, *times, _fits(variant)])
    numbers = (f"peak {unit}", f"reserved {unit}", *(["step, estimated"] if is_estimated else []))
    screen = console(file=file, width=width, color=color)
    screen.print(ruled(of_lines([*names, *numbers, "fits?"], lines, numbers=numbers), title="all variants"))
    for line in _estimate_notes(variants, is_estimated=is_estimated):
        screen.print(f"note: {line}", soft_wrap=True)


def _estimate_text(variant: Variant, variants: Sequence[Variant]) -> str:
    """Return the estimated time of a step against that of `none` on the same device; of that one, in seconds."""
    seconds = _estimated(variant)
    plain = next((one for one in variants if one.words == {**variant.words, "strategy": "none"}), None)
    bare = _estimated(plain) if plain else None
    if seconds is None or plain is variant or bare is None:
        return seconds_text(seconds)
    return change_text(seconds / bare)


def _estimated(variant: Variant) -> float | None:
    """Return the estimated seconds of a step of its slowest process; None where one is not known."""
    seconds = [process.estimated_seconds for process in variant.processes]
    known = [second for second in seconds if second is not None]
    return max(known) if known and len(known) == len(seconds) and variant.outcome != "skipped" else None


def _estimate_notes(variants: Sequence[Variant], *, is_estimated: bool) -> Iterator[str]:
    """Yield what estimated times are worth, and why some are not known."""
    if is_estimated:
        has_ranks = any(len(one.processes) > 1 for one in variants)
        for gpu in dict.fromkeys(one.gpu for one in variants if one.gpu):
            yield estimate.caveat(gpu_specs.find(gpu), has_ranks=has_ranks)
    for variant in variants:
        why = next((process.estimate_why for process in variant.processes if process.estimate_why), None)
        if why and variant.outcome == "ok":
            yield f"no time of {name_of(variant)}: {why}"


def _fits(variant: Variant) -> str:
    """Return in a word or two whether a variant fits."""
    if variant.outcome == "out_of_memory":
        need = f", needs {bytes_text(variant.needed_bytes)}" if variant.needed_bytes else ""
        return f"no{need}"
    if variant.outcome != "ok" or not variant.processes:
        return variant.outcome.replace("_", " ") if variant.outcome != "ok" else "no GPU used"
    reserved = variant.largest.reserved_bytes
    assert variant.gpu_bytes is not None
    assert reserved is not None  # a GPU's
    left = variant.gpu_bytes - variant.context_bytes - reserved
    how = f"{', in what ran' if variant.is_cut else ''}{', assumed' if variant.sized_at else ''}"
    return f"{bytes_text(left)} to spare{how}"


def _applied_lines(process: Process) -> list[str]:
    """Return what a strategy did to each model, and what the script checkpoints by itself."""
    lines = []
    for applied in process.applied:
        own = f"its own checkpoints: {few(list(applied.own), MOST_NAMED)}" if applied.own else ""
        if applied.strategy == "none":
            lines.append(f"{applied.module}: {own}")
            continue
        blocks = f"{applied.num_blocks} block{'' if applied.num_blocks == 1 else 's'} recomputed, "
        did = f"{blocks if applied.num_blocks else ''}{applied.split or 'whole'}"
        what = f"left as it is: {applied.why}" if applied.why else f"{applied.strategy}, {did}"
        kept = own if applied.strategy in KEEP_OWN or applied.why else f"instead of {own}"
        lines.append(f"{applied.module}: {what}{f'; {kept}' if own else ''}")
    return lines


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


def console(*, file: TextIO, width: int | None, color: str) -> Console:
    """Return where tables of scripts are printed; `color` is auto, always or never."""
    modes: dict[str, dict[str, Any]] = {"always": {"force_terminal": True}, "never": {"color_system": None}}
    asked = modes.get(color, {})
    return Console(file=file, width=width or WIDE, markup=False, highlight=False, emoji=False, **asked)


def sentence(variant: Variant) -> str:
    """Return whether it fits, and where its peak is."""
    strategy = variant.words.get("strategy")
    called = " ".join([_device_name(variant), *(
        f"{name}={value}" for name, value in variant.words.items() if name not in ("device", "strategy"))])  # fmt: skip
    called += f" under {strategy}" if strategy else ""
    if variant.gpu_bytes is None or (variant.device and not variant.gpu):
        return _measured_sentence(variant, called)
    room = bytes_text(variant.gpu_bytes)
    if not variant.processes:
        return f"on {called} ({room}) no process of the command used a GPU"
    process = variant.largest
    if variant.outcome == "out_of_memory":
        ran_out = [process for process in variant.processes if process.outcome == "out_of_memory"]
        short = min(ran_out, key=lambda process: process.died or 0, default=process)
        known = f"; {bytes_text(variant.needed_bytes)} would do" if variant.needed_bytes else None
        need = known or "; without a limit of memory it did not end well, so what would do is not known"
        return f"runs out of memory on {called} ({room}): {short.detail}{need}"
    if variant.outcome == "skipped":
        return f"skipped on {called}: {variant.detail}; below is the script as it is"
    if variant.outcome == "timed_out":
        where = f": {variant.detail}" if variant.detail else ""
        return f"was ended early on {called} ({room}){where}; below is what ran"
    if variant.outcome != "ok":
        why = next((process.detail for process in variant.processes if process.detail), None)
        if dead := variant.first_dead:
            why = f"{_named(dead)} died first: {dead.detail}" if len(variant.processes) > 1 else dead.detail
        return f"{variant.outcome.replace('_', ' ')} on {called} ({room}){f': {why}' if why else ''}"
    left = variant.gpu_bytes - variant.context_bytes - (process.reserved_bytes or 0)
    where = peak_text(process.peak)
    what = "fits, in what ran, on" if variant.is_cut else "fits"
    return f"{what} {called} ({room}) with {bytes_text(left)} to spare; {where}{_assumed_text(variant)}"


def _assumed_text(variant: Variant) -> str:
    """Return where sizes were assumed, and between which bounds the peak is then; "" where none were."""
    if not variant.sized_at:
        return ""
    text = f"; assumed: sizes depend on values at {few(list(variant.sized_at), MOST_NAMED)}"
    peaks = {bound.values: bound.peak_bytes for bound in variant.bounds if bound.outcome == "ok" and bound.peak_bytes}
    if len({*peaks.values(), variant.largest.peak_bytes}) > 1:
        bounds = [f"{bytes_text(peak)} with --values {values}" for values, peak in peaks.items()]
        text += f"; the peak is {' and '.join(bounds)}"
    failed = [
        f"--values {bound.values} ({bound.outcome.replace('_', ' ')})"
        for bound in variant.bounds
        if bound.outcome != "ok"
    ]
    return text + (f"; it did not end well with {', '.join(failed)}" if failed else "")


def peak_text(peak: Phase) -> str:
    """Return how large a peak is, and where."""
    size = bytes_text(peak.peak_bytes or 0)
    return f"the peak, {size}, is in {phase_text(peak)}{f', {peak.line}' if peak.line else ''}"


def _named(process: Process) -> str:
    return f"process {process.number}" if process.rank is None else f"rank {process.rank}"


def _measured_sentence(variant: Variant, called: str) -> str:
    """Return what was measured on a device that is here: where the peak is, the step's time, and the gradients."""
    if variant.outcome != "ok" or not variant.processes:
        why = variant.detail or next((process.detail for process in variant.processes if process.detail), None)
        return f"{variant.outcome.replace('_', ' ')} on {called}{f': {why}' if why else ''}"
    parts = [peak_text(variant.largest.peak)]
    if seconds := [second for round_seconds in variant.seconds for second in round_seconds]:
        parts.append(f"a step takes {seconds_text(median(seconds))}")
    if variant.equality:
        parts.append(f"gradients: {variant.equality.verdict}")
    return f"measured on {called}{', in what ran' if variant.is_cut else ''}: {'; '.join(parts)}"


def _device_name(variant: Variant) -> str:
    """Return the name of the GPU, or the word for one that is not known here, or that is redacted."""
    word = variant.words["device"].partition(":")[0]
    try:
        return gpu_specs.find(word).name
    except UserError:
        return word


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
    sizes = [name for name, count in (("peak", first.peak_bytes), ("live", first.peak_bytes),
                                      ("reserved", first.reserved_bytes)) if count is not None]  # fmt: skip
    lines = []
    for phase in first.phases:
        counts = (phase.peak_bytes, phase.live_bytes, phase.reserved_bytes)
        figures = [scaled(count, size) for count in counts if count is not None]
        lines.append([phase_name(phase), str(phase.num), *figures, phase.line])
    numbers = ("times", *(f"{name} {unit}" for name in sizes))
    bold = [at for at, phase in enumerate(first.phases) if sizes and phase == first.peak]
    title = f"{first.module or 'no model'}{who}, {steps}"
    return ruled(of_lines(("phase", *numbers, "line"), lines, numbers=numbers), title=title, bold=bold)


def _held(process: Process) -> list[tuple[str, tuple[Holder, ...]]]:
    """Return what held the peak, and what was live where memory ran out, each with its title; none if not known."""
    peak = process.peak
    where = f", {peak.line}" if peak.line else ""
    found = [(f"live at the peak, in {phase_text(peak)}{where}", peak.holders)]
    if process.outcome == "out_of_memory" and process.shortages:
        found = [(f"live when memory ran out, at {process.shortages[-1]}", process.shortage_holders)]
    return [(title, holders) for title, holders in found if holders]


def _holders(holders: tuple[Holder, ...]) -> Table:
    size, unit = byte_unit(holder.nbytes for holder in holders)
    has_modules = any(holder.module for holder in holders)
    names = ("category", "line", *(["module"] if has_modules else []))
    lines = []
    for holder in holders:
        words = [holder.category, holder.line or "-", *([holder.module or "-"] if has_modules else [])]
        lines.append([*words, str(holder.num), scaled(holder.nbytes, size)])
    return ruled(of_lines((*names, "number", unit), lines, numbers=("number", unit)))


def _notes(process: Process) -> list[str]:
    """Return what grows from step to step, and why it is not known what held a peak."""
    lines = [f"{growth.line} ({bytes_text(growth.nbytes)} in {growth.num_steps} steps)" for growth in process.growth]
    grows = [f"memory grows from step to step, allocated at {', '.join(lines)}"] if lines else []
    return [*grows, *([f"what held the peaks: {process.holders_why}"] if process.holders_why else [])]
