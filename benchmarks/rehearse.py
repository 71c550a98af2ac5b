"""Models at full size, rehearsed on GPUs that are not there: bytes, seconds, and the host's memory.

Each row is rehearsed by an engine of its own, in a process of its own, and then predicted. Fails where a rehearsal
takes more than 40 s or 12 GiB of the host's memory, or ends otherwise than it should. The static bytes of a rank are
held to the arithmetic of sharding by tests. `-o` writes the table.
"""

from typing import Any

import benchmarks
from benchmarks import Spent, called, made, parser, record, spent, table, write
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
    asked = parser(__doc__, "only rows whose name or device holds one of these").parse_args()
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
    case, records, used = row.case(f"rehearse:{row.device}"), list[Record | None](), list[Spent]()
    for each in (case, case.foreseen):
        words = called("benchmarks.rehearse", "alone", encode(each).decode())
        used.append(spent(("timeout", str(LONGEST), *words), may_fail=True))
        records.append(None if used[-1].exit_code else decode(used[-1].output, Record))
    rehearsed, clock, host_bytes = records[0], used[0].clock, used[0].nbytes
    outcome, detail = (rehearsed.outcome, rehearsed.detail) if rehearsed else (f"not within {LONGEST} s", "")
    broken = {
        f"{outcome}, not {row.outcome}: {detail}": outcome != row.outcome,
        f"{clock:.1f} s, not {row.seconds:.0f} s": clock > row.seconds,
        f"{bytes_text(host_bytes)} of the host, not {bytes_text(HOST_BYTES)}": host_bytes > HOST_BYTES,
    }
    peaks = [f"{peak / MIB:,.1f} MiB" if (peak := one and one.readings.peak_bytes) else "-" for one in records]
    told = peaks[0] if outcome == "ok" else outcome.replace("_", " ")
    took = f"{clock:.1f}", f"{used[0].processor:.1f}", bytes_text(host_bytes)
    return (row.name, row.device, row.published, told, peaks[1], *took), [why for why, is_so in broken.items() if is_so]


def alone(text: str) -> Record:
    """Return the record of a case, by an engine of its own."""
    case = decode(text, Case)
    with Local(rehearses=case.is_rehearsed) as engine:
        return record(engine, case)
