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
    peak_bytes: int  # the largest of them
    live_bytes: int  # at the end of the pass with the largest peak
    reserved_bytes: int  # the most within it
    line: str  # of the script, in the pass with the largest peak


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that used a GPU."""

    rank: int | None  # None where no launcher gave one
    number: int  # of the process
    outcome: str  # ok, out_of_memory, failed, or crashed
    detail: str | None = None
    num_steps: int
    peak_bytes: int
    reserved_bytes: int
    module: str  # the class of the model that it trains
    shortages: tuple[str, ...] = ()  # lines at which memory ran out, each time, also where the script went on
    reads: tuple[str, ...] = ()  # lines that read a value of the GPU, which a hollow one does not compute
    notes: tuple[str, ...] = ()  # what was not as it would be on a GPU
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.peak_bytes)


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """The command on one kind of GPU, with one set of values."""

    words: dict[str, str]  # what this variant is: its device, and the values of -L
    gpu_bytes: int  # memory of each GPU
    context_bytes: int  # of it, taken by CUDA
    outcome: str
    needed_bytes: int | None = None  # reserved by one process, and the context, where this GPU has too little
    is_cut: bool = False  # ended before the script would have
    processes: tuple[Process, ...]

    @classmethod
    def of(cls, ended: Ended, *, gpu: RehearsedGpu, values: dict[str, str], is_cut: bool) -> Variant:
        outcomes = {process.outcome for process in ended.processes}
        is_short = "out_of_memory" in outcomes and ended.exit_code
        is_ended = ended.timed_out or ended.interrupted is not None  # from outside
        failed = "timed_out" if is_ended else "failed"
        return cls(
            words={"device": gpu.gpu if gpu.count == 1 else f"{gpu.gpu}:{gpu.count}", **values},
            gpu_bytes=gpu.bytes or gpu_specs.find(gpu.gpu).memory_bytes,
            context_bytes=gpu.context_bytes,
            outcome="out_of_memory" if is_short else failed if ended.exit_code or is_ended else "ok",
            is_cut=is_cut or is_ended,
            processes=ended.processes,
        )

    @property
    def largest(self) -> Process:
        """The process that reserves most."""
        return max(self.processes, key=lambda process: process.reserved_bytes)

    def with_need(self, unlimited: Ended) -> Variant:
        """Return the variant with what the command needs, by its run with unlimited memory, if that ended well."""
        if unlimited.exit_code or not unlimited.processes:
            return self
        most = max(process.reserved_bytes for process in unlimited.processes)
        return msgspec.structs.replace(self, needed_bytes=most + self.context_bytes)


def read_process(name: str, lines: Sequence[dict[str, Any]]) -> Process | None:
    """Return a process by the lines of its file, `RANK.PID`; None where it used no GPU."""
    rows = [line for line in lines if line["kind"] == "phase"]
    if not rows:
        return None
    rank, _, number = name.partition(".")
    outcome, detail = _outcome(lines)
    phases = tuple(_phases(rows))
    return Process(
        rank=int(rank) if rank.isdecimal() else None,
        number=int(number),
        outcome=outcome,
        detail=detail,
        num_steps=max(row["step"] for row in rows),
        shortages=tuple(line["line"] for line in lines if line["kind"] == "out of memory"),
        reads=tuple(line["line"] for line in lines if line["kind"] == "read"),
        notes=tuple(line["text"] for line in lines if line["kind"] == "note"),
        module=next((row["module"] for row in rows if row["phase"] == "backward"), rows[-1]["module"]),
        peak_bytes=max(phase.peak_bytes for phase in phases),
        reserved_bytes=max(phase.reserved_bytes for phase in phases),
        phases=phases,
    )


def _phases(rows: Iterable[dict[str, Any]]) -> list[Phase]:
    passes: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for row in rows:
        is_first = row["phase"] in IN_STEPS and row["step"] == (1 if row["phase"] == "after the step" else 0)
        passes.setdefault((row["phase"], is_first), []).append(row)
    found = []
    for (name, is_first), several in passes.items():
        largest = max(several, key=lambda row: _most(row)[0])
        peak, live, _ = _most(largest)
        found.append(
            Phase(
                name=name, is_first_step=is_first, first_step=several[0]["step"], num=len(several), peak_bytes=peak,
                live_bytes=live, reserved_bytes=max(_most(row)[2] for row in several), line=largest["line"],
            )
        )  # fmt: skip
    return sorted(found, key=lambda phase: (phase.name in ORDER[6:], phase.name in IN_STEPS and not phase.is_first_step,
                                            ORDER.index(phase.name)))  # fmt: skip


def _most(row: dict[str, Any]) -> tuple[int, int, int]:
    """Return peak and live bytes of the device with the largest peak, and the most that one has reserved."""
    peak, live, _ = max(row["devices"].values())
    return peak, live, max(reserved for _, _, reserved in row["devices"].values())


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
