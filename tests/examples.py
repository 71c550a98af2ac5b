"""Runs made by hand that views are shown with: U-shaped peaks, rising times, and everything that can go wrong."""

from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from profiler.core.case import Trial
from profiler.core.record import Built, Environment, Equality, Note, Record
from profiler.runs import store
from profiler.runs.store import Writer
from tests import make
from tests.make import MIB

NUM_BLOCKS = 301
ENVIRONMENT = Environment(
    gcprof="0.1.0",
    python="3.11.7",
    system="Linux",
    torch="2.15.0",
    device_name="NVIDIA H200",
    device_bytes=700 * MIB,
    started="2026-11-20T17:49:00Z",
)
WRONG = Equality(loss_equal=False, gradients_equal=False, buffers_equal=True, random_state_equal=True)
ONE_SEGMENT = Note(code="GCP001", text="checkpoints nothing: the last segment is never checkpointed")
NOISY = Note(code="GCP012", text="the samples spread by more than 5 %; raise --samples")


def point(strategy: str, *, segments: int, seconds: float, round: int = 1, **fields: Any) -> Record:
    """A record with what checkpoint_sequential costs: the last segment plain, one segment recomputed at the peak."""
    length = NUM_BLOCKS // segments
    last = NUM_BLOCKS - length * (segments - 1)
    saved = (segments - 1) * MIB + 2 * last * MIB
    transient = 30 * MIB + (2 * length * MIB if segments > 1 else 0)
    static = 40 * MIB
    split = f"{segments - 1}x{length}+{last}" if segments > 1 else None
    return make.record(
        strategy,
        peak=static - static // 4 + saved + transient,
        static=static,
        saved=saved,
        seconds=tuple(seconds * (1 + 0.01 * step) for step in (-2, -1, 0, 1, 2)),
        round=round,
        **{
            "built": Built(num_parameters=2_800_000, num_blocks=NUM_BLOCKS, data="synthetic", split=split),
            "environment": ENVIRONMENT,
            **fields,
        },
    )


def sweep(segments: tuple[int, ...] = (1, 2, 4, 8, 16, 32), *, round: int = 1, **fields: Any) -> list[Record]:
    """`none`, then a row for each number of segments; the step takes from 100 ms to 135 ms."""
    found = [point("none", segments=1, seconds=0.100, round=round, **fields)]
    for index, number in enumerate(segments):
        name = f"segments:k={number}"
        notes = (ONE_SEGMENT,) if number == 1 else ()
        seconds = 0.100 if number == 1 else 0.120 + 0.015 * index / len(segments) + 0.002 * round
        found.append(point(name, segments=number, seconds=seconds, round=round, notes=notes, **fields))
    return found


def troubled() -> list[Record]:
    """One of each: ok, out of memory, skipped, invalid, and one whose time was not measured."""
    wrong = {"outcome": "invalid", "detail": "gradient of 4.weight differs by 0.5", "equality": WRONG}
    reasons = {
        ("segments:k=3", "out_of_memory"): "tried to allocate 96 MiB in the backward",
        ("segments:k=400", "skipped"): "301 blocks cannot be cut into 400 segments",
        ("segments:k=5", "crashed"): "\x1b[31m[bold]signal\n11[/bold]\x07",
    }
    memory, skipped, crashed = (make.failed(*one, why, environment=ENVIRONMENT) for one, why in reasons.items())
    return [
        *sweep((2, 8)),
        point("segments:k=16", segments=16, seconds=0.13, notes=(NOISY,), **make.UNTIMED),
        memory,
        skipped,
        point("_planted", segments=8, seconds=0.08, **wrong),
        crashed,
    ]


def batches(*, device: str = "cuda:0", limit: int = 300 * MIB, **fields: Any) -> list[Record]:
    """`none`, sqrt and all over batches of 8 to 64: out of memory, invalid, and one that was never run.

    Saved memory is 4 MiB a sample, and its square root under sqrt; the peak is that and 100 MiB of static memory; a
    step takes 10 ms and 1 ms a sample, a third more under sqrt and all.
    """
    spoiled = {("none", 64): "out_of_memory", ("sqrt", 8): "invalid"}
    environment = msgspec.structs.replace(ENVIRONMENT, device_bytes=limit)
    found = []
    for size, (name, share) in product((8, 16, 32, 64), {"none": 4.0, "sqrt": 1.0, "all": 0.25}.items()):
        case = make.case(name, batch_size=size, device=device, **fields)
        kept = int(share * size * MIB)
        seconds = (0.010 + 0.001 * size) * (1 if name == "none" else 4 / 3)
        sizes: dict[str, Any] = {"peak": 100 * MIB + kept, "static": 100 * MIB, "saved": kept, "seconds": (seconds,)}
        if outcome := spoiled.get((name, size)):
            found.append(make.failed(name, outcome, "why", case=case, environment=environment))
        elif (name, size) != ("all", 64):
            found.append(make.record(name, case=case, environment=environment, **sizes))
    return found


def run(
    folder: Path, records: list[Record], *, more: tuple[Trial, ...] = (), command: str = "gcprof run mnist-cnn"
) -> store.Run:
    """A run folder on disk with these records; `more` are trials of its plan that were not run."""
    plan = (*(Trial(case=record.case, round=record.round) for record in records), *more)
    store.create(folder, plan=plan, command=command, environment=ENVIRONMENT, sources={})
    writer = Writer(folder)
    for record in records:
        writer.append(record)
    writer.close()
    return store.load(folder)


def by_plan(run: store.Run) -> list[Record]:
    """The records in the order of the plan."""
    found = {(record.case, record.round): record for record in run.records}
    assert len(found) == len(run.records)
    return [found[key] for trial in run.manifest.plan if (key := (trial.case, trial.round)) in found]


def exact(record: Record) -> tuple[Any, ...]:
    """All of a record that is exact: bytes, and what the comparison of gradients gave."""
    readings, equality = record.readings, record.equality
    nbytes = (readings.static_bytes, readings.saved_bytes, readings.peak_bytes, readings.phases, readings.hidden_bytes)
    return record.case, record.round, record.outcome, record.detail, nbytes, equality and equality.digests
