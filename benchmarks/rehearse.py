"""Models at full size, rehearsed on GPUs that are not there: bytes, seconds, and the host's memory.

Each row is one `gcprof rehearse` in a process of its own, and one `gcprof predict` of the same step. Fails where a
rehearsal takes more than 40 s or 12 GiB of the host's memory, or ends otherwise than it should. `-o` writes the table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from profiler import __version__
from profiler.core.units import bytes_text

SECONDS, HOST_BYTES = 40.0, 12 * 2**30
LONGEST = 300  # seconds: what takes longer is ended
OK, OUT_OF_MEMORY = "ok", "out of memory"
LLAMA = ("llama:size=7b,sequence=2048", "--batch-size", "1", "--precision", "bf16")
HEAD = """# Models at full size, rehearsed

Each row is one training step of a model at full size, on a GPU that was not there: rehearsed by PyTorch's own CUDA code
(`gcprof rehearse`), and predicted from a trace (`gcprof predict`). Nothing here was measured. Seconds are of the whole
command, from the start of its process to its end; the host's memory is the largest resident set of any of its
processes. Bounds: {seconds:.0f} s and {host}.

Published is what others measured on a real GPU: ResNet-152 with batch 32 took 5,605.75 MB
([pytorch_memonger](https://github.com/prigoyal/pytorch_memonger)). No published figure of the other rows is known to
us.

Made by `python -m benchmarks.rehearse` with gcprof {version} and torch {torch}, on {cores} cores with a load of {load}
({first} before, {last} after).

| model | device | published | rehearsed | predicted | seconds | host's memory |
|---|---|--:|--:|--:|--:|--:|
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A step to rehearse."""

    name: str
    words: tuple[str, ...]  # after `gcprof rehearse`, and after `gcprof predict`
    device: str = "h100"
    published: str = "-"
    outcome: str = OK


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a row gave."""

    row: Row
    outcome: str
    peak_bytes: int | None
    predicted_bytes: int | None
    seconds: float
    host_bytes: int
    torch: str | None

    def broken(self) -> list[str]:
        """Returns the bounds that the row breaks."""
        found = []
        if self.outcome != self.row.outcome:
            found.append(f"{self.outcome}, not {self.row.outcome}")
        if self.seconds > SECONDS:
            found.append(f"{self.seconds:.1f} s, not {SECONDS:.0f} s")
        if self.host_bytes > HOST_BYTES:
            found.append(f"{bytes_text(self.host_bytes)} of the host, not {bytes_text(HOST_BYTES)}")
        return found


ROWS = (
    Row(
        name="ResNet-152, batch 32, fp32, SGD",
        words=("torchvision:resnet152", "--batch-size", "32"),
        published="5,605.75 MB",
    ),
    Row(
        name="BERT-base, batch 64 x 128, fp32, AdamW",
        words=("hf:bert:head=classification,sequence=128", "--batch-size", "64", "--optimizer", "adamw"),
    ),
    Row(
        name="GPT-2, batch 8 x 1024, fp32, AdamW",
        words=("hf:gpt2:sequence=1024", "--batch-size", "8", "--optimizer", "adamw"),
    ),
    Row(
        name="ViT-L/16, batch 64, fp32, AdamW",
        words=("torchvision:vit_l_16", "--batch-size", "64", "--optimizer", "adamw"),
    ),
    Row(name="Llama-7B, batch 1 x 2048, bf16, AdamW", words=(*LLAMA, "--optimizer", "adamw")),
    Row(
        name="Llama-7B, the same, every block checkpointed",
        words=(*LLAMA, "--optimizer", "adamw", "--strategies", "all"),
    ),
    Row(
        name="Llama-7B, the same, fused AdamW",
        words=(*LLAMA, "--optimizer", "torch:AdamW:fused=true", "--strategies", "all"),
    ),
    *(
        Row(
            name="Llama-7B, every block checkpointed, AdamW",
            words=(*LLAMA, "--optimizer", "adamw", "--strategies", "all"),
            device=device,
            outcome=OUT_OF_MEMORY,
        )
        for device in ("t4", "l4")
    ),
    Row(
        name="Llama-70B, FSDP2, rank 0 of 64, batch 1 x 4096, bf16, AdamW, every block checkpointed",
        words=("llama:size=70b,sequence=4096", "--batch-size", "1", "--precision", "bf16", "--optimizer", "adamw",
               "--strategies", "all", "--ranks", "64", "--parallel", "fsdp2"),
    ),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only rows whose name or device holds one of these")
    parser.add_argument("-o", "--output", type=Path, help="write the table to this document")
    asked = parser.parse_args()
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
    """Returns what the row gave: its rehearsal by one command, its prediction by another."""
    strategy = () if "--strategies" in row.words else ("--strategies", "none")
    words = (*row.words, *strategy, "--device", row.device, "--json")
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        answer, host_bytes = _gcprof("rehearse", *words, "-o", str(Path(folder) / "run"))
        seconds = time.monotonic() - began
    predicted, _ = _gcprof("predict", *words)
    record = _record(answer)
    return Rehearsed(
        row=row,
        outcome=_outcome(record),
        peak_bytes=record.get("readings", {}).get("peak_bytes"),
        predicted_bytes=_record(predicted).get("readings", {}).get("peak_bytes"),
        seconds=seconds,
        host_bytes=host_bytes,
        torch=record.get("environment", {}).get("torch"),
    )


def _gcprof(*words: str) -> tuple[str, int]:
    """Returns what the command printed, and the largest resident set of any of its processes in bytes."""
    with tempfile.TemporaryFile() as printed:
        command = ["timeout", str(LONGEST), sys.executable, "-m", "profiler", *words]
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.DEVNULL)
        _, _, used = os.wait4(process.pid, 0)  # its own, and those of the processes that it waited for
        printed.seek(0)
        return printed.read().decode(), _resident(used)


def _resident(used: resource.struct_rusage) -> int:
    return used.ru_maxrss * 1024


def _record(answer: str) -> dict:
    """Returns the only record of a JSON document; {} where the command did not end."""
    return json.loads(answer)["records"][0] if answer else {}


def _outcome(record: dict) -> str:
    return str(record.get("outcome", "not ended")).replace("oom", OUT_OF_MEMORY).replace("_", " ")


def _line(one: Rehearsed) -> str:
    row = one.row
    cells = (
        row.name,
        row.device,
        row.published,
        _bytes(one.peak_bytes) if one.outcome == OK else one.outcome,
        _bytes(one.predicted_bytes),
        f"{one.seconds:.1f}",
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
        load="processes that want a core",
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
