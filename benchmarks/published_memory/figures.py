"""The published figures: what was run, where it is written, and how the step is rebuilt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

MIB, GIB = 2**20, 2**30
FOLDER = "benchmarks/published_memory"
FUSED = "torch:AdamW:fused=true"

Reading = Literal["peak", "reserved"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where figures were published, and what they say of themselves."""

    title: str
    url: str
    says: str


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One published number, and the step that it is of."""

    source: str  # a key of SOURCES
    name: str
    gpu: str  # as published
    device: str  # of configs/devices
    torch: str
    nbytes: int
    model: str
    reading: Reading = "peak"
    within_bytes: int = 0  # half of the last digit that was published
    precision: str = "fp32"
    optimizer: str = "sgd"
    batch_size: int | None = None
    keeps_gradients: bool = False  # from one step to the next
    ranks: int = 0  # that train together by DDP
    is_convolutional: bool = False
    corrected: str | None = None  # what was wrong in the first rebuilding; None: it was met, or missed, blind
    cause: str | None = None  # of an error beyond the bounds


SOURCES = {
    "liger": Source(
        title="Liger-Kernel, benchmark data",
        url="https://github.com/linkedin/Liger-Kernel/blob/main/benchmark/data/all_benchmark_data.csv",
        says="`max_memory_allocated` of a forward and backward in MiB, the median of ten; rows of the provider"
        " `huggingface` or `torch`, mode `full`",
    ),
    "scratch": Source(
        title="LLMs-from-scratch, chapter 5, training speed",
        url="https://github.com/rasbt/LLMs-from-scratch/blob/main/ch05/10_llm-training-speed/README.md",
        says="`memory_reserved` after an epoch of training in GiB",
    ),
}


def _kernel(
    name: str,
    words: str,
    mib: float,
    *,
    device: str = "a100-80",
    torch: str = "2.4",
    precision: str = "fp32",
    batch_size: int | None = None,
    **rest: Any,
) -> Figure:
    """A row of Liger-Kernel's data: its version of torch is not in the data; it is that of the row's date."""
    gpus = {"a100-80": "A100-80", "h100": "H100", "rtx-4090": "RTX 4090", "rtx-3090": "RTX 3090", "b200": "B200"}
    return Figure(
        source="liger",
        name=name,
        gpu=gpus[device],
        device=device,
        torch=torch,
        nbytes=round(mib * MIB),
        model=f"{FOLDER}/kernels.py:{words}",
        precision=precision,
        batch_size=batch_size,
        keeps_gradients=True,
        **rest,
    )


def _listed() -> Iterator[Figure]:
    """Those that were known to be met before this benchmark was written."""
    for vocabulary, mib in ((4096, 1280.1259765625), (32_768, 10240.1259765625), (131_072, 40960.125)):
        yield _kernel(f"cross entropy, vocabulary {vocabulary}", f"cross_entropy:vocabulary={vocabulary}", mib)
    for rows, mib in ((4096, 6092.2822265625), (8192, 9162.3134765625), (16_384, 15302.3759765625), (32_768, 27582.5)):
        yield _kernel(
            f"head + cross entropy, {rows} rows",
            f"head_cross_entropy:rows={rows}",
            mib,
            precision="bf16",
            corrected="the weight of the other kernel's head is there too (1,002 MiB)",
        )
    for rows, mib in ((1024, 10609.005859375), (8192, 56368.015625)):
        yield _kernel(f"heads + JSD, {rows} rows", f"heads_jsd:rows={rows}", mib, device="h100", precision="bf16")
    for width, mib in ((1024, 80.0625), (16_384, 1280.53125)):
        yield _kernel(f"LayerNorm, width {width}", f"layer_norm:width={width}", mib, device="h100", torch="2.4-2.7")
    for time, mib in ((1024, 1294.25), (8192, 6372.25)):
        yield _kernel(f"SwiGLU, time {time}", f"swiglu:time={time}", mib, precision="bf16")
    for time, mib in ((1024, 1992.25), (8192, 12212.25)):
        yield _kernel(f"GEGLU, time {time}", f"geglu:time={time}", mib, precision="bf16")
    yield _kernel(
        "MLP of tiled SwiGLU, time 4096",
        "swiglu:inner=4096,time=4096,width=2048",
        688.25,
        batch_size=2,
        device="rtx-4090",
        precision="bf16",
    )
    scratch = "GPT-2 124M, 8 x 1024"
    for name, words, precision, optimizer, gib in (
        ("fp32, AdamW", "gpt", "fp32", "adamw", 26.2617),
        ("mask on the fly, fused AdamW", "gpt:mask=passing", "fp32", FUSED, 26.2422),
        ("bf16", "gpt:mask=passing", "bf16", FUSED, 13.7871),
        ("bf16, PyTorch's LayerNorm and GELU", "gpt:mask=passing,own=false", "bf16", FUSED, 11.5645),
        ("bf16, FlashAttention", "gpt:mask=flash,own=false", "bf16", FUSED, 5.9004),
    ):
        yield Figure(
            source="scratch",
            name=f"{scratch}, {name}",
            gpu="A100",
            device="a100-40",
            torch="2.6",
            reading="reserved",
            nbytes=round(gib * GIB),
            within_bytes=round(0.00005 * GIB),
            model=f"{FOLDER}/gpt.py:{words}",
            precision=precision,
            optimizer=optimizer,
            batch_size=8,
        )


def figures() -> list[Figure]:
    """Every figure, in the order of the table."""
    return [*_listed()]
