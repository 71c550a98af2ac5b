"""Explanations of a peak, of a step or of a CUDA memory snapshot, and timelines of steps: as tables or as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from profiler.analysis.explanation import CHUNKS, Explanation
from profiler.analysis.live_bytes import HIDDEN as TEMPORARIES
from profiler.analysis.live_bytes import Holder, Peak, SnapshotExplanation, peak
from profiler.core.trace_data import BlockChoice, BlockChoices, Trace
from profiler.core.units import byte_unit, bytes_text, bytes_texts, change_text, count_text, scaled
from profiler.views.sanitize import shortened
from profiler.views.tables import Column, Table, byte_columns, numbers, words

OUTSIDE = "loss and top-level code"  # what runs in no submodule
BEFORE_STEP = "(before the step)"
THE_LOSS = re.compile("loss|cross_entropy|log_softmax")  # in the name of its operator
LONGEST_NAME, LONGEST_TITLE, LONGEST_SPLIT = 28, 76, 20  # so that it stays within 25 lines of 80 columns
LONGEST_LINE = 40  # characters of a line of code of a snapshot
NOWHERE = "(no line of yours)"
MARGIN = 4  # columns beside a title
MOST_MODULES = 8  # for the same reason
NOTEWORTHY = 0.02  # of the peak: the workspace of an operator is shown from here on
MOST_REMEDIES = 4  # the strongest, for the same reason
CATEGORIES = {"saved": "saved activations", "recomputed": "recomputed activations", "optimizer": "optimizer state"}
REMEDIES = {  # each with its cost, or with what it changes
    "checkpointing": "finer checkpointing (more recompute)",
    "coarser": "fewer checkpoints (longer segments)",
    "batch": "half the batch (other gradients)",
    "optimizer": "no optimizer state (other updates)",
    "gradients": "optimizer in the backward (no clipping)",
    "kept-gradients": "gradients set to None (free)",
    "offload": "activations on the host (copies)",
    "host-inputs": "checkpointed inputs on the host (copies)",
    "loss": f"loss in {CHUNKS} chunks (other rounding)",
}


def tables(explained: Explanation, *, title: str, notes: Sequence[str] = (), width: int | None = None) -> list[Table]:
    """Return the peak, its floor, the reason, what would lower it, and what is live: at most 25 lines of 80 columns.

    If the lines of code are known, a table of the largest allocations by line adds to these 25.
    """
    title = shortened(title, len(title) if width is None else max(LONGEST_TITLE, width - MARGIN))
    peak, floor, before = explained.peak, explained.floor, explained.baseline_bytes
    against = [f"{change_text(peak.nbytes / before)} against {bytes_text(before)} of none"] if before else []
    split = [f"split {shortened(explained.split, LONGEST_SPLIT)}"] if explained.split else []
    details = f" ({', '.join([*against, *split])})" if against or split else ""
    at = f" at {shortened(peak.operator, LONGEST_NAME)}" if peak.operator else ""
    at_work = _at_work(floor.phase, floor.stage or floor.module, floor.operator)
    work = f"{bytes_text(floor.work_bytes)} in the {' of '.join(filter(None, [floor.phase, at_work]))}"
    parts = f"{bytes_text(floor.static_bytes)} static, {work}"
    lines = [
        f"peak {bytes_text(peak.nbytes)}{details}: {where(peak)}{at}",
        f"floor {bytes_text(floor.nbytes)}: no checkpoints of these blocks need less ({parts})",
    ]
    if explained.choices and explained.better:
        lines.append(better_text(explained.choices, explained.better))
    lines += [f"reason: {explained.reason.text}"] if explained.reason else []
    if remedies := explained.remedies[:MOST_REMEDIES]:  # the strongest first, each with an upper bound of its gain
        ways = [f"{REMEDIES[remedy.kind]} {bytes_text(remedy.nbytes)}" for remedy in remedies]
        lines.append(f"could lower it by: {', '.join(ways)}")
    found = explained.holders
    largest = (
        words("largest at the peak", "", [shortened(one.operator, LONGEST_NAME) or BEFORE_STEP for one in found]),
        words("line", "", [shortened(one.line, LONGEST_NAME) or "-" for one in found]),
        *_held(found),
    )
    modules, left = explained.modules[:MOST_MODULES], explained.modules[MOST_MODULES:]
    kinds, own = [], explained.operator_bytes
    for share in explained.categories:
        category = CATEGORIES.get(share.name, share.name)
        if share.name == TEMPORARIES and own >= NOTEWORTHY * peak.nbytes:
            category = f"{share.name} ({bytes_text(own)} workspace)"  # of a library, as cuBLAS's
        kinds.append((category, share.nbytes))
    blocks = [(module_name(share.name), share.nbytes) for share in modules]
    if num_others := explained.num_others + len(left):
        others_bytes = explained.others_bytes + sum(share.nbytes for share in left)
        blocks.append((count_text(num_others, "other"), others_bytes))
    size, unit = byte_unit(share.nbytes for share in (*explained.categories, *explained.modules))
    columns = []  # by category, and beside it by block or module, in one unit
    for head, shares in (("live at the peak", kinds), ("block or module", blocks)):
        blank = [""] * (max(len(kinds), len(blocks)) - len(shares))  # the shorter list ends in empty cells
        columns.append(words(head, "", [*(name for name, _ in shares), *blank]))
        columns.append(numbers(unit, "", [*(scaled(nbytes, size) for _, nbytes in shares), *blank]))
    live = Table(title=title, above=tuple(lines), columns=tuple(columns), cuts=(0, 2))
    return [live, Table(columns=largest if found else (), below=tuple(f"note: {note}" for note in notes))]


def where(peak: Peak) -> str:
    """Return the phase of a peak and what runs then: a module, the loss or, in no module, what the phase says."""
    if peak.number == 0:
        return "before the step"
    return ", ".join(filter(None, [peak.phase, _at_work(peak.phase, peak.module, peak.operator)]))


def _at_work(phase: str, module: str, operator: str) -> str:
    if module or phase == "optimizer":
        return module_name(module) if module else ""
    return "the loss" if THE_LOSS.search(operator) else "top-level code"


def module_name(name: str) -> str:
    """Return a module's name, its middle elided if it is long; OUTSIDE for work outside of all modules."""
    return shortened(name, LONGEST_NAME) if name else OUTSIDE


def better_text(choices: BlockChoices, better: BlockChoice) -> str:
    """Return which blocks are better, with their floor and the peak of `all`."""
    asked = f"with --blocks '{better.pattern}'" if better.pattern else "without --blocks"
    text = f"{asked} the floor is {bytes_text(better.floor_bytes)}"
    if better.all_bytes is None:
        return text
    instead = f", not {bytes_text(choices.own.all_bytes)}" if choices.own.all_bytes is not None else ""
    return f"{text}, and the peak of `all` {bytes_text(better.all_bytes)}{instead}"


def _held(holders: Sequence[Holder]) -> tuple[Column, ...]:
    return (
        words("category", "", [CATEGORIES.get(holder.category, holder.category) for holder in holders]),
        numbers("number", "", [str(holder.count) for holder in holders]),
        *byte_columns({"": [holder.nbytes for holder in holders]}),
    )


def in_python(tables: Sequence[Table]) -> list[Table]:
    """Return tables that say the command line's `--blocks 'x'` and `--optimizer x` as Python's `blocks='x'`."""

    def said(lines: Sequence[str]) -> tuple[str, ...]:
        named = (re.sub(r"--blocks (?=')", "blocks=", line).replace("--blocks", "blocks") for line in lines)
        return tuple(re.sub(r"--optimizer (\w+)", r"optimizer='\1'", line) for line in named)

    return [msgspec.structs.replace(table, above=said(table.above), below=said(table.below)) for table in tables]


def timelines(traces: Mapping[str, Trace], *, title: str) -> Table:
    """Return a row per strategy: its peak, its change against the first, and where the peak is."""
    peaks = [peak(trace) for trace in traces.values()]
    first = peaks[0].nbytes
    changes = [change_text(found.nbytes / first if number and first else None) for number, found in enumerate(peaks)]
    columns = (
        words("strategy", "", traces),
        numbers("peak", "", bytes_texts([found.nbytes for found in peaks])),
        *([numbers("against", "the first", changes)] if len(peaks) > 1 else []),
        words("at", "", [where(found) for found in peaks]),
    )
    return Table(title=title, columns=columns)


def snapshot(explained: SnapshotExplanation, *, title: str) -> list[Table]:
    """Return the peak of a snapshot, what held it, what stayed, and what was reserved."""
    shares = ", ".join(f"{share.name} {bytes_text(share.nbytes)}" for share in explained.categories)
    number, when = explained.peak_event, "when the recording began"
    if number is not None:
        at = f", {shortened(explained.peak_line, LONGEST_LINE)}" if explained.peak_line else ""
        when = f"event {number + 1} of {explained.num_events}{at}"
    held = f"at the end {bytes_text(explained.end_bytes)} live of {bytes_text(explained.reserved_bytes)} reserved"
    free = f"{bytes_text(explained.free_bytes)} free, at most {bytes_text(explained.largest_free_bytes)} in one piece"
    lines = [
        f"peak {bytes_text(explained.peak_bytes)}: {when}; {shares}",
        f"{held} in {count_text(explained.num_segments, 'segment')}: {free}",
    ]
    if explained.failed_bytes is not None:
        lines.append(f"a request of {bytes_text(explained.failed_bytes)} failed: out of memory")
    parts = [
        Table(columns=(words(head, "", [shortened(one.line, LONGEST_LINE) or NOWHERE for one in held]), *_held(held)))
        for head, held in (("live at the peak", explained.holders), ("stayed, from time to time", explained.grown))
        if held
    ]
    return [Table(title=title, above=tuple(lines)), *parts]
