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
ORDER = ("start", *IN_STEPS, "evaluation", "generation", "saving")


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """All passes through one phase of a process, of its first step or of later ones."""

    name: str
    is_first_step: bool = False
    first_step: int  # the number of the step in which it was first, from 0
    num: int  # passes
    peak_bytes: int | None  # the largest of them; None on a CPU whose memory is not measured
    live_bytes: int | None  # at the end of the pass with the largest peak
    reserved_bytes: int | None  # the most within it
    line: str  # of the script, in the pass with the largest peak


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that used a GPU."""

    rank: int | None  # None where no launcher gave one
    number: int  # of the process
    outcome: str  # ok, out_of_memory, failed, or crashed
    detail: str | None = None
    died: float | None = None  # when it raised, or was gone without a word: seconds since the epoch
    num_steps: int
    steps_are: str = "steps"  # of an optimizer; "backward passes" where torch.optim made none
    peak_bytes: int | None
    reserved_bytes: int | None
    module: str  # the class of the model that it trains
    shortages: tuple[str, ...] = ()  # lines at which memory ran out, each time, also where the script went on
    reads: tuple[str, ...] = ()  # lines that read a value of the GPU, which a hollow one does not compute
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.peak_bytes or 0)


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """The command on one kind of GPU, with one set of values."""

    words: dict[str, str]  # what this variant is: its device, and the values of -L
    gpu_bytes: int  # memory of each GPU
    context_bytes: int  # of it, taken by CUDA
    outcome: str
    needed_bytes: int | None = None  # reserved by one process, and the context, where this GPU has too little
    unguarded: str | None = None  # why its files could not be guarded: only what it saved was redirected
    is_cut: bool = False  # ended before the script would have
    processes: tuple[Process, ...]

    @classmethod
    def of(cls, ended: Ended, *, gpu: RehearsedGpu, values: dict[str, str], is_cut: bool) -> Variant:
        is_dead = any(process.died for process in ended.processes)  # also where the command's own code is 0
        is_short = any(process.outcome == "out_of_memory" for process in ended.processes)
        is_ended = ended.timed_out or ended.interrupted is not None  # from outside
        failed = "timed_out" if is_ended else "failed"
        return cls(
            words={"device": gpu.gpu if gpu.count == 1 else f"{gpu.gpu}:{gpu.count}", **values},
            gpu_bytes=gpu.bytes or gpu_specs.find(gpu.gpu).memory_bytes,
            context_bytes=gpu.context_bytes,
            outcome="out_of_memory" if is_short else failed if ended.exit_code or is_ended or is_dead else "ok",
            unguarded=ended.unguarded,
            is_cut=is_cut or is_ended,
            processes=ended.processes,
        )

    @property
    def first_dead(self) -> Process | None:
        """The process that died before any other."""
        return min((process for process in self.processes if process.died), key=lambda one: one.died or 0, default=None)

    @property
    def largest(self) -> Process:
        """The process that reserves most."""
        return max(self.processes, key=lambda process: process.reserved_bytes or 0)

    def with_need(self, unlimited: Ended) -> Variant:
        """Return the variant with what the command needs, by its run with unlimited memory, if that ended well."""
        if unlimited.exit_code or not unlimited.processes:
            return self
        most = max(process.reserved_bytes or 0 for process in unlimited.processes)
        return msgspec.structs.replace(self, needed_bytes=most + self.context_bytes)


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
        shortages=tuple(line["line"] for line in lines if line["kind"] == "out of memory"),
        reads=tuple(line["line"] for line in lines if line["kind"] == "read"),
        module=next((row["module"] for row in rows if row["phase"] == "backward"), rows[-1]["module"]),
        peak_bytes=_largest(phase.peak_bytes for phase in phases),
        reserved_bytes=_largest(phase.reserved_bytes for phase in phases),
        phases=phases,
    )


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
                live_bytes=live, reserved_bytes=_largest(_most(row)[2] for row in several), line=largest["line"],
            )
        )  # fmt: skip
    return sorted(found, key=lambda phase: (phase.name in ORDER[6:], phase.name in IN_STEPS and not phase.is_first_step,
                                            ORDER.index(phase.name)))  # fmt: skip


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
    if raised:
        said = raised["text"] if raised["error"] == "unknown size" else f"{raised['error']}: {raised['text']}"
        return "failed", said
    return ("ok", None) if lines[-1]["kind"] == "end" else ("crashed", "it ended without a word")
