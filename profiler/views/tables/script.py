"""What a watched command took: sentences, tables of phases and of variants, explanations and comparisons of peaks."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from statistics import median
from typing import Any

from profiler.core import gpu_specs
from profiler.core.errors import UserError
from profiler.core.script import Holder, Phase
from profiler.core.units import byte_unit, bytes_text, change_text, count_text, few, scaled, seconds_text
from profiler.runs.store import Run
from profiler.scripts import estimate
from profiler.scripts.records import variants
from profiler.scripts.report import IN_STEPS, Process, Variant, name_of, phase_name, phase_text
from profiler.views.tables.grid import Table, of_lines

SCHEMA = 1
KEEP_OWN = ("none", "hf")  # strategies under which a script's own checkpoints stay
MOST_NAMED = 3
MOST_PHASES = 5  # of an explanation
UNGUARDED = (
    "what torch, safetensors, torch.distributed.checkpoint, Trainer and Lightning save is kept apart; "
    "other writes are not guarded"
)
ONE = {"steps": "step", "backward passes": "backward pass"}
SIZES = ("peak", "live", "reserved")


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


def tables(variant: Variant) -> list[Table]:
    """Return the sentence, then a table for each group of processes; nothing where no process used a GPU."""
    return [Table(above=(sentence(variant),)), *phases(variant)] if variant.processes else []


def phases(variant: Variant) -> list[Table]:
    """Return what a strategy did, a table for each group of processes that agree, and what is to be noted of them."""
    applied = tuple(dict.fromkeys(line for process in variant.processes for line in _applied_lines(process)))
    groups: dict[tuple[Any, ...], list[Process]] = {}
    for process in variant.processes:  # those whose steps took the same: one of them may also evaluate and save
        steps = [one for one in process.phases if one.name in IN_STEPS]
        key = tuple((one.name, one.is_first_step, one.peak_bytes, one.live_bytes, one.reserved_bytes) for one in steps)
        groups.setdefault(key, []).append(process)
    tables = [Table(above=applied)] if applied else []
    for group in groups.values():
        tables.append(_phases(group, len(variant.processes)))
        tables += _held(next((process for process in group if process.shortage_holders), group[0]))
    notes = tuple(f"note: {remark}" for remark in _remarks(variant))
    return [*tables, *([Table(below=notes)] if notes else [])]


def _remarks(variant: Variant) -> Iterator[str]:
    """Yield what is to be noted of a variant and its processes."""
    if variant.unguarded:
        yield f"files could not be guarded ({variant.unguarded}): {UNGUARDED}"
    unstepped = [phase for process in variant.processes if not process.num_steps for phase in process.phases]
    if any(phase.name == "backward" and phase.num > 1 for phase in unstepped):
        yield "no optimizer of torch.optim made a step, so that all steps are the first"
    caught = [line for process in variant.processes if process.outcome == "ok" for line in process.shortages]
    if caught:
        lines = ", ".join(dict.fromkeys(caught))
        yield f"memory ran out {count_text(len(caught), 'time')}, and the script went on: {lines}"
    seen = {one.name for process in variant.processes for one in process.phases}
    if variant.is_cut and (unseen := {"evaluation", "generation", "saving"} - seen):
        yield f"not seen, if there is any: {', '.join(sorted(unseen))}"
    yield from dict.fromkeys(line for process in variant.processes for line in (*process.notes, *_notes(process)))
    reads = dict.fromkeys(line for process in variant.processes for line in process.reads)
    if reads:
        yield f"values of the GPU, which are not computed, were read at {', '.join(reads)}"


def summary(variants: Sequence[Variant]) -> Table:
    """Return one row for each variant: words, largest peak, reserved, a step's estimated time, and whether it fits."""
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
    notes = tuple(f"note: {line}" for line in _estimate_notes(variants, is_estimated=is_estimated))
    columns = of_lines([*names, *numbers, "fits?"], lines, numbers=numbers)
    return Table(title="all variants", columns=columns, below=notes)


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
        return f"no{f', needs {bytes_text(variant.needed_bytes)}' if variant.needed_bytes else ''}"
    if variant.outcome != "ok" or not variant.processes:
        return variant.outcome.replace("_", " ") if variant.outcome != "ok" else "no GPU used"
    how = f"{', in what ran' if variant.is_cut else ''}{', assumed' if variant.sized_at else ''}"
    return f"{_spare(variant)} to spare{how}"


def _spare(variant: Variant) -> str:
    return bytes_text((variant.gpu_bytes or 0) - variant.context_bytes - (variant.largest.reserved_bytes or 0))


def _applied_lines(process: Process) -> Iterator[str]:
    """Yield what a strategy did to each model, and what the script checkpoints by itself."""
    for applied in process.applied:
        own = f"its own checkpoints: {few(list(applied.own), MOST_NAMED)}" if applied.own else ""
        if applied.strategy == "none":
            yield f"{applied.module}: {own}"
            continue
        blocks = f"{count_text(applied.num_blocks, 'block')} recomputed, " if applied.num_blocks else ""
        did = f"{applied.strategy}, {blocks}{applied.split or 'whole'}"
        what = f"left as it is: {applied.why}" if applied.why else did
        kept = own if applied.strategy in KEEP_OWN or applied.why else f"instead of {own}"
        yield f"{applied.module}: {what}{f'; {kept}' if own else ''}"


def process_table(process: Process) -> Table:
    """Return the table of one process, and what was not measured."""
    notes = ["note: no GPU was used; memory is not measured on a CPU"] if process.peak_bytes is None else []
    notes += [f"note: memory ran out at {line}" for line in dict.fromkeys(process.shortages)]
    notes += [f"{process.outcome.replace('_', ' ')}: {process.detail}"] if process.detail else []
    table = _phases([process], 1)
    return Table(title=table.title, columns=table.columns, below=tuple(notes))


def sentence(variant: Variant) -> str:
    """Return whether it fits, and where its peak is."""
    strategy = variant.words.get("strategy")
    words = [f"{name}={value}" for name, value in variant.words.items() if name not in ("device", "strategy")]
    called = " ".join([_device_name(variant), *words, *([f"under {strategy}"] if strategy else [])])
    if variant.gpu_bytes is None or (variant.device and not variant.gpu):
        return _measured_sentence(variant, called)
    room = bytes_text(variant.gpu_bytes)
    if not variant.processes:
        return f"on {called} ({room}) no process of the command used a GPU"
    if variant.outcome == "out_of_memory":
        ran_out = [process for process in variant.processes if process.outcome == "out_of_memory"]
        short = min(ran_out, key=lambda process: process.died or 0, default=variant.largest)
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
            named = f"process {dead.number}" if dead.rank is None else f"rank {dead.rank}"
            why = f"{named} died first: {dead.detail}" if len(variant.processes) > 1 else dead.detail
        return f"{variant.outcome.replace('_', ' ')} on {called} ({room}){f': {why}' if why else ''}"
    what = "fits, in what ran, on" if variant.is_cut else "fits"
    peak = peak_text(variant.largest.peak)
    return f"{what} {called} ({room}) with {_spare(variant)} to spare; {peak}{_assumed_text(variant)}"


def _assumed_text(variant: Variant) -> str:
    """Return where sizes were assumed, and between which bounds the peak is then; "" where none were."""
    if not variant.sized_at:
        return ""
    said = f"; assumed: sizes depend on values at {few(list(variant.sized_at), MOST_NAMED)}"
    peaks = {bound.values: bound.peak_bytes for bound in variant.bounds if bound.outcome == "ok" and bound.peak_bytes}
    if len({*peaks.values(), variant.largest.peak_bytes}) > 1:
        bounds = [f"{bytes_text(peak)} with --values {values}" for values, peak in peaks.items()]
        said += f"; the peak is {' and '.join(bounds)}"
    bad = [one for one in variant.bounds if one.outcome != "ok"]
    failed = [f"--values {bound.values} ({bound.outcome.replace('_', ' ')})" for bound in bad]
    return said + (f"; it did not end well with {', '.join(failed)}" if failed else "")


def peak_text(peak: Phase) -> str:
    """Return how large a peak is, and where."""
    size = bytes_text(peak.peak_bytes or 0)
    return f"the peak, {size}, is in {phase_text(peak)}{f', {peak.line}' if peak.line else ''}"


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


def _phases(group: list[Process], num_processes: int) -> Table:
    """Return the phases of processes that agree: of the one that has most."""
    first = max(group, key=lambda process: len(process.phases))
    ranks = [str(process.rank if process.rank is not None else process.number) for process in group]
    kind, several = ("process", "processes") if first.rank is None else ("rank", "ranks")
    who = f", {several if len(ranks) > 1 else kind} {', '.join(ranks)}" if num_processes > 1 else ""
    noun = first.steps_are if first.num_steps != 1 else ONE[first.steps_are]
    kept = {"peak": first.peak_bytes, "live": first.peak_bytes, "reserved": first.reserved_bytes}
    sizes = [name for name in SIZES if kept[name] is not None]
    bold = {at for at, phase in enumerate(first.phases) if sizes and phase == first.peak}
    return _table(first, sizes, title=f"{first.module or 'no model'}{who}, {first.num_steps} {noun}", bold=bold)


def _table(process: Process, sizes: Sequence[str], *, title: str, bold: Container[int] = ()) -> Table:
    size, unit = byte_unit(phase.peak_bytes for phase in process.phases)
    lines = [
        [
            phase_name(phase),
            str(phase.num),
            *(scaled(getattr(phase, f"{name}_bytes"), size) for name in sizes),
            phase.line,
        ]
        for phase in process.phases
    ]
    numbers = ("times", *(f"{name} {unit}" for name in sizes))
    columns = of_lines(("phase", *numbers, "line"), lines, numbers=numbers, bold=bold)
    return Table(title=title, columns=columns)


def exported(run: Run) -> list[Table]:
    """Return a table for each process of a run, with what its variant comes to; every size is a column."""
    tables = []
    for variant in variants(run.records):
        tables.append(Table(title=name_of(variant), above=(sentence(variant),)))
        tables += [exported_process(variant, process) for process in variant.processes]
    return tables


def exported_process(variant: Variant, process: Process) -> Table:
    """Return the table of a process, by its model, its rank and its steps."""
    called = (process.module or "no model", process.label(variant.processes), count_text(process.num_steps, "step"))
    return _table(process, SIZES, title=", ".join(filter(None, called)))


def _held(process: Process) -> list[Table]:
    """Return what held the peak, or what was live where memory ran out; nothing if it is not known."""
    peak = process.peak
    where = f", {peak.line}" if peak.line else ""
    title, holders = f"live at the peak, in {phase_text(peak)}{where}", peak.holders
    if process.outcome == "out_of_memory" and process.shortages:
        title, holders = f"live when memory ran out, at {process.shortages[-1]}", process.shortage_holders
    return [_holders(holders, title=title)] if holders else []


def _holders(holders: Sequence[Holder], *, title: str) -> Table:
    size, unit = byte_unit(holder.nbytes for holder in holders)
    modules = ["module"] if any(holder.module for holder in holders) else []
    lines = [
        [
            one.category,
            one.line or "-",
            *([one.module or "-"] if modules else []),
            str(one.num),
            scaled(one.nbytes, size),
        ]
        for one in holders
    ]
    columns = of_lines(("category", "line", *modules, "number", unit), lines, numbers=("number", unit))
    return Table(title=title, columns=columns)


def _notes(process: Process) -> list[str]:
    """Return what grows from step to step, and why it is not known what held a peak."""
    lines = [f"{growth.line} ({bytes_text(growth.nbytes)} in {growth.num_steps} steps)" for growth in process.growth]
    grows = [f"memory grows from step to step, allocated at {', '.join(lines)}"] if lines else []
    return [*grows, *([f"what held the peaks: {process.holders_why}"] if process.holders_why else [])]


def explanation(variants: Sequence[Variant]) -> list[Table]:
    """Return the sentence of each variant, and for each process what its peak is made of."""
    tables = []
    for variant in variants:
        tables.append(Table(title=sentence(variant)))
        for process in variant.processes:
            grows = [
                f"grows: {growth.line}, {bytes_text(growth.nbytes)} in {growth.num_steps} steps"
                for growth in process.growth
            ]
            tables += [Table(above=tuple(explained(process, variant.processes)), below=tuple(grows)), *_held(process)]
    return tables


def explained(process: Process, among: Sequence[Process]) -> Iterator[str]:
    """Yield what is known of the peak of a process, in words."""
    peak, most = process.peak, process.most_reserved
    who = ", ".join(filter(None, (process.label(among), process.module or "no model")))
    where = f", at {peak.line}" if peak.line else ""
    start = next((phase for phase in process.phases if phase.name == "start"), None)
    yield f"{who}: the peak, {bytes_text(peak.peak_bytes)}, is in {phase_text(peak)}{where}"
    if peak.live_bytes is not None:
        yield f"{bytes_text(peak.live_bytes)} are live when that phase ends"
    if start and start is not peak:
        yield f"{bytes_text(start.live_bytes)} were live before the first step: weights, and what was loaded"
    if process.reserved_bytes is not None:
        kept = f"{bytes_text(process.reserved_bytes)} are reserved"
        yield kept + (f", first so in {phase_text(most)}" if most is not peak else ", in the same phase")
    others = sorted((one for one in process.phases if one is not peak), key=lambda phase: -(phase.peak_bytes or 0))
    near = [f"{phase_name(phase)} {bytes_text(phase.peak_bytes)}" for phase in others[:MOST_PHASES]]
    if near:
        yield f"next: {'; '.join(near)}"
    if process.holders_why:
        yield f"what held it is not known: {process.holders_why}"
    if process.outcome != "ok":
        yield f"{process.outcome.replace('_', ' ')}: {process.detail or 'it ended without a word'}"


def explanation_document(variants: Sequence[Variant]) -> dict[str, Any]:
    """Return one document: for each process of each variant the phase with its peak, and that which reserves most."""
    found = [
        {
            "words": variant.words,
            "outcome": variant.outcome,
            "processes": [
                {
                    "rank": process.rank, "model": process.module, "outcome": process.outcome,
                    "peak": process.peak, "reserved": process.most_reserved, "growth": process.growth,
                }
                for process in variant.processes
            ],
        }
        for variant in variants
    ]  # fmt: skip
    return {"schema": SCHEMA, "variants": found}
