"""Measure time and peak memory of the steps of a user's own training loop."""

from __future__ import annotations

from pathlib import Path

import msgspec
from torch import nn

from profiler.core.case import Case, Trial
from profiler.core.errors import UserError
from profiler.core.record import Built, Note, Readings, Record
from profiler.measuring.devices import Device, Span, Stopwatch, Watch, environment, open_device
from profiler.measuring.meters.memory import largest_known
from profiler.runs import run_diff, store
from profiler.runs.writer import Writer
from profiler.training.blocks import find_blocks
from profiler.training.workload import num_parameters

ADVICE = "from a real training run: gradients were not compared, and saved bytes were not measured"


class Steps:
    """Measures optimizer steps, each between `begin` and `end` with all its micro-batches.

    The first 1 + `warmup` steps are warm-up, the next `samples` are timed; later ones are not measured. The peak is
    that of `torch.cuda.max_memory_allocated`; on a CPU it is not measured, since following its allocator slows training
    down.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self._device: Device = open_device(case.device)
        self._seconds: list[float] = []
        self._spans: list[Span] = []
        self._left = 1 + case.warmup
        self._open: tuple[Stopwatch, Watch | None] | None = None
        self.num_steps = 0

    def begin(self) -> None:
        """Start the clock and the memory watch, if the step is one of those to be timed."""
        if self._left > 0 or len(self._seconds) >= self.case.samples:
            return
        self._device.synchronize()
        watch = None if self.case.device == "cpu" else self._device.watch(0)
        stopwatch = self._device.stopwatch()
        if watch:
            watch.mark()
        stopwatch.mark()
        self._open = stopwatch, watch

    def end(self) -> None:
        """Count the step; if it was timed, keep its seconds and its memory."""
        self.num_steps += 1
        self._left -= 1
        if self._open is None:
            return
        (stopwatch, watch), self._open = self._open, None
        stopwatch.mark()
        if watch:
            watch.mark()
            self._spans += watch.spans()
        self._seconds += stopwatch.seconds()

    def record(self, module: nn.Module) -> Record:
        """Return the record of the steps of a module; it is `failed` if training ended before the first timed step."""
        why = f"training ended after {self.num_steps} steps; the first {1 + self.case.warmup} settle"
        size, num_blocks = num_parameters(module), len(find_blocks(module))
        return Record(
            case=self.case,
            outcome="ok" if self._seconds else "failed",
            detail=None if self._seconds else why,
            built=Built(num_parameters=size, num_blocks=num_blocks, data="the user's own"),
            readings=Readings(
                step_seconds=tuple(self._seconds) or None,
                peak_bytes=max((span.peak_bytes for span in self._spans), default=None),
                reserved_bytes=largest_known(span.reserved_bytes for span in self._spans),
                device_bytes=largest_known(span.device_bytes for span in self._spans),
            ),
            environment=environment(self._device),
            notes=(Note(code="GCP020", text=ADVICE),),
            num_steps=self.num_steps,
        )


def add(record: Record, folder: Path, *, command: str) -> Record:
    """Write the record into a run folder, which is created if need be; a further run of a case is one more round.

    Returns the record as it was written. Raises UserError if the folder cannot be written, or is of another device.
    """
    assert record.environment is not None
    if not (folder / "manifest.json").is_file():
        store.create(
            folder,
            plan=(Trial(case=record.case),),
            command=command,
            environment=record.environment,
            sources=run_diff.code_digests([record.case]),
        )
    writer = Writer(folder)  # locks the folder before it is read, else another process could take the same round
    try:
        before = store.load(folder)
        name = before.manifest.environment.device_name
        if name != record.environment.device_name:
            raise UserError(f"'{folder}' holds a run on {name}", hint="a run is of one device; name another folder")
        rounds = [earlier.round for earlier in before.records if earlier.case == record.case]
        record = msgspec.structs.replace(record, round=max(rounds, default=0) + 1)
        writer.append(record)
    finally:
        writer.close()
    return record
