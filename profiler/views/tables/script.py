"""What a watched command took: sentences, tables of phases and of variants, and what its peaks are made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

import msgspec

from profiler.analysis import time_ratio
from profiler.analysis.time_ratio import TimeRatio
from profiler.core import gpu_specs, units
from profiler.core.errors import UserError
from profiler.core.record import AppliedToModel, Gradients
from profiler.core.stats import num_warmup, num_warmup_pairs, pair_ratios, ratio_of_pairs
from profiler.core.units import MISSING, Choice, bytes_text, change_text, count_text, seconds_text
from profiler.scripts.report import IN_STEPS, Process, Variant, estimate_caveat, name_of, phase_name, phase_text
from profiler.views.tables import Table, byte_columns, numbers, telling, words
from profiler.views.tables.columns import CLOSE, NOISE, UNSURE

SCHEMA = 1
KEEP_OWN = ("none", "hf")  # strategies under which a script's own checkpoints stay
MOST_NAMED = 3
MOST_PHASES = 5  # of an explanation
MANY_STEPS = 10  # after which it is said how to end a command that goes on
UNGUARDED = (
    "what torch, safetensors, torch.distributed.checkpoint, Trainer and Lightning save is kept apart; "
    "other writes are not guarded"
)
ONE = {"steps": "step", "backward passes": "backward pass"}
NOTHING = "no process of the command used a GPU"
SIZES = ("peak", "live", "reserved")
Rounds = Sequence[Sequence[float]]


class Live:
    """Says each phase of each process as it ends for the first time, and how to end a command that goes on."""

    def __init__(self, say: Callable[[str], None], *, has_end: bool) -> None:
        self._say, self._is_told = say, has_end
        self._seen: set[tuple[Any, ...]] = set()

    def __call__(self, line: dict[str, Any]) -> None:
        if line["kind"] == "unguarded":
            self._say(f"this system lets nobody guard files ({line['why']}): {UNGUARDED}")
        if line["kind"] != "phase":
            return
        if line["step"] >= MANY_STEPS and not self._is_told:
            self._is_told = True
            self._say(f"{MANY_STEPS} steps are done: Ctrl-C shows what ran so far, --steps {MANY_STEPS} ends here")
        key = (line["process"], line["phase"], line["step"] == 0)
        if key not in self._seen:
            self._seen.add(key)
            peak = max(device[0] for device in line["devices"].values())
            rank = line["process"].partition(".")[0]
            who = "" if rank == "-" else f"rank {rank}: "
            step = f", step {line['step'] + 1}" if line["phase"] in IN_STEPS[:4] else ""
            self._say(f"{who}{line['phase']}{step}: peak {bytes_text(peak)}{_at(line.get('peak_line', line['line']))}")


def tables(variants: Sequence[Variant]) -> list[Table]:
    """Return of each variant its sentence, what a strategy did, a table for processes that agree, and notes on them.

    Of several variants, a row for each follows.
    """
    found = list[Table]()
    for variant in variants:
        found.append(Table(above=(sentence(variant, variants),)))
        lines = []  # what a strategy did to each model, and what the script checkpoints by itself
        for applied in (applied for process in variant.processes for applied in process.applied):
            own = f"its own checkpoints: {units.few(list(applied.own), MOST_NAMED)}" if applied.own else ""
            what = f"left as it is: {applied.why}" if applied.why else f"{applied.strategy}, {what_was_done(applied)}"
            kept = own if Choice(applied.strategy).parts[0] in KEEP_OWN or applied.why else f"instead of {own}"
            done = own if applied.strategy == "none" else f"{what}{f'; {kept}' if own else ''}"
            lines.append(f"{applied.module}: {done}")
        found.append(Table(above=tuple(dict.fromkeys(lines))))
        for group in _alike(variant.processes):
            found.append(process_table(group, variant.processes))
            found.append(held_table(next((process for process in group if process.shortage_holders), group[0])))
        found.append(Table(below=tuple(f"note: {remark}" for remark in dict.fromkeys(_remarks(variant)))))
    return [*found, *([summary(variants)] if len(variants) > 1 else [])]


def _alike(processes: Sequence[Process], *more: str) -> Collection[list[Process]]:
    """Return groups of processes of equal steps and attributes `more`; one of a group may also evaluate and save."""
    groups: dict[tuple[Any, ...], list[Process]] = {}
    for process in processes:
        steps = [phase for phase in process.phases if phase.name in IN_STEPS]
        key = [(one.name, one.is_first_step, one.peak_bytes, one.live_bytes, one.reserved_bytes) for one in steps]
        groups.setdefault((*key, *(getattr(process, name) for name in more)), []).append(process)
    return groups.values()


def sentence(variant: Variant, among: Sequence[Variant] = ()) -> str:
    """Return whether a rehearsed variant fits, or what a measured one takes against `none`; and where its peak is."""
    outcome, strategy = variant.outcome.replace("_", " "), variant.words.get("strategy")
    if not variant.gpu:
        said = "; ".join(_measured(variant, among)) or NOTHING
        room = f" ({bytes_text(variant.gpu_bytes)})" if variant.gpu_bytes else ""
        device = "this CPU" if variant.words["device"] == "cpu" else f"{variant.words['device']}{room}"
        named = filter(None, (strategy, *(f"{name} {value}" for name, value in variant.filled.items())))
        called = f"{', '.join(named)} on {device}".removeprefix(" ")
        cut = ", in what ran" if variant.is_cut else ""
        return f"{called}{cut}: {said if variant.outcome == 'ok' else _because(outcome, variant.why)}"
    under = [f"under {strategy}"] if strategy else []
    device = variant.words["device"].partition(":")[0]
    with suppress(UserError):  # a GPU that is not known here, or that is redacted, keeps its word
        device = gpu_specs.find(device).name
    called = " ".join([device, *(f"{name}={value}" for name, value in variant.filled.items()), *under])
    if variant.outcome == "skipped":
        return f"skipped on {called}: {variant.detail}; below is the script as it is"
    called = f"{called} ({bytes_text(variant.gpu_bytes or 0)})"
    if not variant.processes:
        ended = f"it ended with exit code {variant.exit_code}" if variant.exit_code else None
        return _because(f"on {called} {NOTHING}", ended)
    if variant.outcome == "out_of_memory":
        ran_out = [process for process in variant.processes if process.outcome == "out_of_memory"]
        short = min(ran_out, key=lambda process: process.died or 0, default=variant.largest)
        known = f"{bytes_text(variant.needed_bytes)} would do" if variant.needed_bytes else None
        need = known or "without a limit of memory it did not end well, so what would do is not known"
        return f"runs out of memory on {called}: {short.detail}; {need}"
    if variant.outcome == "timed_out":
        return f"{_because(f'was ended early on {called}', variant.detail)}; below is what ran"
    if variant.outcome != "ok":
        why = variant.why
        if dead := variant.first_dead:
            who = f"process {dead.number}" if dead.rank is None else f"rank {dead.rank}"
            why = f"{who} died first: {dead.detail}" if len(variant.processes) > 1 else dead.detail
        return _because(f"{outcome} on {called}", why)
    what = "fits, in what ran, on" if variant.is_cut else "fits"
    return f"{what} {called} with {_spare(variant)} to spare; {_peak(variant.largest)}{''.join(_assumed(variant))}"


def _because(text: str, why: str | None) -> str:
    return f"{text}: {why}" if why else text


def _at(line: str) -> str:
    return f", {line}" if line else ""


def _peak(process: Process) -> str:
    peak = process.peak
    return f"the peak, {bytes_text(peak.peak_bytes)}, is in {phase_text(peak)}{_at(peak.line)}"


def _spare(variant: Variant) -> str:
    return bytes_text((variant.gpu_bytes or 0) - variant.context_bytes - (variant.largest.reserved_bytes or 0))


def _assumed(variant: Variant) -> Iterator[str]:
    """Yield where sizes were assumed, and between which bounds the peak is then."""
    if not variant.sized_at:
        return
    yield f"; assumed: sizes depend on values at {units.few(list(variant.sized_at), MOST_NAMED)}"
    peaks = {bound.values: bound.peak_bytes for bound in variant.bounds if bound.outcome == "ok" and bound.peak_bytes}
    if len({*peaks.values(), variant.largest.peak_bytes}) > 1:
        bounds = [f"{bytes_text(peak)} with --values {values}" for values, peak in peaks.items()]
        yield f"; the peak is {' and '.join(bounds)}"
    if bad := [one for one in variant.bounds if one.outcome != "ok"]:
        failed = [f"--values {bound.values} ({bound.outcome.replace('_', ' ')})" for bound in bad]
        yield f"; it did not end well with {', '.join(failed)}"


def _measured(variant: Variant, among: Sequence[Variant]) -> Iterator[str]:
    """Yield where the peak is, how long a step takes against `none`, and whether the gradients are its."""
    plain = _plain(variant, among)
    if variant.processes:
        yield _peak(variant.largest)
    if ratio := ratio_to(variant.seconds, plain.seconds) if plain else None:
        yield f"time of a step {_ratio_text(ratio)} against none"
    elif not plain and (seconds := step_seconds(variant.seconds)) is not None:
        yield f"a step takes {seconds_text(seconds)} here"
    if variant.equality:
        yield f"gradients {_equality(variant.equality, is_plain=plain is None)}"


def _plain(variant: Variant, among: Sequence[Variant]) -> Variant | None:
    """Return the variant of `none` to which this one is compared; None where it is that, or where there is none."""
    wanted = {**variant.words, "strategy": "none"}
    return next((one for one in among if one.words == wanted and one.words != variant.words), None)


def step_seconds(rounds: Rounds) -> float | None:
    """Return the median of all steps after warm-up."""
    steady = [second for seconds in rounds for second in seconds[num_warmup(seconds) :]]
    return median(steady) if steady else None


def ratio_to(rounds: Rounds, plain: Rounds) -> TimeRatio | None:
    """Return the ratio of the steps' times, and its range over the rounds; a round's is that of pairs of equal steps.

    What the script does between two steps, such as an evaluation, then stands on both sides of a pair.
    """
    ratios = []
    for seconds, others in zip(rounds, plain, strict=False):
        settled = num_warmup_pairs(seconds, others)
        if pairs := pair_ratios(seconds[settled:], others[settled:]):
            ratios.append(ratio_of_pairs(pairs)[0])
    return time_ratio.of_rounds(ratios) if ratios else None


def _ratio_text(ratio: TimeRatio) -> str:
    """Return the change of the time; what is unsure is never called faster."""
    if ratio.interval is None:
        return UNSURE if ratio.ratio < 1 else f"{change_text(ratio.ratio)} ({UNSURE}: one round)"
    verdict = time_ratio.verdict(ratio)
    change = {"too noisy to tell": NOISE, CLOSE: UNSURE}.get(verdict, change_text(ratio.ratio))
    return f"{change} ({units.change_range_text(ratio.interval)})"


def _equality(equality: Gradients, *, is_plain: bool) -> str:
    """Return the verdict in words."""
    if equality.verdict == "equal":
        return "repeat to the bit" if is_plain else "equal none's to the bit"
    if equality.verdict in ("not comparable", "unverified"):
        return f"{equality.verdict}: {equality.detail}"
    share = f"{equality.num_differing} of {equality.num_gradients}"
    size = "" if equality.largest_difference is None else f" by up to {equality.largest_difference:.1e}"
    where = f": {share}{size}, first {equality.parameter} in step {equality.step}" if equality.parameter else ""
    word = "differ within rounding" if equality.verdict == "equal within rounding" else "differ"
    return f"{word}{where}{f'; {equality.detail}' if equality.detail else ''}"


def what_was_done(applied: AppliedToModel) -> str:
    """Return how a model was changed: `12 blocks recomputed, 4x3`."""
    blocks = f"{count_text(applied.num_blocks, 'block')} recomputed" if applied.num_blocks else ""
    return ", ".join(filter(None, (blocks, applied.split))) or "whole"


def process_table(group: Sequence[Process], among: Sequence[Process], *, below: Sequence[str] = ()) -> Table:
    """Return the phases of processes that agree: of the one that has most; its largest peak is bold."""
    first = max(group, key=lambda process: len(process.phases))
    noun = first.steps_are if first.num_steps != 1 else ONE[first.steps_are]
    called = [first.module or "no model", *(process.label(among) for process in group), f"{first.num_steps} {noun}"]
    phases, peak = first.phases, first.peak if first.peak_bytes is not None else None
    columns = (
        words("phase", "", [phase_name(phase) for phase in phases]),
        numbers("times", "", [str(phase.num) for phase in phases]),
        *telling(byte_columns({name: [getattr(phase, f"{name}_bytes") for phase in phases] for name in SIZES})),
        words("line", "", [phase.line for phase in phases]),
    )
    bold = tuple("bold" if phase == peak else "" for phase in phases)
    columns = tuple(msgspec.structs.replace(column, styles=bold) for column in columns)
    return Table(title=", ".join(filter(None, called)), columns=columns, below=tuple(below))


def watched(process: Process) -> Table:
    """Return the table of a process that was watched from within, and what was not measured."""
    notes = ["note: no GPU was used; memory is not measured on a CPU"] if process.peak_bytes is None else []
    notes += [f"note: memory ran out at {line}" for line in dict.fromkeys(process.shortages)]
    notes += [f"{process.outcome.replace('_', ' ')}: {process.detail}"] if process.detail else []
    return process_table([process], [process], below=notes)


def held_table(process: Process) -> Table:
    """Return what held the peak, or what was live where memory ran out; an empty table if it is not known."""
    title = f"live at the peak, in {phase_text(process.peak)}{_at(process.peak.line)}"
    holders = process.peak.holders
    if process.outcome == "out_of_memory" and process.shortages:
        title, holders = f"live when memory ran out, at {process.shortages[-1]}", process.shortage_holders
    columns = (
        words("category", "", [holder.category for holder in holders]),
        words("line", "", [holder.line or MISSING for holder in holders]),
        *telling([words("module", "", [holder.module or MISSING for holder in holders])]),
        numbers("number", "", [str(holder.num) for holder in holders]),
        *byte_columns({"": [holder.nbytes for holder in holders]}),
    )
    return Table(title=title, columns=columns) if holders else Table()


def _remarks(variant: Variant) -> Iterator[str]:
    """Yield what is to be noted of a variant and its processes."""
    if variant.unguarded:
        yield f"files could not be guarded ({variant.unguarded}): {UNGUARDED}"
    num_gpus = int(variant.words["device"].partition(":")[2] or 1) if variant.gpu else len(variant.processes)
    if len(variant.processes) > num_gpus:
        had = f"{len(variant.processes)} processes used {count_text(num_gpus, 'GPU')}, each as if it were alone there"
        yield f"{had}; on a GPU those that run at the same time share its memory, and each has a CUDA context"
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
    for process in variant.processes:
        yield from process.notes
        if process.growth:
            yield f"memory grows from step to step, allocated at {', '.join(_growth(process))}"
        if process.holders_why:
            yield f"what held the peaks: {process.holders_why}"
    if reads := dict.fromkeys(line for process in variant.processes for line in process.reads):
        yield f"values of the GPU, which are not computed, were read at {', '.join(reads)}"


def _growth(process: Process) -> list[str]:
    return [f"{growth.line} ({bytes_text(growth.nbytes)} in {growth.num_steps} steps)" for growth in process.growth]


def summary(variants: Sequence[Variant]) -> Table:
    """Return a row for each variant: its words, its peak, its step against `none`, whether it fits, its gradients."""
    names = [*dict.fromkeys(name for variant in variants for name in variant.words)]
    largest = [variant.largest if variant.processes and variant.outcome != "skipped" else None for variant in variants]
    kind = "estimated" if variants[0].gpu else ""
    sizes = {name: [getattr(one, f"{name}_bytes", None) for one in largest] for name in ("peak", "reserved")}
    notes = []  # what times are worth, and why some are not known
    if any(seconds_of_step(variant) is not None for variant in variants):
        if any(not variant.gpu and variant.gpu_bytes is None for variant in variants):
            notes.append("times are of this CPU; those of another device are not known by them")
        has_ranks = any(len(one.processes) > 1 for one in variants)
        gpus = dict.fromkeys(
            one.gpu for one in variants if one.gpu and gpu_specs.is_known(one.gpu)
        )  # others are hidden
        notes += [estimate_caveat(gpu_specs.find(gpu), has_ranks=has_ranks) for gpu in gpus]
    for variant in variants:
        if variant.estimate_why:
            notes.append(f"no time of {name_of(variant)}: {variant.estimate_why}")
    figures = (
        *byte_columns(sizes),
        numbers("step", kind, [seconds_text(seconds_of_step(variant)) for variant in variants]),
        numbers("time", "against none", [_time_change(variant, variants) for variant in variants]),
    )
    return Table(
        title="all variants",
        columns=(
            *(words(name, "", [variant.words.get(name, "") for variant in variants]) for name in names),
            *telling(figures),
            words("fits?" if variants[0].gpu else "gradients", "", [_verdict(one, variants) for one in variants]),
        ),
        below=tuple(f"note: {line}" for line in notes),
    )


def seconds_of_step(variant: Variant) -> float | None:
    """Return the seconds of a step: measured, or estimated of its slowest process; None where one is not known."""
    return variant.estimated_seconds if variant.gpu else step_seconds(variant.seconds)


def against_none(variant: Variant, variants: Sequence[Variant]) -> TimeRatio | None:
    """Return the time of a step against that of `none`, without an interval if it is estimated; None if not known."""
    if (plain := _plain(variant, variants)) is None:
        return None
    if not variant.gpu:
        return ratio_to(variant.seconds, plain.seconds)
    seconds, bare = seconds_of_step(variant), seconds_of_step(plain)
    return TimeRatio(ratio=seconds / bare) if seconds is not None and bare else None


def _time_change(variant: Variant, variants: Sequence[Variant]) -> str:
    if variant.words.get("strategy") == "none":
        return "baseline"
    if (ratio := against_none(variant, variants)) is None:
        return MISSING
    return change_text(ratio.ratio) if variant.gpu else _ratio_text(ratio)


def _verdict(variant: Variant, variants: Sequence[Variant]) -> str:
    """Return in a word or two whether a rehearsed variant fits, or whether a measured one's gradients are equal."""
    if variant.gpu and variant.outcome == "out_of_memory":
        return f"no{f', needs {bytes_text(variant.needed_bytes)}' if variant.needed_bytes else ''}"
    if variant.outcome != "ok":
        return variant.outcome.replace("_", " ")
    if not variant.gpu:
        verdict = variant.equality.verdict if variant.equality else ""
        return "repeat" if verdict == "equal" and not _plain(variant, variants) else verdict
    how = f"{', in what ran' if variant.is_cut else ''}{', assumed' if variant.sized_at else ''}"
    return f"{_spare(variant)} to spare{how}" if variant.processes else "no GPU used"


def explanation(variants: Sequence[Variant]) -> list[Table]:
    """Return the sentence of each variant, and for processes that agree what their peak is made of."""
    found = []
    for variant in variants:
        found.append(Table(title=sentence(variant, variants)))
        for group in _alike(variant.processes, "module", "growth", "outcome", "detail"):
            grows = tuple(f"grows: {line}" for line in _growth(group[0]))
            found += [Table(above=tuple(explained(group, variant.processes)), below=grows), held_table(group[0])]
    return found


def explained(group: Sequence[Process], among: Sequence[Process]) -> Iterator[str]:
    """Yield what is known of the peak of processes that agree, in words."""
    process = max(group, key=lambda process: len(process.phases))
    peak, most = process.peak, process.most_reserved
    who = ", ".join(filter(None, (*(one.label(among) for one in group), process.module or "no model")))
    start = next((phase for phase in process.phases if phase.name == "start"), None)
    yield f"{who}: {_peak(process)}"
    if peak.live_bytes is not None:
        yield f"{bytes_text(peak.live_bytes)} are live when that phase ends"
    if start and start is not peak:
        yield f"{bytes_text(start.live_bytes)} were live before the first step: weights, and what was loaded"
    if process.reserved_bytes is not None:
        kept = f"{bytes_text(process.reserved_bytes)} are reserved"
        yield kept + (f", first so in {phase_text(most)}" if most is not peak else ", in the same phase")
    others = sorted((one for one in process.phases if one is not peak), key=lambda phase: -(phase.peak_bytes or 0))
    if near := [f"{phase_name(phase)} {bytes_text(phase.peak_bytes)}" for phase in others[:MOST_PHASES]]:
        yield f"next: {'; '.join(near)}"
    if process.holders_why:
        yield f"what held it is not known: {process.holders_why}"
    if process.outcome != "ok":
        yield f"{process.outcome.replace('_', ' ')}: {process.detail or 'it ended without a word'}"


def explanation_document(variants: Sequence[Variant]) -> dict[str, Any]:
    """Return one document: for each process of each variant the phase with its peak, and that which reserves most."""

    def facts(process: Process) -> dict[str, Any]:
        return {
            "rank": process.rank, "model": process.module, "outcome": process.outcome, "peak": process.peak,
            "reserved": process.most_reserved, "growth": process.growth,
        }  # fmt: skip

    found = [
        {"words": one.words, "outcome": one.outcome, "processes": [*map(facts, one.processes)]} for one in variants
    ]
    return {"schema": SCHEMA, "variants": found}
