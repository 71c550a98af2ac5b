"""The columns, headings, reasons and notes of tables of rows, and evidence, devices and outcomes in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import get_args

from msgspec.structs import replace

from profiler.analysis.axes import Axis
from profiler.analysis.rows import Row, is_all_out_of_memory, smallest_request
from profiler.analysis.time_ratio import NOISY
from profiler.core import by_key, units
from profiler.core.case import SWITCHES, Case, Choice
from profiler.core.gpu_specs import FAKE, HOLLOW, MOST_BYTES, parse
from profiler.core.plan_file import files_of_labels, strategy_label, strategy_labels
from profiler.core.record import IN_BUILD, Environment, Evidence
from profiler.core.units import MISSING, bytes_text, change_text, count_text, spread_text
from profiler.views.tables import Column, Table, byte_columns, numbers, telling, words

SAVES = 0.995  # of the peak without checkpointing: a saving below half a percent is not marked as one
COUNTED = "counting CUDA itself and all that is reserved"  # how it is checked whether a prediction fits
UNSHOWN = (
    "phases",
    "timeline",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "warmup_seconds",
)  # readings that no table of rows needs
NOISE = "too noisy to tell"  # instead of a ratio whose interval is too wide
UNSURE = "unsure"
CLOSE = "cannot be told apart"  # the verdict of times that may be equal
COMPARED = "gradients: of all parameters, in the first two steps; what goes wrong in a later step is not found"
QUIETER = "end other programs, or raise --rounds and --samples"
OWN_OPTIMIZER = "its own optimizer"
MARKS = {"ok": "ok", "invalid": "invalid"}  # of rows that are not on the frontier; of others bad
MAX_NAMED = 4  # strategies that one note names before it only counts them


def main(rows: Iterable[Row]) -> list[Table]:
    """Return the table of every group of rows that may be compared, with reasons and notes below it."""
    return [group_table(group) for group in groups(rows)]


def group_table(rows: Sequence[Row], *, is_bare: bool = False) -> Table:
    """Return the table of one group of rows, without columns that are empty for every row; bare: only the columns.

    All bytes share one unit, all seconds another.
    """
    labels = strategy_labels(row.case.label for row in rows)
    unbeaten = ["bold" if row.on_frontier else "" for row in rows]  # no other surely beats it in peak and time
    wrong = ["" if row.outcome in ("ok", "skipped") else "red" for row in rows]
    verdict = (
        words("gradients", "", [row.gradients for row in rows]),
        words("outcome", "", [outcome(row) for row in rows], wrong),
    )
    counts = {
        "saved": [row.readings.saved_bytes for row in rows],
        "peak": [row.readings.peak_bytes for row in rows],
        "static": [row.static_bytes for row in rows],
    }
    against = [_against_none(row, row.readings.peak_bytes, change_text(row.peak_ratio)) for row in rows]
    lower = ["green" if row.peak_ratio is not None and row.peak_ratio < SAVES else "" for row in rows]
    memory = (
        numbers("split", "", [row.built.split if row.built and row.built.split else MISSING for row in rows]),
        *byte_columns(counts),
        words("peak", "phase", [row.readings.peak_phase or MISSING for row in rows]),
        numbers("peak", "against none", against, lower),
        *_prediction(rows),
    )
    time: tuple[Column, ...] = ()  # a rehearsal has none; a prediction has one if the rates of its device are known
    if any(row.evidence == "measured" or row.step_seconds is not None for row in rows):
        size, unit = units.second_unit([row.shown_seconds for row in rows])
        time = (
            numbers("step", unit, [units.scaled(row.shown_seconds, size) for row in rows]),
            numbers("spread", "", [spread_text(row.step_spread) for row in rows]),
            numbers("time", "against none", [_against_none(row, row.step_seconds, time_change(row)) for row in rows]),
        )
    memory, time = telling(memory), telling(time)
    return Table(
        title="" if is_bare else heading(rows),
        columns=(words("strategy", "", labels, unbeaten), *memory, *time, *telling(verdict)),
        cuts=(1, 1 + len(memory)),
        below=() if is_bare else tuple(lines_below(rows)),
        marks=tuple("frontier" if row.on_frontier else MARKS.get(row.outcome, "bad") for row in rows),
    )


def groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Groups the rows that may be compared with each other."""
    return list(by_key((row.baseline, row) for row in rows).values())


def heading(rows: Sequence[Row]) -> str:
    """Return what the rows of one group share, in a line."""
    return ", ".join(shared(rows))


def shared(rows: Sequence[Row]) -> list[str]:
    """Return what the rows of one group share: model, size, settings, data and device."""
    built = next((row.built for row in rows if row.built), None)
    environment = environment_of(rows)
    build = built if len({row.case.model for row in rows}) == 1 else None
    size = [count_text(build.num_parameters, "parameter"), count_text(build.num_blocks, "block")] if build else []
    software = [f"torch {environment.torch}"] if environment and environment.torch else []
    data = [f"{built.data} data"] if built else []
    strategies = {row.case.label for row in rows}
    strategy = strategy_labels(strategies) if len(strategies) == 1 < len(rows) else []  # that all rows have
    return [model(rows), *size, *strategy, *setting(rows), *data, device(rows), *software]


def model(rows: Sequence[Row]) -> str:
    """Return the model of these rows; of several with one name, that name with the options that they share."""
    first, *others = dict.fromkeys(row.case.model for row in rows)
    if not others or any(other.name != first.name for other in others):
        return ", ".join([first, *others])
    of_others = [other.options.items() for other in others]
    shared = {key: value for key, value in first.options.items() if all((key, value) in items for items in of_others)}
    return Choice.of(first.name, shared)


def change(row: Row, ratio: float | None) -> str:
    """Return the change against `none` in words; nothing for `none` itself, and if it is not known."""
    return "" if ratio is None or row.case.label == "none" else change_text(ratio)


def environment_of(rows: Sequence[Row]) -> Environment | None:
    """Return the first environment that a row has."""
    return next((row.environment for row in rows if row.environment), None)


def is_point(row: Row) -> bool:
    """Whether a row can be a point of peak memory against step time: it is ok and has both."""
    return row.outcome == "ok" and row.readings.peak_bytes is not None and row.step_seconds is not None


def reasons(rows: Sequence[Row]) -> list[str]:
    """Return a line for each row that is not ok, with its detail, and advice if every row ran out of memory."""
    lines = [
        f"{strategy_label(row.case.label)}: {outcome(row)}{': ' + row.detail if row.detail else ''}"
        for row in rows
        if row.outcome != "ok"
    ]
    if not is_all_out_of_memory(rows):
        return lines
    smallest = smallest_request(rows)
    free = f" with {bytes_text(smallest.free_bytes)} free" if smallest and smallest.free_bytes is not None else ""
    asked = f": the smallest request that failed was {bytes_text(smallest.asked_bytes)}{free}" if smallest else ""
    nothing = f"nothing fits into memory{asked}"
    if all(IN_BUILD in (row.detail or "") for row in rows if row.outcome != "skipped"):
        why = "the model with its batch does not fit even before a step, and no strategy makes its parameters smaller"
        others = "a smaller model, a smaller batch if that is what is large, or another device"
        return [*lines, f"{nothing}; {why}; try {others}: gcprof predict --device h100 needs none of this memory"]
    tried = {row.case.label for row in rows}
    strategies = ",".join(word for word in ("all", "offload") if word not in tried)
    has_batch = any(row.case.batch_size not in (None, 1) for row in rows)
    ways = ["a smaller --batch-size"] if has_batch else []
    ways += [f"--strategies {strategies}"] if strategies else []
    largest = "; gcprof fit --batch-size max finds the largest that fits" if has_batch else ""
    return [*lines, f"{nothing}; try {', '.join(ways)}{' or ' if ways else ''}a smaller model{largest}"]


def remarks(rows: Iterable[Row]) -> list[str]:
    """Return a line per code of note, which docs/notes explains, with the strategies that it concerns."""
    noted = by_key((note.code, (row.case.label, note.text)) for row in rows for note in row.notes)
    lines = []
    for code, those in noted.items():
        strategies, texts = [label for label, _ in those], dict.fromkeys(text for _, text in those)
        named = units.few([*map(strategy_label, strategies[:MAX_NAMED]), *strategies[MAX_NAMED:]], MAX_NAMED)
        example = "for example: " if len(texts) > 1 else ""  # where texts differ from row to row, one is quoted
        lines.append(f"{code} {named}: {example}{next(iter(texts))}")
    return lines


def lines_below(rows: Sequence[Row]) -> list[str]:
    """Return the lines below a table: why rows are not ok, noise floor, what was compared, notes, files of plans."""
    floor = next((row.time_floor for row in rows if row.time_floor is not None), None)
    lines = reasons(rows)
    if floor is not None:
        what, then = "noise floor", "no smaller difference is reported"
        if floor >= NOISY - 1:
            what, then = "too noisy to compare times", QUIETER
        lines.append(f"{what}: none against itself is known to {spread_text(floor)}; {then}")
    if any(row.equality and "second step" in row.equality.digests for row in rows):
        lines.append(COMPARED)
    notes = [f"note: {remark}" for remark in remarks(rows)]
    return [*lines, *notes, *files_of_labels(row.case.label for row in rows)]


def _prediction(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the error of predicted peaks against the measured or else the rehearsed ones, if a run has both."""
    if all(row.prediction_error is None for row in rows):
        return ()
    errors = [row.prediction_error for row in rows]
    if all(row.prediction_against != "rehearsed" for row in rows):
        return (numbers("predicted", "peak off by", list(map(units.error_text, errors))),)
    # not calibrated, neither a prediction nor its rehearsal has what kernels allocate besides their results
    blind = any(note.code == "GCP015" for row in rows for note in row.notes)
    if not blind and all(row.evidence == "predicted" for row in rows):
        off = [MISSING if error is None else f"±{abs(error) * 100:.2f} %" if error else "the byte" for error in errors]
        return (numbers("peak within", "by rehearsal", off),)
    off = ["equal" if error == 0 else units.error_text(error) for error in errors]
    return (numbers("predicted peak", "off rehearsed by", off),)


def _against_none(row: Row, value: float | None, change: str) -> str:
    is_baseline = row.case.label == "none" and row.outcome == "ok" and value is not None
    return "baseline" if is_baseline else change


def time_change(row: Row) -> str:
    """Return how much longer than the baseline's a step takes, with its interval if it was measured."""
    time = row.time
    if time is None:
        return MISSING
    limits = time.interval
    if limits is None or limits[0] == limits[1] or time.is_noisy:
        return ratio_text(row)
    change = UNSURE if row.time_verdict == CLOSE else change_text(time.ratio)
    return f"{change} ({units.change_range_text(limits)})"


def ratio_text(row: Row) -> str:
    """Return the change of the time against `none`, marked where it is not sure; unsure steps are never called faster.

    It is unsure where too few steps were measured, or where it cannot be told apart from none.
    """
    time = row.time
    if time is not None and time.is_noisy:
        return NOISE
    is_few = time is not None and time.interval is None and row.evidence == "measured"
    if time is None or not (is_few or row.time_verdict == CLOSE):
        return change_text(row.time_ratio)
    return UNSURE if time.ratio < 1 else f"{change_text(time.ratio)} ({UNSURE})"


def optimizer(case: Case, *, is_own: bool) -> str:
    """Return the optimizer that runs: the case's, or the model's own."""
    return OWN_OPTIMIZER if is_own else str(case.optimizer)


def setting(rows: Sequence[Row]) -> list[str]:
    """Return the settings that all rows share, without defaults."""
    case = rows[0].case
    brings_own = {any(note.code == "GCP009" for note in row.notes) for row in rows if row.built}
    at_work = "" if len(brings_own) > 1 else optimizer(case, is_own=True in brings_own)
    words = {
        "batch_size": units.batch_text(case.batch_size),
        "optimizer": at_work,
        "precision": case.precision if case.precision != "fp32" else "",
        "accumulate": f"accumulate {case.accumulate}" if case.accumulate != 1 else "",
        **{name: switch.shown if getattr(case, name) else "" for name, switch in SWITCHES.items()},
        "routing": f"routing {case.routing}" if case.routing else "",
        "ranks": count_text(case.num_ranks, "rank") if case.ranks else "",
        "parallel": str(case.parallel or ""),
    }
    return [word for field, word in words.items() if word and len({getattr(row.case, field) for row in rows}) == 1]


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
    known = [(word, getattr(asked, field)) for field, word in SIZES.items()]
    sizes = [f"{word} {bytes_text(size)}" for word, size in known if size is not None]
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
    names = (row.environment.device_name for row in rows if row.environment)
    asked, name = device_word(rows[0].case.device), card(next(filter(None, names), None))
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
