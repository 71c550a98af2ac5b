"""How a command is to be run, and what the watch wrote of its processes, read: their phases, and how they ended."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from profiler.core import by_key, gpu_specs
from profiler.core.gpu_specs import Device, Rates, parse
from profiler.core.record import AppliedToModel, Assumed, Bound, Growth, Holder, Phase, ProcessFacts, VariantFacts
from profiler.core.stats import largest_known
from profiler.core.trace_data import Operator, operator_seconds, stated_error

IN_STEPS = ("forward", "backward", "after the backward", "optimizer", "after the step")
WITHIN = ("evaluation", "generation")  # which may come between a forward and its backward, as a target network's
MISSING = "another rank is missing"  # as rehearsal/hollow/nccl.c says it, in a rank that waited for one
NOT_MET = "no module with parameters of a torch.optim optimizer was called in training"
OF_CUDA = re.compile(r"cuda|cudnn|cublas|nccl|cu[A-Z]\w+_STATUS|not.?supported", re.IGNORECASE)  # in an error's text
ORDER = ("start", *IN_STEPS, "graph replay", "evaluation", "generation", "saving")

Row = dict[str, Any]  # a line of the watch


class Process(ProcessFacts, frozen=True, kw_only=True):
    """A process that used a GPU."""

    rank: int | None  # None where no launcher gave one
    outcome: str  # ok, out_of_memory, failed, crashed, or skipped: the strategy met what it cannot cut
    detail: str | None = None
    num_steps: int
    peak_bytes: int | None
    reserved_bytes: int | None
    module: str  # the class of the model that it trains
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.peak_bytes or 0)

    @property
    def most_reserved(self) -> Phase:
        """The first phase within which most was reserved."""
        return max(self.phases, key=lambda phase: phase.reserved_bytes or 0)

    def label(self, among: Sequence[Process]) -> str:
        """Return what it is called among the processes of its variant: `rank 0`, `process 2`; "" if it is alone."""
        if self.rank is not None and [process.rank for process in among].count(self.rank) == 1:
            return f"rank {self.rank}"
        return f"process {among.index(self) + 1}" if len(among) > 1 else ""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How a command is to be run."""

    words: tuple[str, ...]
    gpus: Device | None = None  # the devices that are here if None
    steps: int | None = None  # optimizer steps, after which each process ends
    batches: int | None = None  # of every DataLoader
    limit_seconds: float | None = None
    strategy: str | None = None  # applied to the model that it trains
    module: str | None = None  # a pattern of the modules that the strategy is applied to
    chain_step: int | None = None  # of the optimizer, from 0: the stages of its models are costed, and then it ends
    values: str | None = None  # how values that are not known are assumed
    allow_writes: bool = False  # what it writes to files stays
    variables: dict[str, str] = {}  # for what is loaded in its processes
    kept: Path | None = None  # a folder for the gradients that it leaves


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has ended."""

    exit_code: int  # of the command: 128 and the signal's number where one killed it
    timed_out: bool = False
    interrupted: int | None = None  # the signal that ended it from outside
    unguarded: str | None = None  # why files could not be guarded, so that only what it saved was redirected
    processes: tuple[Process, ...] = ()  # that used a GPU, by rank
    lost: str | None = None  # the rank that was the first to end without a word, before it used a GPU
    lines: dict[str, list[Row]] = {}  # of the watch, by process
    stopped: tuple[str, ...] = ()  # where each rank or process was when the limit ended it
    unverified: tuple[str, ...] = ()  # a torch other than gcprof's on which the hollow GPU could not be tried, and why

    @property
    def is_stopped(self) -> bool:
        """Whether it was ended from outside."""
        return self.timed_out or self.interrupted is not None

    @property
    def stopped_code(self) -> int | None:
        """The exit code of what was ended from outside, as shells and `timeout` have it."""
        return 128 + self.interrupted if self.interrupted else 124 if self.timed_out else None

    @property
    def rows(self) -> list[Row]:
        """The lines of all processes."""
        return [row for rows in self.lines.values() for row in rows]

    @property
    def no_device(self) -> tuple[str, ...]:
        """Why a process with torch had no GPU."""
        return tuple(row["why"] for row in self.rows if row["kind"] == "no device")


class Variant(VariantFacts, frozen=True, kw_only=True):
    """The command on one kind of GPU, with one set of values."""

    device: str = ""  # as records have it: `rehearse:t4:count=2`, cuda, cpu
    command: tuple[str, ...] = ()  # its words, with the values of -L filled in
    processes: tuple[Process, ...]

    @classmethod
    def of(cls, ended: Ended, asked: Asked, values: Mapping[str, str]) -> Variant:
        """Return what came of a command, rehearsed on the GPUs asked for or measured here, with these values of -L."""
        outcome, processes, gpu = outcome_of(ended), ended.processes, asked.gpus
        size: int | None
        skipped = why_skipped(ended, outcome) if asked.strategy not in (None, "none") else None
        if gpu:
            rates = gpu_specs.find(gpu.name)
            name, size = gpu.name if gpu.count == 1 else f"{gpu.name}:{gpu.count}", gpu.bytes or rates.memory_bytes
            for number, one in enumerate(processes if asked.strategy else ()):
                rows = next(rows for name, rows in ended.lines.items() if name.endswith(f".{one.number}"))
                seconds, why = estimated_seconds(rows, rates)
                timed = msgspec.structs.replace(one, estimated_seconds=seconds, estimate_why=why)
                processes = (*processes[:number], timed, *processes[number + 1 :])
        else:
            gpus = [(row["name"], row["bytes"]) for row in ended.rows if row["kind"] == "device" and row["bytes"]]
            name, size = gpus[0] if gpus else ("cpu", None)
            processes = tuple(one for one in processes if any(phase.name != "start" for phase in one.phases))
        has_all_steps = any(asked.steps and process.num_steps >= asked.steps for process in processes)
        return cls(
            words=({"strategy": asked.strategy} if asked.strategy else {}) | {"device": name, **values},
            gpu_bytes=size,
            context_bytes=gpu.context_bytes or 0 if gpu else 0,
            outcome="skipped" if skipped else outcome,
            detail=skipped or "; ".join(ended.stopped) or None,
            exit_code=ended.exit_code,
            unguarded=ended.unguarded,
            is_cut=has_all_steps or bool(asked.batches) or ended.is_stopped,
            device=str(gpu) if gpu else "cuda" if size else "cpu",
            command=asked.words,
            values=asked.values,
            processes=processes,
        )

    @property
    def filled(self) -> dict[str, str]:
        """The values of -L, by name."""
        return {name: text for name, text in self.words.items() if name not in ("device", "strategy")}

    @property
    def why(self) -> str | None:
        """Why it did not run to its end, if that is known."""
        return self.detail or next((process.detail for process in self.processes if process.detail), None)

    @property
    def estimated_seconds(self) -> float | None:
        """The seconds of a step of its slowest process; None where one is not known, or it is skipped."""
        known = [process.estimated_seconds for process in self.processes if process.estimated_seconds is not None]
        return max(known) if known and len(known) == len(self.processes) and self.outcome != "skipped" else None

    @property
    def estimate_why(self) -> str | None:
        """Why these seconds are not known, of a command that ran well."""
        return next((one.estimate_why for one in self.processes if one.estimate_why and self.outcome == "ok"), None)

    @property
    def first_dead(self) -> Process | None:
        """The process that died before any other; one that missed another has died after it, whenever that was seen."""
        dead = [process for process in self.processes if process.died]
        return min(dead, key=lambda one: (MISSING in (one.detail or ""), one.died or 0), default=None)

    @property
    def gpu(self) -> str | None:
        """The name of the GPU that is rehearsed; None on a device that is here."""
        return parse(self.device).name if parse(self.device).is_rehearsed else None

    @property
    def sized_at(self) -> tuple[str, ...]:
        """The lines whose sizes came from assumed values: with them, figures are assumed and not exact."""
        found = (one.line for process in self.processes for one in process.assumed if one.is_size)
        return tuple(dict.fromkeys(found))

    @property
    def largest(self) -> Process:
        """The process that reserves most, or on a CPU has the largest peak."""
        return max(self.processes, key=lambda process: (process.reserved_bytes or 0, process.peak_bytes or 0))

    def with_bound(self, values: str, ended: Ended) -> Variant:
        """Return the variant with what the command took with values assumed so."""
        other = msgspec.structs.replace(self, processes=ended.processes)
        peak, reserved = (other.largest.peak_bytes, other.largest.reserved_bytes) if other.processes else (None, None)
        bound = Bound(values=values, outcome=outcome_of(ended), peak_bytes=peak, reserved_bytes=reserved)
        return msgspec.structs.replace(self, bounds=(*self.bounds, bound))

    def with_need(self, unlimited: Ended) -> Variant:
        """Return the variant with what the command needs, by its run with unlimited memory, if that ended well."""
        if unlimited.exit_code or not unlimited.processes:
            return self
        most = max(process.reserved_bytes or 0 for process in unlimited.processes)
        return msgspec.structs.replace(self, needed_bytes=most + self.context_bytes)


def outcome_of(ended: Ended) -> str:
    """Return the outcome of a command that has ended."""
    is_dead = ended.lost or any(process.died for process in ended.processes)  # also where the command's own code is 0
    if any(process.outcome == "out_of_memory" for process in ended.processes):
        return "out_of_memory"
    return "timed_out" if ended.is_stopped else "failed" if ended.exit_code or is_dead else "ok"


def why_skipped(ended: Ended, outcome: str) -> str | None:
    """Return why no model was changed by the strategy; None where one was, or where the command failed by itself."""
    refused = [process.detail for process in ended.processes if process.outcome == "skipped"]
    made = [applied for process in ended.processes for applied in process.applied if applied.strategy != "none"]
    if refused:
        return refused[0]
    if outcome in ("failed", "timed_out") or any(applied.why is None for applied in made):
        return None
    if made:
        reasons = by_key((applied.why, applied.module) for applied in dict.fromkeys(made))
        return "; ".join(f"{', '.join(modules)}: {why}" for why, modules in reasons.items())
    return NOT_MET if outcome == "ok" and ended.processes else None


def phase_text(phase: Phase) -> str:
    """Return a phase in words: `the backward of later steps`, `the evaluation`."""
    if phase.name not in IN_STEPS:
        return f"the {phase.name}"
    article = "" if phase.name.startswith("after") else "the "
    return f"{article}{phase.name} of {'the first step' if phase.is_first_step else 'later steps'}"


def phase_name(phase: Phase) -> str:
    """Return a phase as tables have it: `backward, later steps`, `evaluation`."""
    step = (", first step" if phase.is_first_step else ", later steps") if phase.name in IN_STEPS else ""
    return f"{phase.name}{step}"


def name_of(variant: Variant) -> str:
    """Return a variant by its words: `t4:2, sqrt, batch 32`."""
    own = [variant.words[name] for name in ("device", "strategy") if name in variant.words]
    return ", ".join([*own, *(f"{name} {text}" for name, text in variant.filled.items())])


def read_process(
    name: str,
    lines: Sequence[dict[str, Any]],
    *,
    gone: float | None = None,
    is_host_short: bool = False,
    refused: Sequence[str] = (),
) -> Process | None:
    """Return a process by the lines of its file, `RANK.PID`; None where it used no GPU.

    `gone` is when it ended while the command still ran, in seconds since the epoch; `is_host_short`: meanwhile the
    system killed some process for lack of the host's memory; `refused`: functions that it called, and that the hollow
    libraries do not have, in order.
    """
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        kinds[line["kind"]].append(line)
    rows, short, raised = kinds["phase"], kinds["out of memory"], kinds["raised"]
    if not rows:
        return None
    rank, _, number = name.partition(".")
    outcome, detail = _outcome(kinds, is_ended=lines[-1]["kind"] == "end")
    if outcome == "crashed" and is_host_short:
        detail = "it was killed without a word, as the host's own memory (not the GPU's) ran out"
    if refused and (outcome == "crashed" or (outcome == "failed" and OF_CUDA.search(detail or ""))):
        detail = f"{detail}; a hollow GPU does not have {refused[-1]}, which was called"
    phases = tuple(phases_of(rows))
    ended = [*kinds["holders"], {"growth": (), "why": None}][0]
    assumed = [Assumed(operator=row["operator"], line=row["line"], is_size=row["is_size"]) for row in kinds["assumed"]]
    trained = [row["module"] for phase in ("optimizer", "backward") for row in rows if row["phase"] == phase]
    is_by_hand = bool(kinds["by hand"]) and not any(row["phase"] == "optimizer" for row in rows)
    return Process(
        rank=int(rank) if rank.isdecimal() else None,
        number=int(number),
        outcome=outcome,
        detail=detail,
        died=None if outcome == "ok" else raised[0]["time"] if raised else gone,
        num_steps=max([row["step"] for row in rows] + [line["steps"] for line in kinds["end"]]),
        steps_are="backward passes" if is_by_hand else "steps",
        shortages=tuple(line["line"] for line in short),
        shortage_holders=msgspec.convert(short[-1].get("holders", ()) if short else (), tuple[Holder, ...]),
        growth=msgspec.convert(ended["growth"], tuple[Growth, ...]),
        holders_why=ended["why"],
        reads=tuple(line["line"] for line in kinds["read"]),
        assumed=tuple(dict.fromkeys(sorted(assumed, key=lambda one: not one.is_size))),  # sizes first
        notes=tuple(line["text"] for line in kinds["note"]),
        module=next(filter(None, trained), rows[-1]["module"]),
        applied=tuple(_applied(kinds["applied"], kinds["own checkpoints"])),
        peak_bytes=largest_known(phase.peak_bytes for phase in phases),
        reserved_bytes=largest_known(phase.reserved_bytes for phase in phases),
        torch=next((line["version"] for line in kinds["torch"]), None),
        phases=phases,
    )


def _applied(rows: Iterable[dict[str, Any]], checkpoints: Iterable[dict[str, Any]]) -> list[AppliedToModel]:
    """Return what became of each model, those of one class and fate once, with the script's own checkpoints in it."""
    own = {line["module"]: tuple(line["names"]) for line in checkpoints}
    names = ("strategy", "module", "num_blocks", "split", "why")
    made = [{name: row[name] for name in names} for row in rows if "module" in row]
    found = [msgspec.convert({**row, "own": own.pop(row["module"], ())}, AppliedToModel) for row in made]
    others = [AppliedToModel(strategy="none", module=module, own=names) for module, names in own.items()]
    return list(dict.fromkeys([*found, *others]))


def phases_of(rows: Iterable[Row]) -> list[Phase]:
    """Return the phases that the watch's lines of a process are passes through."""
    passes: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for row in rows:
        is_first = row["phase"] in IN_STEPS and row["step"] == (1 if row["phase"] == "after the step" else 0)
        passes.setdefault((row["phase"], is_first), []).append(row)
    found = []
    for (name, is_first), several in passes.items():
        largest = max(several, key=lambda row: _most(row)[0] or 0)
        peak, live, _ = _most(largest)
        found.append(
            Phase(
                name=name, is_first_step=is_first, first_step=several[0]["step"], num=len(several), peak_bytes=peak,
                live_bytes=live, reserved_bytes=largest_known(_most(row)[2] for row in several),
                line=largest.get("peak_line", largest["line"]),
                holders=msgspec.convert(largest.get("holders", ()), tuple[Holder, ...]),
            )
        )  # fmt: skip
    return sorted(found, key=lambda phase: (phase.name in ORDER[6:], phase.name in IN_STEPS and not phase.is_first_step,
                                            ORDER.index(phase.name)))  # fmt: skip


def _most(row: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Return peak and live bytes of the device with the largest peak, and the most that one has reserved."""
    devices = row["devices"].values()
    peak, live, _ = max(devices, default=(None, None, None), key=lambda device: device[0])
    return peak, live, largest_known(reserved for _, _, reserved in devices)


def _outcome(kinds: Mapping[str, Sequence[dict[str, Any]]], *, is_ended: bool) -> tuple[str, str | None]:
    if not kinds["raised"]:
        return ("ok", None) if is_ended else ("crashed", "it ended without a word")
    raised, short = kinds["raised"][0], kinds["out of memory"]
    if short and raised["error"] == "OutOfMemoryError":
        phase, step, line = (short[-1][name] for name in ("phase", "step", "line"))
        sizes = [line["line"] for line in kinds["read"] if line["is_integer"]]
        doubt = f" (unless its size comes from an integer that was read at {sizes[0]})" if sizes else ""
        return "out_of_memory", f"in the {phase}{f' of step {step + 1}' if phase in IN_STEPS else ''}, {line}{doubt}"
    if raised["error"] == "Unsupported" and kinds["applied"]:
        return "skipped", raised["text"]
    if raised["error"] in ("assumed size", "no progress"):  # the watch itself ended it
        return "failed", raised["text"]
    where = f" ({raised['line']})" if raised["line"] else ""
    return "failed", f"{raised['error']}: {raised['text']}{where}"


# ---- the seconds of a step on a GPU that is not here, by the roofline model: estimated, never measured


def estimated_seconds(lines: Iterable[dict[str, Any]], rates: Rates) -> tuple[float | None, str | None]:
    """Return the seconds of a process' second step by what the watch wrote of it; None, and why, if not known.

    What ranks send each other is not counted. Source: see `roofline_seconds`.
    """
    line = next((line for line in lines if line["kind"] == "work"), None)
    if line is None or line["why"]:
        return None, line["why"] if line else "no second step was made"
    total = 0.0
    for name, kind, flops, nbytes, num in line["calls"]:
        if not name.startswith("c10d"):
            total += num * operator_seconds(Operator(name, "", "", flops, nbytes), rates, kind)
    return total, None


def estimate_caveat(rates: Rates, *, has_ranks: bool) -> str:
    """Return what such times are worth."""
    alone = ", without what ranks send each other" if has_ranks else ""
    return f"of the second step{alone}, {stated_error(rates, 'fp32')}"
