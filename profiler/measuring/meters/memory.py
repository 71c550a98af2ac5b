"""Reads the bytes of one training step, by phase and by category, and those that earlier passes left."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from profiler.core.record import PHASES, PhaseBytes, Timeline
from profiler.core.stats import highest
from profiler.measuring.devices import Device, Span
from profiler.measuring.meters.memory_growth import lasting_bytes, with_state
from profiler.training.optimizers import hooks_of, let_go, own_tensors, states
from profiler.training.workload import Step, Workload, allocated_bytes, bytes_by_storage, dense_parts, tensors

NUM_POINTS = 96  # a page draws several timelines side by side, and a record is one line


def read(
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
        marks.follow(_unmarked)
        for _ in range(workload.settling):
            step(lambda phase: None)
        resting, known = static_bytes(workload, optimizer), with_state(optimizer)
        lasting = lasting_bytes(workload, optimizer, known)
        marks.follow(watch.mark)
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
    parameters = list(workload.module.parameters())
    by_category = {
        "parameters": [parameter.detach() for parameter in parameters],
        "buffers": list(workload.module.buffers()),
        "inputs": tensors(workload.batch),  # before the gradients: sparse gradients share its indices
        "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
        "optimizer": tensors([dict(state) for _, state in states(optimizer)]) + own_tensors(optimizer),
    }
    devices = {parameter.device.type for parameter in parameters}  # Adam counts its steps on the host
    seen: dict[int, int] = {}
    counted: dict[str, int] = {}
    for category, held in by_category.items():
        own = bytes_by_storage([tensor for tensor in held if tensor.device.type in devices])
        counted[category] = sum(nbytes for storage, nbytes in own.items() if storage not in seen)
        seen |= own
    return counted | workload.held()


def _unmarked(*, follow: bool = False) -> None:
    """Marks nothing."""


class _Marks:
    """Labels each span of a watch with its phase and the bytes of this step's gradients that exist when it begins.

    A span also ends when a gradient arrives, so that the gradients at the peak are known on every device. But a forward
    whose own code runs a backward is one span, to its end: which gradients its peak has is not known.
    """

    def __init__(self, workload: Workload) -> None:
        self.labels: list[tuple[str, int | None]] = []
        self._mark: Callable[..., None] = _unmarked
        self._gradients: dict[int, dict[int, int]] = {}  # by parameter: bytes by storage, which parameters may share
        self._held: dict[int, int] = {}  # of all of them
        self._held_bytes = 0
        self._persistent: set[int] = set()
        self._parameters = [parameter for parameter in workload.module.parameters() if parameter.requires_grad]
        self._handles = [parameter.register_post_accumulate_grad_hook(self._arrived) for parameter in self._parameters]

    def follow(self, mark: Callable[..., None]) -> None:
        self._mark = mark

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
        self._mark(follow=phase == "forward")


def _timeline(spans: list[tuple[tuple[str, int | None], Span]]) -> Timeline:
    """Return a timeline of every event if the device reports each, else of each span's start, peak and end."""
    held: list[int] = []
    phases: list[tuple[str, int]] = []
    for (phase, _), span in spans:
        if not phases or phases[-1][0] != phase:
            phases.append((phase, len(held)))
        held += span.live_bytes or (span.start_bytes, span.peak_bytes, span.end_bytes)
    return timeline({"live": held}, phases)


def largest_known(values: Iterable[int | None]) -> int | None:
    """Return the largest value that was measured; None if none was."""
    return max((value for value in values if value is not None), default=None)


def timeline(nbytes: Mapping[str, Sequence[int]], phases: Iterable[tuple[str, int]], **at_peak: Any) -> Timeline:
    """Downsample series of bytes, one for each category: keep the point of each stretch where their sum is largest.

    All series have the same length. `phases` are in order, each with the index of its first value. `at_peak` are other
    fields of the Timeline, stored as they are.
    """
    places = highest([sum(values) for values in zip(*nbytes.values(), strict=True)], NUM_POINTS)
    firsts = [(phase, sum(place < first for place in places)) for phase, first in phases]
    ends = [*(first for _, first in firsts[1:]), len(places)]
    return Timeline(
        phases=tuple(start for start, end in zip(firsts, ends, strict=True) if start[1] < end),  # some have no points
        nbytes={name: tuple(values[place] for place in places) for name, values in nbytes.items() if any(values)},
        **at_peak,
    )


class Leftovers:
    """The bytes that were allocated in one pass and are still allocated in a later one.

    On CUDA the caching allocator counts them. The CPU's allocator counts only under a profiler, which would have to run
    through every pass, the timed one too. So there the parameters, buffers and batch of every model are watched by weak
    references to their storages. That costs nothing while a step runs, and finds every graph that is kept, since a
    graph holds the parameters that it leads to. What else such a graph holds is missed: the bytes are a lower bound.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before = device.held_bytes()  # held by others, before the first pass
        self._watched: dict[int, tuple[StorageWeakRef, int]] = {}
        self._hooked: list[tuple[weakref.ref[nn.Module], list[weakref.ref[nn.Parameter]]]] = []  # models with hooks
        self._at_start: tuple[int, int] | None = None  # all bytes and those of models; None once a pass has built one
        self.nbytes = 0  # that earlier passes left allocated in the current one
        self.model_bytes = 0  # of these, the bytes of models and their batches
        self.most_bytes = 0  # the largest `nbytes` of any pass

    def start(self) -> None:
        """Count the bytes held as a pass begins; the device was released before.

        Parameters of a freed model that only their own hooks keep alive are freed first: a user's program, which builds
        its model once, does not leak them.
        """
        for module, parameters in self._hooked:
            if module() is None:
                let_go(parameters)
        self._at_start = self.held_bytes(), self.held_model_bytes()

    def built(self, workload: Workload) -> None:
        """Watch a model that was built. Storages of an earlier pass that it reuses do not count as left."""
        hooked = [weakref.ref(parameter) for parameter in workload.module.parameters() if hooks_of(parameter)]
        self._hooked += [(weakref.ref(workload.module), hooked)] if hooked else []
        module = workload.module
        held = [*module.parameters(), *module.buffers(), *tensors(workload.batch)]
        storages = {storage._cdata: storage for storage in _behind(held)}
        again = sum(self._watched[place][1] for place in self._alive() & storages.keys())
        gradients = [parameter.grad for parameter in workload.module.parameters() if parameter.grad is not None]
        gradient_bytes = sum(map(allocated_bytes, _behind(gradients)))  # of a reused model: a new one has none
        self._watched |= {
            place: (StorageWeakRef(storage), allocated_bytes(storage)) for place, storage in storages.items()
        }
        if self._at_start:
            nbytes, model_bytes = self._at_start
            self.model_bytes = max(0, model_bytes - again)
            self.nbytes = max(self.model_bytes, nbytes - again - gradient_bytes)
            self.most_bytes = max(self.most_bytes, self.nbytes)
            self._at_start = None

    def in_peak(self, held_before: int) -> int:
        """Return the bytes of earlier passes in the peak of a pass that has ended and began with `held_before`.

        If the held bytes did not grow in that pass, they are a cache that is made once and reused: only models count.
        """
        return self.nbytes if self.held_bytes() > held_before else self.model_bytes

    def held_bytes(self) -> int:
        """Return the bytes held now beyond those before the first pass, as far as the device counts them."""
        held = self._device.held_bytes()
        return self.held_model_bytes() if held is None or self._before is None else max(0, held - self._before)

    def held_model_bytes(self) -> int:
        """Return the bytes of parameters, buffers and batches that are still alive, of all models that were built."""
        return sum(self._watched[place][1] for place in self._alive())

    def _alive(self) -> set[int]:
        return {place for place, (reference, _) in self._watched.items() if not reference.expired()}


def _behind(dense_or_sharded: list[torch.Tensor]) -> list[torch.UntypedStorage]:
    return [part.untyped_storage() for tensor in dense_or_sharded for part in dense_parts(tensor.detach())]
