"""Models at full size, rehearsed on GPUs that are not there: bytes, seconds, and the host's memory.

Each row is rehearsed by an engine of its own, in a process of its own, and then predicted. Fails where a rehearsal
takes more than 40 s or 12 GiB of the host's memory, or ends otherwise than it should. The static bytes of a rank are
held to the arithmetic of sharding by tests. `-o` writes the table.
"""

import argparse
import sys
from typing import Any

import benchmarks
from benchmarks import Spent, made, parser, record, spent, table, write
from profiler.core.case import Case, decode, encode
from profiler.core.gpu_specs import Device
from profiler.core.record import Record
from profiler.core.units import GIB, MIB, bytes_text
from profiler.engines.local import Local

SECONDS, HOST_BYTES = 40.0, 12 * GIB
LONGEST = 300  # seconds: what takes longer is ended
ROOMY = str(Device(prefix="", name="h100", bytes=512 * GIB, context_bytes=0))  # for a step that does not fit an H100
HEAD = "model | device | published: | rehearsed: | predicted: | seconds: | processor seconds: | host's memory:"


class Row(benchmarks.Row, frozen=True, kw_only=True):
    """A step to rehearse."""

    name: str
    batch_size: int | None = 1
    optimizer: str = "adamw"
    precision: str = "bf16"
    parallel: str = "fsdp2"
    published: str = "-"
    outcome: str = "ok"
    seconds: float = SECONDS


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
    arguments = parser(__doc__, "only rows whose name or device holds one of these")
    arguments.add_argument("--case", help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if asked.case:
        case = decode(asked.case, Case)
        with Local(rehearses=case.is_rehearsed) as engine:
            print(encode(record(engine, case)).decode())
        return 0
    lines, broken = [], ""
    for row in ROWS:
        if not asked.names or any(word in f"{row.name} {row.device}" for word in asked.names):
            cells, wrong = rehearse(row)
            lines.append(cells)
            broken += f"- {row.name} on {row.device}: {', '.join(wrong)}\n" if wrong else ""
            print(*cells, *wrong, sep=" | ", flush=True)
    said = f"Bounds that were broken here:\n\n{broken}" if broken else "No bound was broken.\n"
    write(asked.output, "rows", f"{made('rehearse', on_cores=True)}\n\n{table(HEAD, lines)}\n{said}")
    return int(bool(broken))


def rehearse(row: Row) -> tuple[tuple[str, ...], list[str]]:
    """Return a line of the table, of what a new interpreter rehearses and predicts, and the bounds that it breaks."""
    case = row.case(f"rehearse:{row.device}")
    rehearsed, used = _run(case)
    predicted, _ = _run(case.foreseen)
    outcome, detail = (rehearsed.outcome, rehearsed.detail) if rehearsed else (f"not within {LONGEST} s", "")
    wrong = [] if outcome == row.outcome else [f"{outcome}, not {row.outcome}: {detail}"]
    if used.clock > row.seconds:
        wrong.append(f"{used.clock:.1f} s, not {row.seconds:.0f} s")
    if used.nbytes > HOST_BYTES:
        wrong.append(f"{bytes_text(used.nbytes)} of the host, not {bytes_text(HOST_BYTES)}")
    peak = _bytes(rehearsed) if outcome == "ok" else outcome.replace("_", " ")
    took = f"{used.clock:.1f}", f"{used.processor:.1f}", bytes_text(used.nbytes)
    return (row.name, row.device, row.published, peak, _bytes(predicted), *took), wrong


def _run(case: Case) -> tuple[Record | None, Spent]:
    """Return the case's record, None where it takes too long, and what its processes used."""
    command = ("timeout", str(LONGEST), sys.executable, "-m", "benchmarks.rehearse", "--case", encode(case).decode())
    used = spent(command, may_fail=True)
    return (None if used.exit_code else decode(used.output, Record)), used


def _bytes(found: Record | None) -> str:
    nbytes = found.readings.peak_bytes if found else None
    return "-" if nbytes is None else f"{nbytes / MIB:,.1f} MiB"


if __name__ == "__main__":
    sys.exit(main())
