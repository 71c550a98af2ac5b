"""Steps on the CUDA device that is here, several at a time, for their bytes: `python -m benchmarks.gpu_rows FILE`.

Each row is a trial in a process of its own, whose allocator counts for itself, so that neighbors change no figure. The
records go to FILE, one a line, as they come: a run that is cut off loses what was at work. First the selection, which
meets every rule of prediction, then the rows of `benchmarks.instrument`. `--against` needs no GPU: under the torch that
measured the file's rows it rehearses and predicts the same steps for the GPU that the records name, and prints how far
each is from what was measured.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.instrument import READINGS, case_of
from benchmarks.instrument_rows import DEVICES, LLAMA, Row, rows
from profiler.core import gpu_specs
from profiler.core.case import OPERATORS, Case, Trial, decode, encode
from profiler.core.devices import FAKE, REHEARSE
from profiler.core.record import Record
from profiler.engines.local import Local

SELECTED = {  # by model and batch, besides those of `benchmarks.instrument`: precision, optimizer, strategy
    ("mlp:width=1024,depth=8", 8192): "fp32 sgd none, fp32 foreach all, amp-bf16 foreach none, bf16 fused none,"
    " fp32 single none",
    ("transformer:layers=4,width=256", 32): "fp32 sgd none, fp32 foreach all, fp32 fused selective:save=attention,"
    " fp32 sgd offload, amp-bf16 foreach none, amp-bf16 foreach all, amp-fp16 sgd none, bf16 fused recursive",
    ("transformer:layers=2,width=384,heads=6,sequence=200,dropout=0", 24): "bf16 sgd none",
    ("transformer:layers=2,width=512,vocabulary=8192", 16): "fp32 foreach none",  # backward of an embedding
    ("llama", 8): "bf16 fused none, fp32 sgd all",
    ("mnist-cnn:channels=64", 64): "fp32 sgd none, fp32 sgd segments:k=2",
    ("cifar-resnet", 64): "fp32 sgd none, amp-bf16 foreach sqrt",
    ("torchvision:resnet50", 8): "fp32 sgd none, fp32 sgd all, amp-bf16 sgd none, bf16 sgd segments:k=2,"
    " fp32 sgd selective:save=conv",
    ("torchvision:densenet121", 8): "fp32 sgd none",
    ("torchvision:efficientnet_b0", 8): "fp32 sgd none",
    ("torchvision:mobilenet_v3_large", 8): "amp-fp16 foreach none",
    ("torchvision:inception_v3", 8): "fp32 sgd none",
    ("torchvision:convnext_tiny", 8): "fp32 fused none",
    ("torchvision:swin_t", 8): "fp32 sgd none, fp32 sgd all",
    ("torchvision:vit_b_16", 8): "amp-bf16 foreach recursive",
    ("timm:convnext_nano", 8): "bf16 fused none",
    ("timm:ghostnet_100", 8): "fp32 sgd none",
    ("hf:bert:sequence=128", 16): "fp32 foreach none, fp32 foreach hf, amp-bf16 foreach all",
    ("hf:gpt2:sequence=256", 4): "fp32 foreach none, bf16 fused all",
    (f"hf:llama:sequence=256,{LLAMA}", 4): "bf16 foreach none",
    ("hf:t5:sequence=128", 8): "fp32 sgd none",
    ("hf:whisper", 4): "fp32 sgd none",
    ("hf:vit", 8): "amp-bf16 foreach none",
    (f"hf:qwen2:sequence=256,{LLAMA}", 4): "bf16 foreach none",
}
OPTIMIZERS = {
    "foreach": "torch:AdamW:foreach=true",
    "fused": "torch:AdamW:fused=true",
    "single": "torch:AdamW:foreach=false",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=120.0, help="no row begins later")
    parser.add_argument("--most", type=int, help="rows")
    parser.add_argument("--against", action="store_true", help="rehearse and predict what the file holds")
    asked = parser.parse_args()
    if asked.against:
        return against(asked.file, asked.most)
    until, every, local = time.monotonic() + asked.seconds, cases()[: asked.most], threading.local()

    def measured(case: Case) -> Record | None:
        if time.monotonic() > until:
            return None
        engine = vars(local).setdefault("engine", engines.enter_context(Local(stage_seconds=60.0)))
        passes = ("memory", OPERATORS) if case.strategy == "none" else ("memory",)
        (record,) = engine.run([Trial(case=case, passes=passes)])
        return record

    outcomes = []
    with ThreadPoolExecutor(asked.workers) as pool, ExitStack() as engines, asked.file.open("ab") as file:
        for one in as_completed([pool.submit(measured, case) for case in every]):
            if record := one.result():
                file.write(encode(record) + b"\n")
                file.flush()
                outcomes.append(record.outcome)
                print(f"{record.readings.peak_bytes or 0:>15,} {_words(record)}", flush=True)
    print(f"{outcomes.count('ok')} ok of {len(outcomes)}, {len(every) - len(outcomes)} left")
    return int("ok" not in outcomes)


def cases() -> list[Case]:
    """The selection, then every other row that `benchmarks.instrument` has for its first device, each once."""
    chosen = [
        Row(kind="selected", model=model, batch_size=batch_size, precision=precision, strategy=strategy,
            optimizer=OPTIMIZERS.get(optimizer, optimizer))
        for (model, batch_size), texts in SELECTED.items()
        for precision, optimizer, strategy in (text.split() for text in texts.split(","))
    ]  # fmt: skip
    chosen += [row for row in rows() if row.device == DEVICES[0] and ".py:" not in row.model]  # no paths in records
    return list(dict.fromkeys(case_of(row, "cuda:0") for row in chosen))


def against(file: Path, most: int | None) -> int:
    """Print how far the rehearsal and the blind prediction of each measured row are off."""
    measured = [decode(line, Record) for line in file.read_bytes().splitlines()]
    with Local(stage_seconds=600.0, rehearses=True) as rehearsing, Local(stage_seconds=600.0, measures=False) as plain:
        for record in [record for record in measured if record.outcome == "ok"][:most]:
            assert record.environment
            gpu = gpu_specs.word_of(record.environment.device_name or "")
            assert gpu, f"no file in configs/devices is of {record.environment.device_name}"
            apart = []
            for engine, device in ((rehearsing, REHEARSE + gpu), (plain, FAKE + gpu)):
                case = msgspec.structs.replace(record.case, device=device)
                (other,) = engine.run([Trial(case=case, passes=("memory",))])
                apart.append(_apart(record, other))
            print(f"rehearsed {apart[0]}   predicted {apart[1]}   {_words(record)}", flush=True)
    return 0


def _words(record: Record) -> str:
    case, detail = record.case, f": {record.detail}" if record.detail else ""
    words = f"{case.model} b{case.batch_size} {case.precision} {case.optimizer} {case.strategy}"
    return f"{words} {record.outcome}{detail}"[:300]


def _apart(measured: Record, other: Record) -> str:
    """The relative difference of peak, saved and reserved bytes."""
    if other.outcome != "ok":
        return f"{other.outcome}: {(other.detail or '')[:60]}"
    pairs = [(getattr(measured.readings, name), getattr(other.readings, name)) for name in READINGS]
    return " ".join(f"{theirs / own - 1:+9.3%}" if own and theirs is not None else f"{'-':>9}" for own, theirs in pairs)


if __name__ == "__main__":
    sys.exit(main())
