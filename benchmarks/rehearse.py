"""Models at full size, rehearsed on GPUs that are not there: bytes, seconds, and the host's memory.

Each row is rehearsed by an engine of its own, in a process of its own, and then predicted. Fails where a rehearsal
takes more than 40 s or 12 GiB of the host's memory, or ends otherwise than it should. `-o` writes the table.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from msgspec import UNSET

from profiler import __version__
from profiler.core import catalogue
from profiler.core.case import Case, Choice, Trial, decode, encode
from profiler.core.record import Record
from profiler.core.units import bytes_text
from profiler.engines.local import Local
from profiler.training import models, optimizers

SECONDS, HOST_BYTES = 40.0, 12 * 2**30
LONGEST = 300  # seconds: what takes longer is ended
OK = "ok"
HEAD = """# Models at full size, rehearsed

Each row is one training step of a model at full size, on a GPU that was not there: rehearsed by PyTorch's own CUDA
code, and predicted from a trace. Nothing here was measured. Seconds are of the whole rehearsal, from the start of a new
interpreter to the end of its processes; processor seconds are what they computed; the host's memory is the largest
resident set of any of them. Bounds: {seconds:.0f} s and {host}.

Published is what others measured on a real GPU: 5,605.75 MB for ResNet-152 with batch 32, with TensorFlow (a comment
in the tests of [gradient-checkpointing](https://github.com/cybertronai/gradient-checkpointing)). No published figure of
the other rows is known to us; figures of other steps are in [published memory](published-memory.md).

Made by `python -m benchmarks.rehearse` with gcprof {version} and torch {torch}, on {cores} cores that other
work shared: a load of {first} before the first row and {last} after the last.

| model | device | published | rehearsed | predicted | seconds | processor seconds | host's memory |
|---|---|--:|--:|--:|--:|--:|--:|
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A step to rehearse."""

    name: str
    model: str
    batch_size: int
    strategy: str = "none"
    optimizer: str = "adamw"
    precision: str = "fp32"
    device: str = "h100"
    ranks: int = 0  # of FSDP2
    published: str = "-"
    outcome: str = OK


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a row gave."""

    row: Row
    outcome: str
    detail: str
    peak_bytes: int | None
    predicted_bytes: int | None
    seconds: float
    processor_seconds: float
    host_bytes: int
    torch: str | None

    def broken(self) -> list[str]:
        """Returns the bounds that the row breaks."""
        found = []
        if self.outcome != self.row.outcome:
            found.append(f"{self.outcome}, not {self.row.outcome}: {self.detail}")
        if self.seconds > SECONDS:
            found.append(f"{self.seconds:.1f} s, not {SECONDS:.0f} s")
        if self.host_bytes > HOST_BYTES:
            found.append(f"{bytes_text(self.host_bytes)} of the host, not {bytes_text(HOST_BYTES)}")
        return found


LLAMA = "llama:size=7b,sequence=2048"
ROWS = (
    Row(
        name="ResNet-152, batch 32, fp32, SGD",
        model="torchvision:resnet152",
        batch_size=32,
        optimizer="sgd",
        published="5,605.75 MB",
    ),
    Row(name="BERT-base, batch 64 x 128, fp32, AdamW", model="hf:bert:head=classification,sequence=128", batch_size=64),
    Row(name="GPT-2, batch 8 x 1024, fp32, AdamW", model="hf:gpt2:sequence=1024", batch_size=8),
    Row(name="ViT-L/16, batch 64, fp32, AdamW", model="torchvision:vit_l_16", batch_size=64),
    Row(name="Llama-7B, batch 1 x 2048, bf16, AdamW", model=LLAMA, batch_size=1, precision="bf16"),
    Row(
        name="Llama-7B, the same, every block checkpointed",
        model=LLAMA,
        batch_size=1,
        precision="bf16",
        strategy="all",
    ),
    Row(
        name="Llama-7B, the same, fused AdamW",
        model=LLAMA,
        batch_size=1,
        precision="bf16",
        strategy="all",
        optimizer="torch:AdamW:fused=true",
    ),
    *(
        Row(
            name="Llama-7B, every block checkpointed, AdamW",
            model=LLAMA,
            batch_size=1,
            precision="bf16",
            strategy="all",
            device=device,
            outcome="out_of_memory",
        )
        for device in ("t4", "l4")
    ),
    Row(
        name="Llama-70B, rank 0 of 64 of FSDP2, batch 1 x 4096, bf16, AdamW, every block checkpointed",
        model="llama:size=70b,sequence=4096",
        batch_size=1,
        precision="bf16",
        strategy="all",
        ranks=64,
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only rows whose name or device holds one of these")
    parser.add_argument("-o", "--output", type=Path, help="write the table to this document")
    parser.add_argument("--trial", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.trial:
        run_trial(asked.trial)
        return 0
    first = os.getloadavg()[0]
    found = []
    for row in ROWS:
        if not asked.words or any(word in f"{row.name} {row.device}" for word in asked.words):
            found.append(rehearse(row))
            print(_line(found[-1]), *found[-1].broken(), flush=True)
    if asked.output:
        asked.output.write_text(document(found, first=first), encoding="utf-8")
    return int(any(one.broken() for one in found))


def rehearse(row: Row) -> Rehearsed:
    """Returns what the row gave: rehearsed by a new interpreter, then predicted."""
    wanted = case(row)
    began = time.monotonic()
    record, used = _run(wanted)
    seconds = time.monotonic() - began
    predicted, _ = _run(wanted.foreseen)
    return Rehearsed(
        row=row,
        outcome=record.outcome if record else "not ended",
        detail=(record.detail or "") if record else f"not within {LONGEST} s",
        peak_bytes=record.readings.peak_bytes if record else None,
        predicted_bytes=predicted.readings.peak_bytes if predicted else None,
        seconds=seconds,
        processor_seconds=used.ru_utime + used.ru_stime,
        host_bytes=used.ru_maxrss * 1024,
        torch=record.environment.torch if record and record.environment else None,
    )


def case(row: Row) -> Case:
    """Returns the row's step, to be rehearsed."""
    return Case(
        model=catalogue.resolve(Choice(row.model), models.TABLE),
        strategy=Choice(row.strategy),
        optimizer=catalogue.resolve(Choice(row.optimizer), optimizers.TABLE),
        batch_size=row.batch_size,
        precision=row.precision,
        device=f"rehearse:{row.device}",
        verify="off",
        ranks=row.ranks or UNSET,
        parallel=Choice("fsdp2") if row.ranks else UNSET,
    )


def _run(wanted: Case) -> tuple[Record | None, resource.struct_rusage]:
    """Returns the case's record, None where it takes too long, and what its processes used."""
    with tempfile.TemporaryFile() as printed:
        text = encode(Trial(case=wanted, passes=("memory",))).decode()
        command = ["timeout", str(LONGEST), sys.executable, "-m", "benchmarks.rehearse", "--trial", text]
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)  # used: by it, and by those that it waited for
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        return (None if status else decode(printed.read(), Record)), used


def run_trial(text: str) -> None:
    """Print the record of one trial."""
    trial: Trial = decode(text, Trial)
    with Local(rehearses=trial.case.is_rehearsed) as engine:
        (record,) = engine.run([trial])
    print(encode(record).decode())


def _line(one: Rehearsed) -> str:
    row = one.row
    cells = (
        row.name,
        row.device,
        row.published,
        _bytes(one.peak_bytes) if one.outcome == OK else one.outcome.replace("_", " "),
        _bytes(one.predicted_bytes),
        f"{one.seconds:.1f}",
        f"{one.processor_seconds:.1f}",
        bytes_text(one.host_bytes),
    )
    return f"| {' | '.join(cells)} |"


def _bytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 2**20:,.1f} MiB"


def document(found: list[Rehearsed], *, first: float) -> str:
    """Returns the page, with what broke a bound named below the table."""
    versions = {one.torch for one in found if one.torch}
    head = HEAD.format(
        seconds=SECONDS,
        host=bytes_text(HOST_BYTES),
        version=__version__,
        torch=", ".join(sorted(versions)),
        cores=os.cpu_count(),
        first=f"{first:.1f}",
        last=f"{os.getloadavg()[0]:.1f}",
    )
    rows = "".join(f"{_line(one)}\n" for one in found)
    broken = "".join(
        f"- {one.row.name} on {one.row.device}: {', '.join(one.broken())}\n" for one in found if one.broken()
    )
    return head + rows + (f"\nBounds that were broken here:\n\n{broken}" if broken else "\nNo bound was broken.\n")


if __name__ == "__main__":
    sys.exit(main())
