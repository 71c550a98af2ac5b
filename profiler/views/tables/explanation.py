"""The explanation of a step's peak as text for a terminal or as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.text import Text

from profiler.analysis.explanation import CHUNKS, Explanation
from profiler.analysis.live_bytes import HIDDEN as TEMPORARIES
from profiler.analysis.live_bytes import Peak
from profiler.core.case import encode
from profiler.core.record import Evidence
from profiler.core.trace_data import BlockChoice, BlockChoices
from profiler.core.units import byte_unit, bytes_text, change_text, count_text, scaled
from profiler.views.sanitize import shortened
from profiler.views.tables.grid import Column, grid, numbers, words
from profiler.views.tables.terminal import WIDE, Paper, fitted, paragraph

OUTSIDE = "(outside of all modules)"
BEFORE_STEP = "(before the step)"
LONGEST_NAME, LONGEST_TITLE, LONGEST_SPLIT = 28, 76, 20  # so that it stays within 25 lines of 80 columns
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
    "loss": f"loss in {CHUNKS} chunks (its head twice)",
}


def explanation(explained: Explanation, *, title: str, paper: Paper = WIDE) -> Text:
    """Return the peak, its floor, the reason, what is live and what would lower it: at most 25 lines of 80 columns.

    If the lines of code are known, a table of the largest allocations by line adds to these 25.
    """
    said = [paragraph(line, paper) for line in sentences(explained)]
    room = len(title) if paper.width is None else max(LONGEST_TITLE, paper.width - MARGIN)
    head = paragraph(shortened(title, room), paper, style="bold")
    parts = [head, *said, Text(), _live(explained, paper)]
    if explained.holders:
        parts += [Text(), _holders(explained, paper), Text()]
    if explained.remedies:
        parts.append(paragraph(remedies_text(explained), paper))
    return Text("\n").join(parts)


def sentences(explained: Explanation) -> list[str]:
    """Return the peak, its floor, better blocks if there are any, and the reason if it is known."""
    lines = [_peak(explained), _floor(explained)]
    if explained.choices and explained.better:
        lines.append(better_text(explained.choices, explained.better))
    return [*lines, f"reason: {explained.reason.text}"] if explained.reason else lines


def document(explained: Explanation, *, strategy: str, evidence: Evidence = "predicted") -> bytes:
    """Return the explanation with its strategy and kind of evidence as one JSON document; sizes are in bytes."""
    return encode({"strategy": strategy, "evidence": evidence, **msgspec.to_builtins(explained)}) + b"\n"


def where(peak: Peak) -> str:
    """Return the phase of a peak and the module that runs then."""
    return f"before the step, {OUTSIDE}" if peak.number == 0 else f"{peak.phase}, {module_name(peak.module)}"


def module_name(name: str) -> str:
    """Return a module's name, its middle elided if it is long; OUTSIDE for work outside of all modules."""
    return shortened(name, LONGEST_NAME) if name else OUTSIDE


def _peak(explained: Explanation) -> str:
    peak, before = explained.peak, explained.baseline_bytes
    against = [f"{change_text(peak.nbytes / before)} against {bytes_text(before)} of none"] if before else []
    split = [f"split {shortened(explained.split, LONGEST_SPLIT)}"] if explained.split else []
    details = f" ({', '.join([*against, *split])})" if against or split else ""
    at = f" at {shortened(peak.operator, LONGEST_NAME)}" if peak.operator else ""
    return f"peak {bytes_text(peak.nbytes)}{details}: {where(peak)}{at}"


def _floor(explained: Explanation) -> str:
    floor = explained.floor
    stage = module_name(floor.stage or floor.module)
    work = f"{bytes_text(floor.work_bytes)} at work in the {floor.phase} of {stage}"
    static = bytes_text(floor.static_bytes)
    return f"floor {bytes_text(floor.nbytes)} of checkpointing these blocks: {static} static, {work}"


def better_text(choices: BlockChoices, better: BlockChoice) -> str:
    """Return which blocks are better, with their floor and the peak of `all`."""
    asked = f"with --blocks '{better.pattern}'" if better.pattern else "without --blocks"
    text = f"{asked} the floor is {bytes_text(better.floor_bytes)}"
    if better.all_bytes is None:
        return text
    instead = f", not {bytes_text(choices.own.all_bytes)}" if choices.own.all_bytes is not None else ""
    return f"{text}, and the peak of `all` {bytes_text(better.all_bytes)}{instead}"


def _live(explained: Explanation, paper: Paper) -> Text:
    """Return the tables of categories and modules side by side, or one below the other on a narrow screen."""
    below = live_tables(explained)
    most = max(len(columns[0].cells) for columns in below)
    padded = [
        msgspec.structs.replace(column, cells=(*column.cells, *[""] * (most - len(column.cells))))
        for columns in below
        for column in columns
    ]
    if grid(padded, width=paper.width):
        return fitted(padded, paper)
    return Text("\n\n").join([fitted(columns, paper) for columns in below])


def live_tables(explained: Explanation) -> tuple[tuple[Column, Column], tuple[Column, Column]]:
    """Return what is live at the peak, by category and by block or module, in one unit."""
    size, unit = byte_unit(share.nbytes for share in (*explained.categories, *explained.modules))
    kinds = [(_category(share.name, explained), scaled(share.nbytes, size)) for share in explained.categories]
    modules = [(module_name(share.name), scaled(share.nbytes, size)) for share in explained.modules[:MOST_MODULES]]
    left = explained.modules[MOST_MODULES:]
    if num_others := explained.num_others + len(left):
        others_bytes = explained.others_bytes + sum(share.nbytes for share in left)
        modules.append((count_text(num_others, "other"), scaled(others_bytes, size)))
    return _columns("live at the peak", unit, kinds), _columns("block or module", unit, modules)


def _category(name: str, explained: Explanation) -> str:
    """Return a category in words, with the library workspace, as cuBLAS's, that the operator at the peak allocates."""
    own = explained.operator_bytes
    if name == TEMPORARIES and own >= NOTEWORTHY * explained.peak.nbytes:
        return f"{name} ({bytes_text(own)} workspace)"
    return CATEGORIES.get(name, name)


def _holders(explained: Explanation, paper: Paper) -> Text:
    """Return a table of what is live at the peak by operator and line of code, the largest first."""
    size, unit = byte_unit(holder.nbytes for holder in explained.holders)
    cells = [
        (
            shortened(holder.operator, LONGEST_NAME) or BEFORE_STEP,
            shortened(holder.line, LONGEST_NAME) or "-",
            CATEGORIES.get(holder.category, holder.category),
            str(holder.count),
            scaled(holder.nbytes, size),
        )
        for holder in explained.holders
    ]
    operators, lines, categories, counts, sizes = zip(*cells, strict=True)
    columns = [
        words("largest at the peak", "", operators),
        words("line", "", lines),
        words("category", "", categories),
        numbers("number", "", counts),
        numbers(unit, "", sizes),
    ]
    return fitted(columns, paper)


def _columns(head: str, unit: str, shares: Sequence[tuple[str, str]]) -> tuple[Column, Column]:
    names, sizes = zip(*shares, strict=True)
    return words(head, "", names), numbers(unit, "", sizes)


def remedies_text(explained: Explanation) -> str:
    """Return what would lower the peak, the strongest first, each with an upper bound of its gain."""
    named = [f"{REMEDIES[remedy.kind]} {bytes_text(remedy.nbytes)}" for remedy in explained.remedies[:MOST_REMEDIES]]
    return f"could lower it by: {', '.join(named)}"
