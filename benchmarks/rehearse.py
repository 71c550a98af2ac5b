"""Models at full size, rehearsed on GPUs that are not there: bytes, seconds, and the host's memory.

Each row is rehearsed by an engine of its own, in a process of its own, and then predicted. Fails where a rehearsal
takes more than 40 s or 12 GiB of the host's memory, or ends otherwise than it should, and where the static bytes of a
rank of FSDP2 are not those of the arithmetic of sharding. `-o` writes the table.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from profiler import __version__
from profiler.core import catalogue
from profiler.core.case import Case, Choice, Trial, decode, encode
from profiler.core.devices import Device
from profiler.core.record import Record
from profiler.core.units import GIB, MIB, bytes_text
from profiler.engines.local import Local
from profiler.training import models, optimizers

SECONDS, HOST_BYTES = 40.0, 12 * GIB
LONGEST = 300  # seconds: what takes longer is ended
WIDTH, WIDE, LAYERS, HEADS, KEY_HEADS, VOCABULARY = 8192, 28_672, 80, 64, 8, 32_000  # of Llama-70B
ITEM, GRANULE = 2, 512  # bytes: bf16; what CUDA's allocator rounds up to
ROOMY = str(Device(prefix="", name="h100", bytes=512 * GIB, context_bytes=0))  # for a step that does not fit an H100
HEAD = f"""# Models at full size, rehearsed

Each row is one training step of a model at full size, on a GPU that was not there: rehearsed by PyTorch's own CUDA
code, and predicted from a trace. Nothing here was measured. Seconds are of the whole rehearsal, from the start of a new
interpreter to the end of its processes; processor seconds are what they computed; the host's memory is the largest
resident set of any of them. Bounds: {SECONDS:.0f} s and {bytes_text(HOST_BYTES)}; 120 s for 4096 ranks. The static
bytes of ranks are those of the arithmetic of sharding.

Published is what others measured on a real GPU: 5,605.75 MB for ResNet-152 with batch 32, with TensorFlow (a comment
in the tests of [gradient-checkpointing](https://github.com/cybertronai/gradient-checkpointing)). No published figure of
the other rows is known to us; figures of other steps are in [published memory](published-memory.md).

Made by `python -m benchmarks.rehearse` with gcprof {__version__} and torch {version("torch")}, on
{os.cpu_count()} cores that other work shared.

| model | device | published | rehearsed | predicted | seconds | processor seconds | host's memory |
|---|---|--:|--:|--:|--:|--:|--:|
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A step to rehearse."""

    name: str
    model: str
    batch_size: int = 1
    strategy: str = "none"
    optimizer: str = "adamw"
    precision: str = "bf16"
    device: str = "h100"
    ranks: int = 0  # of FSDP2
    published: str = "-"
    outcome: str = "ok"
    seconds: float = SECONDS

    @property
    def case(self) -> Case:
        """The row's step, to be rehearsed."""
        return Case(
            model=catalogue.resolve(Choice(self.model), models.TABLE),
            strategy=Choice(self.strategy),
            optimizer=catalogue.resolve(Choice(self.optimizer), optimizers.TABLE),
            batch_size=self.batch_size,
            precision=self.precision,
            device=f"rehearse:{self.device}",
            verify="off",
            ranks=self.ranks or UNSET,
            parallel=Choice("fsdp2") if self.ranks else UNSET,
        )


EVERY = "Llama-7B, every block checkpointed, AdamW"
SEVEN: dict[str, Any] = {"model": "llama:size=7b,sequence=2048"}
SEVENTY: dict[str, Any] = {"model": "llama:size=70b,sequence=4096"}
ROWS = (
    Row(name="ResNet-152, batch 32, fp32, SGD", model="torchvision:resnet152", batch_size=32, precision="fp32",
        optimizer="sgd", published="5,605.75 MB"),
    Row(name="BERT-base, batch 64 x 128, fp32, AdamW", model="hf:bert:head=classification,sequence=128", batch_size=64,
        precision="fp32"),
    Row(name="GPT-2, batch 8 x 1024, fp32, AdamW", model="hf:gpt2:sequence=1024", batch_size=8, precision="fp32"),
    Row(name="ViT-L/16, batch 64, fp32, AdamW", model="torchvision:vit_l_16", batch_size=64, precision="fp32"),
    Row(name="Llama-7B, batch 1 x 2048, bf16, AdamW", **SEVEN),
    Row(name="Llama-7B, the same, every block checkpointed", strategy="all", **SEVEN),
    Row(name="Llama-7B, the same, fused AdamW", strategy="all", optimizer="torch:AdamW:fused=true", **SEVEN),
    Row(name=EVERY, strategy="all", device="t4", outcome="out_of_memory", **SEVEN),
    Row(name=EVERY, strategy="all", device="l4", outcome="out_of_memory", **SEVEN),
    Row(name="Llama-70B, rank 0 of 64 of FSDP2, batch 1 x 4096, bf16, AdamW, every block checkpointed", strategy="all",
        ranks=64, **SEVENTY),
    Row(name="Llama-70B, rank 0 of 4096, every block checkpointed", strategy="all", ranks=4096, seconds=120.0,
        **SEVENTY),
    Row(name="Llama-70B, rank 0 of 64, without checkpoints", ranks=64, device=ROOMY, **SEVENTY),
    Row(name="Llama-70B, rank 0 of 4096, without checkpoints", ranks=4096, device=ROOMY, seconds=120.0,
        **SEVENTY),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only rows whose name or device holds one of these")
    parser.add_argument("-o", "--output", type=Path, help="write the table to this document")
    parser.add_argument("--trial", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.trial:
        trial: Trial = decode(asked.trial, Trial)
        with Local(rehearses=trial.case.is_rehearsed) as engine:
            print(encode(next(engine.run([trial]))).decode())
        return 0
    text, broken = HEAD, ""
    for row in ROWS:
        if not asked.words or any(word in f"{row.name} {row.device}" for word in asked.words):
            line, wrong = rehearse(row)
            text += f"{line}\n"
            broken += f"- {row.name} on {row.device}: {', '.join(wrong)}\n" if wrong else ""
            print(line, *wrong, flush=True)
    text += f"\nBounds that were broken here:\n\n{broken}" if broken else "\nNo bound was broken.\n"
    if asked.output:
        asked.output.write_text(text, encoding="utf-8")
    return int(bool(broken))


def rehearse(row: Row) -> tuple[str, list[str]]:
    """Return a line of the table, of what a new interpreter rehearses and predicts, and the bounds that it breaks."""
    began = time.monotonic()
    record, used = _run(row.case)
    seconds, host_bytes = time.monotonic() - began, used.ru_maxrss * 1024
    predicted, _ = _run(row.case.foreseen)
    outcome = record.outcome if record else f"not within {LONGEST} s"
    wrong = [] if outcome == row.outcome else [f"{outcome}, not {row.outcome}: {record.detail if record else ''}"]
    if seconds > row.seconds:
        wrong.append(f"{seconds:.1f} s, not {row.seconds:.0f} s")
    if host_bytes > HOST_BYTES:
        wrong.append(f"{bytes_text(host_bytes)} of the host, not {bytes_text(HOST_BYTES)}")
    if row.ranks and record:
        expected, static = static_bytes(row.ranks), record.readings.static_bytes or {}
        wrong += [f"{name} {static.get(name)}, not {size}" for name, size in expected.items() if static[name] != size]
    cells = (
        row.name,
        row.device,
        row.published,
        _bytes(record) if outcome == "ok" else outcome.replace("_", " "),
        _bytes(predicted),
        f"{seconds:.1f}",
        f"{used.ru_utime + used.ru_stime:.1f}",
        bytes_text(host_bytes),
    )
    return f"| {' | '.join(cells)} |", wrong


def _run(case: Case) -> tuple[Record | None, Any]:
    """Return the case's record, None where it takes too long, and what its processes used."""
    with tempfile.TemporaryFile() as printed:
        text = encode(Trial(case=case, passes=("memory",))).decode()
        command = ["timeout", str(LONGEST), sys.executable, "-m", "benchmarks.rehearse", "--trial", text]
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)  # used: by it, and by those that it waited for
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        return (None if status else decode(printed.read(), Record)), used


def _bytes(record: Record | None) -> str:
    nbytes = record.readings.peak_bytes if record else None
    return "-" if nbytes is None else f"{nbytes / MIB:,.1f} MiB"


def static_bytes(ranks: int) -> dict[str, int]:
    """Parameters, gradients and the state of AdamW of Llama-70B on the first rank, as the allocator rounds them.

    Each parameter is cut along its first dimension, padded to a multiple of the ranks, and has a storage of its own;
    the gradients of a group share one. AdamW counts its steps on the host.
    """
    groups = [[-(-shape[0] // ranks) * math.prod(shape[1:]) * ITEM for shape in group] for group in _shapes()]
    parameters = sum(_rounded(one) for group in groups for one in group)
    gradients = sum(_rounded(sum(group)) for group in groups)
    return {"parameters": parameters, "gradients": gradients, "optimizer": 2 * parameters}


def _shapes() -> Iterator[list[tuple[int, ...]]]:
    """Of every group that is gathered at once: a layer each, then the embeddings, the last norm and the head."""
    keys = WIDTH // HEADS * KEY_HEADS
    attention = [(WIDTH, WIDTH), (keys, WIDTH), (keys, WIDTH), (WIDTH, WIDTH)]
    for _ in range(LAYERS):
        yield [*attention, (WIDE, WIDTH), (WIDE, WIDTH), (WIDTH, WIDE), (WIDTH,), (WIDTH,)]
    yield [(VOCABULARY, WIDTH), (WIDTH,), (VOCABULARY, WIDTH)]


def _rounded(nbytes: int) -> int:
    return -(-nbytes // GRANULE) * GRANULE


if __name__ == "__main__":
    sys.exit(main())
