"""What the watch wrote of a process, read: its phases, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from profiler.core import gpu_specs

if TYPE_CHECKING:
    from profiler.core.rehearsed_gpu import RehearsedGpu
    from profiler.scripts.launch import Ended

IN_STEPS = ("forward", "backward", "after the backward", "optimizer", "after the step")
NOT_MET = "no module with parameters of a torch.optim optimizer was called in training"
ORDER = ("start", *IN_STEPS, "evaluation", "generation", "saving")


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of memory of one category that one line allocated; of the category `rest`, all that are not named."""

    category: str
    line: str  # of the script; of what the backward allocates, the line that called it
    module: str = ""  # that all of them belong to; "" where there is none, or it is not known
    num: int  # blocks
    nbytes: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A line whose memory was more after each of several steps in a row."""

    line: str
    num_steps: int
    nbytes: int  # in these steps together


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """All passes through one phase of a process, of its first step or of later ones."""

    name: str
    is_first_step: bool = False
    first_step: int  # the number of the step in which it was first, from 0
    num: int  # passes
    peak_bytes: int | None  # the largest of them; None on a CPU whose memory is not measured
    live_bytes: int | None  # at the end of the pass with the largest peak
    reserved_bytes: int | None  # the most within it; None on a CPU, which reserves nothing
    line: str  # of the script, at the peak; where it is not known, at the begin of that pass
    holders: tuple[Holder, ...] = ()  # of the peak, the largest first: together all of its bytes; none where not known


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy did to one model of a process, or why it did nothing."""

    strategy: str
    module: str  # the model's class
    num_blocks: int = 0  # that are recomputed
    split: str | None = None  # how they are cut, in the strategy's words
    own: tuple[str, ...] = ()  # what the script itself checkpoints of it: names, with `*` for numbers
    why: str | None = None  # it was left as it is


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that used a GPU."""

    rank: int | None  # None where no launcher gave one
    number: int  # of the process
    outcome: str  # ok, out_of_memory, failed, crashed, or skipped: the strategy met what it cannot cut
    detail: str | None = None
    died: float | None = None  # when it raised, or was gone without a word: seconds since the epoch
    num_steps: int
    steps_are: str = "steps"  # of an optimizer; "backward passes" where torch.optim made none
    peak_bytes: int | None
    reserved_bytes: int | None
    module: str  # the class of the model that it trains
    shortages: tuple[str, ...] = ()  # lines at which memory ran out, each time, also where the script went on
    reads: tuple[str, ...] = ()  # lines that read a value of the GPU, which a hollow one does not compute
    shortage_holders: tuple[Holder, ...] = ()  # what was live when memory ran out for the last time
    growth: tuple[Growth, ...] = ()  # from step to step, the most first
    holders_why: str | None = None  # why holders are not known, of all phases or of some
    applied: tuple[Applied, ...] = ()  # of each model that it trains; under `none` of those with own checkpoints
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.peak_bytes or 0)


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """The command on one kind of GPU, with one set of values."""

    words: dict[str, str]  # what this variant is: its strategy, where one is asked for, its device, the values of -L
    gpu_bytes: int | None  # memory of each GPU; None on a CPU
    context_bytes: int  # of it, taken by CUDA
    outcome: str
    detail: str | None = None  # why it is skipped
    needed_bytes: int | None = None  # reserved by one process, and the context, where this GPU has too little
    unguarded: str | None = None  # why its files could not be guarded: only what it saved was redirected
    is_cut: bool = False  # ended before the script would have
    processes: tuple[Process, ...]

    @classmethod
    def of(
        cls, ended: Ended, *, gpu: RehearsedGpu, values: dict[str, str], is_cut: bool, strategy: str | None = None
    ) -> Variant:
        outcome = outcome_of(ended)
        skipped = why_skipped(ended, outcome) if strategy not in (None, "none") else None
        words = {"device": gpu.gpu if gpu.count == 1 else f"{gpu.gpu}:{gpu.count}", **values}
        return cls(
            words=({"strategy": strategy} if strategy else {}) | words,
            gpu_bytes=gpu.bytes or gpu_specs.find(gpu.gpu).memory_bytes,
            context_bytes=gpu.context_bytes,
            outcome="skipped" if skipped else outcome,
            detail=skipped,
            unguarded=ended.unguarded,
            is_cut=is_cut or ended.timed_out or ended.interrupted is not None,
            processes=ended.processes,
        )

    @property
    def first_dead(self) -> Process | None:
        """The process that died before any other."""
        return min((process for process in self.processes if process.died), key=lambda one: one.died or 0, default=None)

    @property
    def largest(self) -> Process:
        """The process that reserves most, or on a CPU has the largest peak."""
        return max(self.processes, key=lambda process: (process.reserved_bytes or 0, process.peak_bytes or 0))

    def with_need(self, unlimited: Ended) -> Variant:
        """Return the variant with what the command needs, by its run with unlimited memory, if that ended well."""
        if unlimited.exit_code or not unlimited.processes:
            return self
        most = max(process.reserved_bytes or 0 for process in unlimited.processes)
        return msgspec.structs.replace(self, needed_bytes=most + self.context_bytes)


def outcome_of(ended: Ended) -> str:
    """Return the outcome of a command that has ended."""
    is_ended = ended.timed_out or ended.interrupted is not None  # from outside
    is_dead = any(process.died for process in ended.processes)  # also where the command's own code is 0
    if any(process.outcome == "out_of_memory" for process in ended.processes):
        return "out_of_memory"
    return "timed_out" if is_ended else "failed" if ended.exit_code or is_dead else "ok"


def why_skipped(ended: Ended, outcome: str) -> str | None:
    """Return why no model was changed by the strategy; None where one was, or where the command failed by itself."""
    refused = [process.detail for process in ended.processes if process.outcome == "skipped"]
    made = [applied for process in ended.processes for applied in process.applied]
    if refused:
        return refused[0]
    if outcome in ("failed", "timed_out") or any(applied.why is None for applied in made):
        return None
    if made:
        return "; ".join(dict.fromkeys(f"{applied.module}: {applied.why}" for applied in made))
    return NOT_MET if outcome == "ok" and ended.processes else None


def read_process(
    name: str, lines: Sequence[dict[str, Any]], *, gone: float | None = None, is_host_short: bool = False
) -> Process | None:
    """Return a process by the lines of its file, `RANK.PID`; None where it used no GPU.

    `gone` is when it ended while the command still ran, in seconds since the epoch; `is_host_short`: meanwhile the
    system killed some process for lack of the host's memory.
    """
    rows = [line for line in lines if line["kind"] == "phase"]
    if not rows:
        return None
    rank, _, number = name.partition(".")
    outcome, detail = _outcome(lines)
    if outcome == "crashed" and is_host_short:
        detail = "it was killed without a word, as the host's own memory (not the GPU's) ran out"
    phases = tuple(_phases(rows))
    short = [line for line in lines if line["kind"] == "out of memory"]
    ended: dict[str, Any] = next((line for line in lines if line["kind"] == "holders"), {"growth": (), "why": None})
    is_by_hand = not any(row["phase"] == "optimizer" for row in rows) and any(
        line["kind"] == "by hand" for line in lines
    )
    return Process(
        rank=int(rank) if rank.isdecimal() else None,
        number=int(number),
        outcome=outcome,
        detail=detail,
        died=None if outcome == "ok" else next((line["time"] for line in lines if line["kind"] == "raised"), gone),
        num_steps=max([row["step"] for row in rows] + [line["steps"] for line in lines if line["kind"] == "end"]),
        steps_are="backward passes" if is_by_hand else "steps",
        shortages=tuple(line["line"] for line in short),
        shortage_holders=_holders(short[-1]) if short else (),
        growth=msgspec.convert(ended["growth"], tuple[Growth, ...]),
        holders_why=ended["why"],
        reads=tuple(line["line"] for line in lines if line["kind"] == "read"),
        module=next((row["module"] for row in rows if row["phase"] == "backward"), rows[-1]["module"]),
        applied=tuple(_applied(lines)),
        peak_bytes=_largest(phase.peak_bytes for phase in phases),
        reserved_bytes=_largest(phase.reserved_bytes for phase in phases),
        phases=phases,
    )


def _applied(lines: Iterable[dict[str, Any]]) -> list[Applied]:
    """Return what became of each model, those of one class and fate once, with the script's own checkpoints in it."""
    own = {line["module"]: tuple(line["names"]) for line in lines if line["kind"] == "own checkpoints"}
    names = ("strategy", "module", "num_blocks", "split", "why")
    rows = [{name: line[name] for name in names} for line in lines if line["kind"] == "applied" and "module" in line]
    found = [msgspec.convert({**row, "own": own.pop(row["module"], ())}, Applied) for row in rows]
    others = [Applied(strategy="none", module=module, own=names) for module, names in own.items()]
    return list(dict.fromkeys([*found, *others]))


def _phases(rows: Iterable[dict[str, Any]]) -> list[Phase]:
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
                live_bytes=live, reserved_bytes=_largest(_most(row)[2] for row in several),
                line=largest.get("peak_line", largest["line"]), holders=_holders(largest),
            )
        )  # fmt: skip
    return sorted(found, key=lambda phase: (phase.name in ORDER[6:], phase.name in IN_STEPS and not phase.is_first_step,
                                            ORDER.index(phase.name)))  # fmt: skip


def _holders(row: dict[str, Any]) -> tuple[Holder, ...]:
    return msgspec.convert(row.get("holders", ()), tuple[Holder, ...])


def _most(row: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Return peak and live bytes of the device with the largest peak, and the most that one has reserved."""
    devices = row["devices"].values()
    peak, live, _ = max(devices, default=(None, None, None), key=lambda device: device[0])
    return peak, live, _largest(reserved for _, _, reserved in devices)


def _largest(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _outcome(lines: Sequence[dict[str, Any]]) -> tuple[str, str | None]:
    raised = next((line for line in lines if line["kind"] == "raised"), None)
    short = [line for line in lines if line["kind"] == "out of memory"]
    if raised and short and raised["error"] == "OutOfMemoryError":
        phase, step, line = (short[-1][name] for name in ("phase", "step", "line"))
        sizes = [line["line"] for line in lines if line["kind"] == "read" and line["is_integer"]]
        doubt = f" (unless its size comes from an integer that was read at {sizes[0]})" if sizes else ""
        return "out_of_memory", f"in the {phase}{f' of step {step + 1}' if phase in IN_STEPS else ''}, {line}{doubt}"
    if raised and raised["error"] == "Unsupported" and any(line["kind"] == "applied" for line in lines):
        return "skipped", raised["text"]
    if raised:
        said = raised["text"] if raised["error"] == "unknown size" else f"{raised['error']}: {raised['text']}"
        return "failed", said
    return ("ok", None) if lines[-1]["kind"] == "end" else ("crashed", "it ended without a word")
