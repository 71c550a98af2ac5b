"""Every model family traced at full size, without a device: `python -m benchmarks.full_size [WORD ...]`.

All classification models of torchvision and the transformers families, each in a process of its own; with words, only
those whose names hold one. Fails where one cannot be traced, or where Llama-7B (batch 1, sequence 2048, bf16, AdamW)
takes more than 60 s or 4 GiB of the host's memory.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import msgspec

from profiler.core import catalogue
from profiler.core.case import Case, Choice, Trial
from profiler.core.units import bytes_text
from profiler.training import models

LLAMA = "hf:llama:sequence=2048"
LLAMA_SECONDS, LLAMA_BYTES = 60.0, 4 * 2**30
SMALL_BATCH = ("hf:llama", "hf:mistral", "hf:mixtral", "hf:qwen2")
HUGGING_FACE = (
    "hf:bert:head=classification",
    "hf:gpt2",
    LLAMA,
    "hf:mistral",
    "hf:mixtral",
    "hf:qwen2",
    "hf:t5",
    "hf:bart",
    "hf:vit",
    "hf:whisper",
)


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """What tracing one model took, and what it found. Seconds and bytes."""

    seconds: float
    host_bytes: int
    peak_bytes: int
    num_blocks: int


def main() -> int:
    words = sys.argv[1:]
    failed = []
    for model in (*torchvision(), *HUGGING_FACE):
        if words and not any(word in model for word in words):
            continue
        done = subprocess.run([sys.executable, "-c", CODE, model], capture_output=True, check=False)
        if done.returncode:
            failed.append(model)
            print(f"{model:40} {done.stderr.decode().strip().splitlines()[-1]}", flush=True)
            continue
        found = msgspec.json.decode(done.stdout.splitlines()[-1], type=Traced)
        told = f"{found.num_blocks} blocks, peak {bytes_text(found.peak_bytes)}"
        print(f"{model:40} {found.seconds:5.1f} s, {bytes_text(found.host_bytes)} of the host; {told}", flush=True)
        if model == LLAMA and (found.seconds > LLAMA_SECONDS or found.host_bytes > LLAMA_BYTES):
            failed.append(f"{model} is above its bound")
    print(f"\nfailed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


CODE = (
    "import sys; from benchmarks.full_size import trace; import msgspec; "
    "print(msgspec.json.encode(trace(sys.argv[1])).decode())"
)


def trace(model: str) -> Traced:
    """One step of one model, for CUDA."""
    from profiler.predicting.prediction import predict

    is_large = model.startswith(SMALL_BATCH)
    case = Case(
        model=catalogue.resolve(Choice(model), models.TABLE),
        strategy=Choice("none"),
        optimizer=Choice("adamw"),
        batch_size=1 if is_large else 2,
        precision="bf16" if is_large else "fp32",
        device="fake:cuda",
    )
    began = time.monotonic()
    record = predict(Trial(case=case))
    assert record.built, "it was traced"
    assert record.readings.peak_bytes, "and has a peak"
    return Traced(
        seconds=time.monotonic() - began,
        host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        peak_bytes=record.readings.peak_bytes,
        num_blocks=record.built.num_blocks,
    )


def torchvision() -> list[str]:
    """Every classification model that torchvision lists."""
    import torchvision

    return [f"torchvision:{name}" for name in torchvision.models.list_models(module=torchvision.models)]


if __name__ == "__main__":
    sys.exit(main())
