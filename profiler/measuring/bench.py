"""The state of a running trial: builds fresh models of its case, counts steps, times passes, collects notes."""

from __future__ import annotations

import re
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import msgspec
import torch
from torch import nn

from profiler.core.case import Case, Trial
from profiler.core.errors import innermost_line
from profiler.core.record import IN_BUILD, Note
from profiler.core.safe_files import hide
from profiler.core.units import bytes_text
from profiler.measuring.devices import of_rank, open_device
from profiler.measuring.meters.equality import StepDigests
from profiler.measuring.meters.memory_growth import Leftovers
from profiler.measuring.ranks import ALONE, Group, Ranks
from profiler.training.assemble import Assembled, Build, assemble
from profiler.training.known_values import BYTES_ONLY
from profiler.training.observed_forward import Seen, remembering
from profiler.training.own_checkpoints import OwnCalls, forget, remark
from profiler.training.workload import Mark, drop_gradients

NEED_ARITHMETIC = ("equality", "time")  # passes that a device without arithmetic cannot run
WARNINGS = (UserWarning, RuntimeWarning)  # about this step; deprecation warnings are not
MOST_WARNINGS = 3  # that a note names
LONGEST_WARNING = 300  # characters
T = TypeVar("T")
TRIGGERED = re.compile(r" \(Triggered internally at [^)]*\)")  # cut from warnings: a place in PyTorch's sources


class Bench:
    """Assembles the models that the passes of a trial run on."""

    def __init__(
        self, trial: Trial, on_pass: Callable[[str], None], build: Build | None = None, group: Group = ALONE
    ) -> None:
        self.trial = msgspec.structs.replace(trial, case=of_rank(trial.case, group.rank))
        self.group = group
        self.device = open_device(self.trial.case.device)
        self.device.keep_memory()
        self.leftovers = Leftovers(self.device)
        self.misread_bytes = 0  # left by earlier passes and included in the measured peak
        self.num_steps = 0
        self.is_compiled = False  # whether the model or the strategy compiles; known once it was built
        self.unused: tuple[Assembled, list[int]] | None = None  # a model that was only built, and its counts of calls
        self.value_reads = ""  # which values a rehearsed step reads that it does not have, in words
        self.step_digests: StepDigests | None = None  # of the memory pass's steps; None if not watched
        self._build = build
        self._seen: Seen = {}  # observations of the blocks, made on the first model only
        self.at_work: Callable[[], nn.Module | None] = lambda: None  # returns the last model, if it still exists
        self._notes: list[Note] = []
        self._unknown: dict[str, str] = {}  # what an extra run was to find out, and why it failed
        self.warnings = StepWarnings()
        self._own_calls = OwnCalls()  # the model's own checkpoint calls in the last step
        self._remark: Callable[[], Note | None] = lambda: None  # the strategy's, after a step
        self._on_pass = on_pass
        self._begun: list[tuple[str, float]] = []

    def passes(self) -> tuple[str, ...]:
        """Return the trial's passes; on a hollow device, leave out those that need arithmetic, and note that."""
        if not self.device.is_hollow:
            return self.trial.passes
        self.note("GCP039", BYTES_ONLY)
        return tuple(name for name in self.trial.passes if name not in NEED_ARITHMETIC)

    def begin(self, name: str) -> None:
        """Release what the last pass left, forget its compiled code, and begin the next pass.

        A pass that goes on with the model of the build has nothing to release yet.
        """
        if self.unused is None:
            self.device.release()
            forget()
            self.leftovers.start()
        self._on_pass(name)
        self._begun.append((name, time.monotonic()))

    def end(self) -> dict[str, float]:
        """Return the seconds of each pass."""
        ends = [*[start for _, start in self._begun[1:]], time.monotonic()]
        return {name: end - start for (name, start), end in zip(self._begun, ends, strict=True)}

    def limit(self) -> float | None:
        """Return the deadline of the current pass on the monotonic clock; None if it has none."""
        seconds = self.trial.limit_seconds
        return None if seconds is None else self._begun[-1][1] + seconds

    def spent(self) -> float:
        """Return the seconds that the current pass has taken so far."""
        return time.monotonic() - self._begun[-1][1]

    def build(self, case: Case | None = None, *, calls: list[int] | None = None) -> Assembled:
        """Build a fresh model of the trial's case, or of another, and have the leftovers watch it."""
        directory, mesh = self.trial.data_directory, self.group.mesh
        try:
            with remembering(self._seen):
                built = assemble(
                    case or self.trial.case, data_directory=directory, calls=calls, build=self._build, mesh=mesh
                )
        except (MemoryError, RuntimeError) as error:
            error.add_note(IN_BUILD)
            raise
        self.leftovers.built(built.workload)
        drop_gradients(built.workload)  # of leaves that the factory does not make anew
        self.at_work = weakref.ref(built.workload.module)
        if built.case == self.trial.case:
            self.listen(built)
        return built

    def listen(self, built: Assembled) -> None:
        """Use this model's checkpoint counts and strategy remark from now on; carry over counts of compiled code."""
        built.own_calls.num_before = self._own_calls.num_before
        built.own_calls.num_compiled = max(built.own_calls.num_compiled, self._own_calls.num_compiled)
        self._own_calls, self._remark = built.own_calls, built.applied.remark

    def build_unwatched(self, case: Case, *, rank: int | None = None) -> Assembled:
        """Build a fresh model for this process alone, without watching it; `rank` selects that rank's batch."""
        with remembering(self._seen):
            return assemble(case, data_directory=self.trial.data_directory, build=self._build, rank=rank)

    def gradients(self, built: Assembled, *, number: int = 1) -> torch.Tensor:
        """Run a forward and a backward, which count as a step; return the loss."""
        self.num_steps += 1
        with self.warnings.heard() if built.case == self.trial.case else nullcontext():
            return built.gradients(number=number)

    def counted(self, step: Callable[[Mark], torch.Tensor], mark: Mark) -> torch.Tensor:
        """Run a whole step; return the loss."""
        self.num_steps += 1
        return step(mark)

    def extra(self, what: str, run: Callable[[], T], *, is_local: bool = False) -> T | None:
        """Return the result of a run that the user did not ask for; if it raises, None, and `what` is noted as unknown.

        So it never decides the outcome. The memory that it took is free again. Of several ranks, which take part in
        each other's runs, none can go on alone: unless the run `is_local`, the error is raised.
        """
        try:
            return run()
        except Exception as error:  # the user's model may raise anything
            if isinstance(self.group, Ranks) and not is_local:
                raise
            line = innermost_line(error)
            words = f"{type(error).__name__}: {_first_line(hide(str(error)))}" + (f" ({line})" if line else "")
            is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))  # whose sizes are of no use
            self._unknown[what] = "out of memory" if is_memory else words
        self.device.release()  # after the handler, whose traceback holds tensors
        return None

    def note(self, code: str, text: str) -> None:
        """Add a note; only the first of each code is kept."""
        if code not in {note.code for note in self._notes}:
            self._notes.append(Note(code=code, text=text))

    def all_notes(self) -> list[Note]:
        """Return the notes of this rank, then those that only other ranks have."""
        if self._unknown:
            texts = [f"{what} ({why})" for what, why in self._unknown.items()]
            self.note("GCP057", f"not known, as a step that gcprof adds to find out fails: {'; '.join(texts)}")
        for note in (note for notes in self.group.gather(self._notes) for note in notes):
            self.note(note.code, note.text)
        return self._notes

    def tell_checkpoints(self) -> None:
        """Add the notes that a step has given on the model's own checkpoints and on the strategy's."""
        for note in filter(None, (self.own_checkpoints(), self._remark())):
            self.note(note.code, note.text)

    def own_checkpoints(self) -> Note | None:
        """Return the note on checkpoints that the model calls itself, if any; None before the first step."""
        return remark(self.trial.case, self._own_calls) if self.num_steps else None

    def tell_changes(self, before: dict[str, str]) -> None:
        """Note the global settings that the model's code changed: in a user's program they would outlast the step."""
        after = switches()
        turned = [f"{name} {old} -> {after[name]}" for name, old in before.items() if after[name] != old]
        if turned:
            self.note("GCP019", f"the model's code changes global settings of torch: {', '.join(turned)}")

    def tell_untold(self) -> None:
        """Note why the device's clock, temperature, power and other processes are unknown, if they are."""
        if reason := self.device.untold():
            self.note("GCP031", f"clock, heat, power and other processes of the device are not known: {reason}")

    def tell_leftovers(self) -> str | None:
        """Note memory that passes left allocated, and what keeps it; return why the trial is invalid, if it is."""
        if not self.leftovers.most_bytes:
            return None
        keeper = self.extra("what keeps the bytes of earlier passes", self._keeper) or "what keeps them is not known"
        if self.misread_bytes:
            text = f"{bytes_text(self.misread_bytes)} that earlier passes left are in the peak: {keeper}"
            self.note("GCP038", text)
            return text
        left = bytes_text(self.leftovers.most_bytes)
        where = (
            "they are not in any figure" if self.device.held_bytes() is None else "as a cache does, they do not grow"
        )
        self.note("GCP038", f"{left} that earlier passes made are still held, {where}: {keeper}")
        return None

    def _keeper(self) -> str:
        """Return what keeps the leftover memory, by running one more step without checkpointing."""
        if self.group.mesh is not None:
            return "by the model's code, or by what distributes or checkpoints it"
        built = self.build_unwatched(self.trial.case.baseline)
        self.device.release()  # also what the user's file kept: the build ran it again
        alone = Leftovers(self.device)
        alone.built(built.workload)
        own, before = alone.held_model_bytes(), self.device.held_bytes()
        self.gradients(built)
        del built
        self.device.release()
        after = self.device.held_bytes()
        if alone.held_model_bytes() or (before is not None and after is not None and after > before - own):
            return "the model's own code keeps them, without checkpointing too, by a module-level name or by a cycle"
        return f"{self.trial.case.label} keeps them; the model alone leaves nothing behind"


def switches() -> dict[str, str]:
    """Return the global settings of torch that affect the results, time or memory of a step, by name."""
    return {
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "threads": str(torch.get_num_threads()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "cudnn.enabled": str(torch.backends.cudnn.enabled),
        "cudnn.benchmark": str(torch.backends.cudnn.benchmark),
        "cudnn.deterministic": str(torch.backends.cudnn.deterministic),
        "cudnn.allow_tf32": str(torch.backends.cudnn.allow_tf32),
        "gradients": str(torch.is_grad_enabled()),
        "anomaly detection": str(torch.is_anomaly_enabled()),
    }


class StepWarnings:
    """Collects the first lines of warnings, each once; the warnings are still shown."""

    def __init__(self) -> None:
        self.lines: dict[str, None] = {}

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Collect warnings while the block runs; those that were shown before are shown and collected again."""
        with warnings.catch_warnings():
            show = warnings.showwarning

            def hear(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
                if issubclass(category, WARNINGS):
                    self.lines[_first_line(str(message))] = None
                show(message, category, *where, **more)

            warnings.showwarning = hear
            yield

    def __str__(self) -> str:
        lines = list(self.lines)
        more = len(lines) - MOST_WARNINGS
        return "; ".join([*lines[:MOST_WARNINGS], *([f"and {more} more"] if more > 0 else [])])


def _first_line(text: str) -> str:
    line = TRIGGERED.sub("", text.strip().partition("\n")[0])
    return line if len(line) <= LONGEST_WARNING else f"{line[:LONGEST_WARNING]}..."
