"""Measures a trial in this process, pass by pass, and reads the bytes of one step, by phase and by category."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any

import torch

from profiler.core.case import OPERATORS, Trial
from profiler.core.gpu_specs import CONTEXT_BYTES, LIBRARY_SHARE, parse
from profiler.core.record import PHASES, PhaseBytes, RankBytes, Readings, Record, Timeline, timeline
from profiler.core.stats import largest_known
from profiler.core.units import bytes_text
from profiler.measuring.bench import Bench, switches
from profiler.measuring.devices import Device, Span, environment
from profiler.measuring.equality_pass import compare
from profiler.measuring.failure_causes import explained
from profiler.measuring.meters import memory_growth, operators
from profiler.measuring.meters.equality import StepDigests, weights_kept
from profiler.measuring.meters.memory_growth import lasting_bytes, with_state
from profiler.measuring.passes import (
    COUNTED,
    built_only,
    count_flops,
    counted_step,
    counts_after_memory,
    hidden_bytes,
    of_step,
    time_steps,
)
from profiler.measuring.ranks import ALONE, Group, Ranks
from profiler.training.assemble import Assembled, Build, is_prepared
from profiler.training.optimizers import between_steps
from profiler.training.own_checkpoints import compiled_modules
from profiler.training.workload import Mark, Step, Workload, bytes_by_storage, tensors


def measure(
    trial: Trial,
    *,
    on_pass: Callable[[str], None] = lambda name: None,
    build: Build | None = None,
    group: Group = ALONE,
) -> Record:
    """Run the passes of a trial, each on a fresh model with the same seed.

    `on_pass` is called with the name of each pass as it begins: build, equality, memory, time. All ranks of a group
    measure together; apart from what is a rank's own, their records are equal. Raises Unsupported if the model or the
    strategy is not available, and whatever the model raises.
    """
    bench = Bench(trial, on_pass, build, group)
    with explained(bench):
        passes = bench.passes()
        before = switches()
        bench.begin("build")
        calls: list[int] = []
        is_as_built = not bench.device.is_hollow or is_prepared(bench.trial.case)  # else strategies may have run it
        assembled = bench.build(calls=calls)
        built, notes = assembled.describe(), assembled.applied.notes
        bench.is_compiled = assembled.applied.changes_kernels or bool(compiled_modules(assembled.workload.module))
        if passes[:1] == ("flops",) and is_as_built:
            bench.unused = assembled, calls
        del assembled
        compares = "equality" in passes
        first = [
            name for name in passes if compares and name == "memory"
        ]  # the equality pass can use digests of its steps
        readings = _read(bench, first)
        verified, reason = compare(bench) if compares else (None, None)
        readings |= _read(bench, [name for name in passes if name not in first])
        bench.tell_checkpoints()
        if bench.warnings.lines:  # of the steps whose gradients are compared
            bench.note("GCP046", f"warnings while the step ran: {bench.warnings}")
        bench.tell_changes(before)
        reason = bench.tell_leftovers() or reason
        return Record(
            case=trial.case,  # which has the requested device, and the bench's that of its rank
            round=trial.round,
            outcome="invalid" if reason else "ok",
            detail=reason,
            built=built,
            readings=Readings(**readings),
            equality=verified,
            environment=environment(bench.device),
            notes=(*notes, *bench.all_notes()),
            stage_seconds=bench.end(),
            num_steps=bench.num_steps,
        )


def _read(bench: Bench, passes: Collection[str]) -> dict[str, Any]:
    """Run the requested passes in the order of the table; return the fields of their Readings."""
    readings: dict[str, Any] = {}
    for name, run in TABLE.items():
        if name in passes and not (name == "flops" and counts_after_memory(bench)):
            bench.begin(name)
            readings |= run(bench)
    return readings


def _memory(bench: Bench) -> dict[str, Any]:
    """Return the readings of the rank with the highest peak; with several ranks, also the bytes of each."""
    held_before = bench.leftovers.held_bytes()
    try:
        own, gathered = _own_memory(bench)
    except Exception:  # raised again: whether the step reads values may explain it
        if counts_after_memory(bench):
            bench.device.release()
            count_flops(bench)
        raise
    if bench.device.held_bytes() is not None:  # else the meter counts only what happens within a step
        bench.device.release()
        bench.misread_bytes = bench.leftovers.in_peak(held_before)
    if bench.trial.case.is_rehearsed:
        taken, total = int(own["device_bytes"]), bench.device.facts().device_bytes or 0
        unknown = int(LIBRARY_SHARE * total) + (0 if parse(bench.trial.case.device).context_bytes else CONTEXT_BYTES)
        if total - taken < unknown:
            text = f"{bytes_text(taken)} of {bytes_text(total)} are taken: too near to tell whether it fits, since"
            more = f"CUDA and its libraries may take {bytes_text(unknown)} more; --context adds CUDA's"
            bench.note("GCP042", f"{text} {more}")
    held = {name: own[name] for name in ("static_bytes", "saved_bytes", "peak_bytes")}
    by_rank = bench.group.gather((own, RankBytes(**held, gathered_bytes=gathered)))
    if len(by_rank) == 1:
        return own
    highest = max((readings for readings, _ in by_rank), key=lambda readings: int(readings["peak_bytes"]))
    return {**highest, "ranks": tuple(rank for _, rank in by_rank)}


def _own_memory(bench: Bench) -> tuple[dict[str, Any], int | None]:
    """Return this rank's readings and its peak bytes of gathered parameters; the model is freed on return."""
    built, calls = built_only(bench) if counts_after_memory(bench) else (bench.build(), [])
    optimizer, step = built.trainer()
    numbers = count(1)

    def seeded(mark: Mark, **look: operators.Look) -> torch.Tensor:
        built.seed(next(numbers))
        loss = bench.counted(partial(step, **look), mark)
        if not bench.device.is_hollow and not bool(torch.isfinite(loss)):
            text = f"the loss is {float(loss)}: the gradients are meaningless; memory and time are still valid"
            bench.note("GCP007", text)
        return loss

    with _watched(bench, built, seeded) as watched:
        own, left_bytes = read_memory(built.workload, optimizer, bench.device, watched)
    gathered = built.workload.gathered() if built.workload.gathered else None
    if counts_after_memory(bench):
        unknown = f"{COUNTED}, and how long a step takes"
        run = partial(counted_step, bench, built, calls, count=partial(of_step, bench, seeded))
        counted, left_again = memory_growth.left_by(
            built.workload, optimizer, bench.device, lambda: bench.extra(unknown, run)
        )
        own |= counted or {}
        left_bytes = min(left_bytes, left_bytes if left_again is None else left_again)
    if any(bench.group.gather(left_bytes > 0)):
        total, is_known = bench.device.facts().device_bytes, bench.device.held_bytes() is not None
        room = total - own["peak_bytes"] - memory_growth.NUM_STEPS * left_bytes if total and is_known else None
        grows = partial(_tell_growth, bench, built, optimizer, seeded, room)
        bench.extra("whether memory grows from step to step", grows)
    return own, gathered


@contextmanager
def _watched(bench: Bench, built: Assembled, step: Step) -> Iterator[Step]:
    """Yield the training step; digests of its first two runs are taken for the equality pass, if it can use them.

    That takes a known baseline, one process, real arithmetic, no gradient scaler, and a model that settles in one step.
    The weights are restored: a factory may return the same module each time.
    """
    case, trial = bench.trial.case, bench.trial
    is_asked = "equality" in trial.passes and case.verify != "off"
    is_known = case == case.baseline or trial.digests is not None
    is_alone = bench.group.size == 1 and bench.group.mesh is None and not bench.device.is_hollow
    is_plain = case.precision != "amp-fp16" and built.workload.settling == 1
    digests = None
    if is_asked and is_known and is_alone and is_plain:
        with suppress(Exception):  # state of a user's class; the equality pass, which reads it too, tells why
            digests = StepDigests(built.workload)
    if digests is None:
        yield step
        return

    def heard(mark: Mark) -> torch.Tensor:
        with bench.warnings.heard():
            loss: torch.Tensor = step(mark)
            return loss

    with weights_kept(built.workload):
        yield digests.watched(heard)
        digests.finish()
    bench.step_digests = digests if digests.digests else None


def _tell_growth(
    bench: Bench, built: Assembled, optimizer: torch.optim.Optimizer, step: Step, room: int | None
) -> None:
    """Run more steps and note what each leaves behind; `room` is what stays free after these, None if unknown."""
    limit = bench.limit()  # the pass so far took longer than any of NUM_STEPS more steps will
    is_late = limit is not None and time.monotonic() + memory_growth.NUM_STEPS * bench.spent() > limit
    if any(bench.group.gather(is_late)):
        return
    if any(bench.group.gather(room is not None and room < 0)):
        bench.note(
            "GCP048", "the step leaves bytes behind, and more steps would not fit: whether it grows is not known"
        )
        return
    with_operators = not built.applied.changes_kernels
    is_alone = not isinstance(bench.group, Ranks)  # several take part in each other's steps, so all run them all
    grown = memory_growth.read(
        built.workload, optimizer, bench.device, step, with_operators=with_operators, is_alone=is_alone
    )
    if grown:
        bench.note("GCP048", str(grown))


def read_memory(
    workload: Workload, optimizer: torch.optim.Optimizer, device: Device, step: Step
) -> tuple[dict[str, Any], int]:
    """Return the memory fields of Readings, and the bytes that the step leaves behind.

    The step is measured once gradients and optimizer state exist. `step` runs one and calls the function that it is
    given at the start of each phase. All numbers are exact: peaks are read from the device (`device.watch`), static
    bytes are those of the storages, as the allocator rounds them up. Bytes left behind exclude gradients and the
    optimizer state that a parameter gets for the first time.
    """
    marks = _Marks(workload)
    with device.watch(sum(static_bytes(workload, optimizer).values())) as watch:
        for _ in range(workload.settling):
            step(lambda phase: None)
        resting, known = static_bytes(workload, optimizer), with_state(optimizer)
        lasting = lasting_bytes(workload, optimizer, known)
        marks.mark = watch.mark
        step(marks.phase)
        watch.mark()  # the step's own tensors are gone, its loss too
        lasting -= lasting_bytes(workload, optimizer, known)
        marks.remove()
    *within, end = watch.spans()  # the last begins at the step's mark "end"
    spans = list(zip(marks.labels, within, strict=False))
    left_bytes = end.end_bytes - within[0].start_bytes + lasting
    phases: dict[str, PhaseBytes] = {}
    for phase in PHASES:
        own = [span for (name, _), span in spans if name == phase]
        phases[phase] = PhaseBytes(
            allocated=max(span.peak_bytes for span in own),
            reserved=largest_known(span.reserved_bytes for span in own),
            device=largest_known(span.device_bytes for span in own),
        )
    (_, gradient_bytes), _ = top = max(spans, key=lambda pair: pair[1].peak_bytes)
    forwards = [span for (phase, _), span in spans if phase == "forward"]
    readings = {
        "static_bytes": resting,
        "start_bytes": forwards[0].start_bytes,
        "saved_bytes": max(span.end_bytes - span.start_bytes + span.freed_bytes for span in forwards),
        "phases": phases,
        "peak_bytes": top[1].peak_bytes,
        "peak_phase": top[0][0],
        "peak_gradient_bytes": gradient_bytes,
        "timeline": _timeline(spans),
        "reserved_bytes": largest_known(phase.reserved for phase in phases.values()),
        "device_bytes": largest_known(phase.device for phase in phases.values()),
    }
    return readings, left_bytes


def static_bytes(workload: Workload, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return the bytes that are live between two steps, by category; every storage counted once."""
    devices = {parameter.device.type for parameter in workload.module.parameters()}  # Adam counts steps on the host
    seen: dict[int, int] = {}
    counted = dict.fromkeys(("parameters", "buffers", "inputs", "gradients", "optimizer"), 0)
    for tree, category, _ in between_steps(workload, optimizer):
        own = bytes_by_storage([tensor for tensor in tensors(tree) if tensor.device.type in devices])
        counted[category] += sum(nbytes for storage, nbytes in own.items() if storage not in seen)
        seen |= own
    return counted | workload.held()


class _Marks:
    """Labels each span of a watch with its phase and the bytes of this step's gradients that exist when it begins.

    A span also ends when a gradient arrives, so that the gradients at the peak are known on every device. But a forward
    whose own code runs a backward is one span, to its end: which gradients its peak has is not known.
    """

    def __init__(self, workload: Workload) -> None:
        self.labels: list[tuple[str, int | None]] = []
        self.mark: Callable[..., None] = lambda *, follow=False: None  # ends a span of the watch
        self._gradients: dict[int, dict[int, int]] = {}  # by parameter: bytes by storage, which parameters may share
        self._held: dict[int, int] = {}  # of all of them
        self._held_bytes = 0
        self._persistent: set[int] = set()
        self._parameters = [parameter for parameter in workload.module.parameters() if parameter.requires_grad]
        self._handles = [parameter.register_post_accumulate_grad_hook(self._arrived) for parameter in self._parameters]

    def phase(self, name: str) -> None:
        if name == "forward" and not self.labels[1:]:
            self._persistent = {id(parameter) for parameter in self._parameters if parameter.grad is not None}
        self._label(name)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _arrived(self, parameter: torch.Tensor) -> None:
        if not self.labels or parameter.grad is None or id(parameter) in self._persistent:
            return
        own = bytes_by_storage([parameter.grad])
        if self._gradients.setdefault(id(parameter), own) is not own:  # it arrives again, perhaps elsewhere
            self._gradients[id(parameter)] = own
            self._held = {storage: nbytes for held in self._gradients.values() for storage, nbytes in held.items()}
            self._held_bytes = sum(self._held.values())
        self._held_bytes += sum(nbytes for storage, nbytes in own.items() if storage not in self._held)
        self._held |= own
        if self.labels[-1][0] == "forward":
            self.labels[-1] = "forward", None
        else:
            self._label("backward")

    def _label(self, phase: str) -> None:
        self.labels.append((phase, self._held_bytes))
        self.mark(follow=phase == "forward")


def _timeline(spans: list[tuple[tuple[str, int | None], Span]]) -> Timeline:
    """Return a timeline of every event if the device reports each, else of each span's start, peak and end."""
    held: list[int] = []
    phases: list[tuple[str, int]] = []
    for (phase, _), span in spans:
        if not phases or phases[-1][0] != phase:
            phases.append((phase, len(held)))
        held += span.live_bytes or (span.start_bytes, span.peak_bytes, span.end_bytes)
    return timeline({"live": held}, phases)


TABLE: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "flops": count_flops,
    "memory": _memory,
    OPERATORS: lambda bench: (
        bench.extra("what operators take besides their results", lambda: hidden_bytes(bench)) or {}
    ),
    "time": time_steps,
}
