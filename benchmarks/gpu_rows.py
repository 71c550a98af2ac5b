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
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from benchmarks.instrument_rows import DEVICES, MODELS, Row, rows
from profiler.core import catalogue, gpu_specs
from profiler.core.case import OPERATORS, Case, Choice, Trial, decode, encode
from profiler.core.devices import FAKE, REHEARSE
from profiler.core.record import Record
from profiler.engines.local import Local
from profiler.training import models, optimizers, strategies

STAGE_SECONDS = 60.0
SELECTED_MODELS = {  # with their batches, besides those of `benchmarks.instrument`
    "transformer:layers=2,width=384,heads=6,sequence=200,dropout=0": 24,
    "transformer:layers=2,width=512,vocabulary=8192": 16,
    "mnist-cnn:channels=64": 64,
    "hf:bert:sequence=128": 16,
    "hf:gpt2:sequence=256": 4,
    "hf:llama:sequence=256,hidden_size=1024,intermediate_size=2816,num_hidden_layers=12,num_attention_heads=16,"
    "num_key_value_heads=16": 4,
    "hf:qwen2:sequence=256,hidden_size=896,intermediate_size=4864,num_hidden_layers=6,num_attention_heads=14,"
    "num_key_value_heads=2": 4,
    "hf:t5:sequence=128": 8,
    "hf:vit": 8,
    "hf:whisper": 4,
}
BATCHES = SELECTED_MODELS | {model: batch_size for kind in MODELS.values() for model, batch_size in kind.items()}
FOREACH, FUSED, SINGLE = (f"torch:AdamW:{word}" for word in ("foreach=true", "fused=true", "foreach=false"))
MLP, TRANSFORMER, RESNET = "mlp:width=1024,depth=8", "transformer:layers=4,width=256", "torchvision:resnet50"
BERT, GPT2 = "hf:bert:sequence=128", "hf:gpt2:sequence=256"
LLAMA, QWEN = (next(name for name in BATCHES if name.startswith(f"hf:{kind}:sequence")) for kind in ("llama", "qwen2"))
SELECTED = (  # model, precision, optimizer, strategy
    # matrix products, optimizers, casts
    (MLP, "fp32", "sgd", "none"),
    (MLP, "fp32", FOREACH, "all"),
    (MLP, "amp-bf16", FOREACH, "none"),
    (MLP, "bf16", FUSED, "none"),
    (MLP, "fp32", SINGLE, "none"),
    # attention, norms, sums
    (TRANSFORMER, "fp32", "sgd", "none"),
    (TRANSFORMER, "fp32", FOREACH, "all"),
    (TRANSFORMER, "fp32", FUSED, "selective:save=attention"),
    (TRANSFORMER, "fp32", "sgd", "offload"),
    (TRANSFORMER, "amp-bf16", FOREACH, "none"),
    (TRANSFORMER, "amp-bf16", FOREACH, "all"),
    (TRANSFORMER, "amp-fp16", "sgd", "none"),
    (TRANSFORMER, "bf16", FUSED, "recursive"),
    ("transformer:layers=2,width=384,heads=6,sequence=200,dropout=0", "bf16", "sgd", "none"),
    ("transformer:layers=2,width=512,vocabulary=8192", "fp32", FOREACH, "none"),  # backward of an embedding
    ("llama", "bf16", FUSED, "none"),
    ("llama", "fp32", "sgd", "all"),
    # convolutions, BatchNorm
    ("mnist-cnn:channels=64", "fp32", "sgd", "none"),
    ("mnist-cnn:channels=64", "fp32", "sgd", "segments:k=2"),
    ("cifar-resnet", "fp32", "sgd", "none"),
    ("cifar-resnet", "amp-bf16", FOREACH, "sqrt"),
    (RESNET, "fp32", "sgd", "none"),
    (RESNET, "fp32", "sgd", "all"),
    (RESNET, "amp-bf16", "sgd", "none"),
    (RESNET, "bf16", "sgd", "segments:k=2"),
    (RESNET, "fp32", "sgd", "selective:save=conv"),
    ("torchvision:densenet121", "fp32", "sgd", "none"),
    ("torchvision:efficientnet_b0", "fp32", "sgd", "none"),
    ("torchvision:mobilenet_v3_large", "amp-fp16", FOREACH, "none"),
    ("torchvision:inception_v3", "fp32", "sgd", "none"),
    ("torchvision:convnext_tiny", "fp32", FUSED, "none"),
    ("torchvision:swin_t", "fp32", "sgd", "none"),
    ("torchvision:swin_t", "fp32", "sgd", "all"),
    ("torchvision:vit_b_16", "amp-bf16", FOREACH, "recursive"),
    ("timm:convnext_nano", "bf16", FUSED, "none"),
    ("timm:ghostnet_100", "fp32", "sgd", "none"),
    # transformers
    (BERT, "fp32", FOREACH, "none"),
    (BERT, "fp32", FOREACH, "hf"),
    (BERT, "amp-bf16", FOREACH, "all"),
    (GPT2, "fp32", FOREACH, "none"),
    (GPT2, "bf16", FUSED, "all"),
    (LLAMA, "bf16", FOREACH, "none"),
    ("hf:t5:sequence=128", "fp32", "sgd", "none"),
    ("hf:whisper", "fp32", "sgd", "none"),
    ("hf:vit", "amp-bf16", FOREACH, "none"),
    (QWEN, "bf16", FOREACH, "none"),
)


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
    queue: SimpleQueue[Case] = SimpleQueue()
    for case in cases()[: asked.most]:
        queue.put(case)
    outcomes: list[str] = []
    lock, until = threading.Lock(), time.monotonic() + asked.seconds

    def work() -> None:
        with Local(stage_seconds=STAGE_SECONDS) as engine:
            while time.monotonic() < until:
                try:
                    case = queue.get_nowait()
                except Empty:
                    return
                passes = ("memory", OPERATORS) if case.strategy == "none" else ("memory",)
                (record,) = engine.run([Trial(case=case, passes=passes)])
                with lock, asked.file.open("ab") as file:
                    file.write(encode(record) + b"\n")
                    outcomes.append(record.outcome)
                    print(f"{record.readings.peak_bytes or 0:>15,} {_words(record)}", flush=True)

    threads = [threading.Thread(target=work) for _ in range(asked.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{outcomes.count('ok')} ok of {len(outcomes)}, {queue.qsize()} left")
    return int("ok" not in outcomes)


def cases() -> list[Case]:
    """The selection, then every other row that `benchmarks.instrument` has for its first device, each once."""
    selected = [
        Row(kind="selected", model=m, batch_size=BATCHES[m], device=DEVICES[0], precision=p, optimizer=o, strategy=s)
        for m, p, o, s in SELECTED
    ]
    found: dict[tuple[str, ...], Row] = {}
    others = (row for row in rows() if row.device == DEVICES[0] and ".py:" not in row.model)  # no paths in records
    for row in (*selected, *others):
        found.setdefault((row.model, row.precision, row.optimizer, row.strategy), row)
    return [
        Case(
            model=catalogue.resolve(Choice(row.model), models.TABLE),
            strategy=catalogue.resolve(Choice(row.strategy), strategies.TABLE),
            optimizer=catalogue.resolve(Choice(row.optimizer), optimizers.TABLE),
            batch_size=row.batch_size,
            precision=row.precision,
            device="cuda:0",
            verify="off",
        )
        for row in found.values()
    ]


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
    names = ("peak_bytes", "saved_bytes", "reserved_bytes")
    pairs = [(getattr(measured.readings, name), getattr(other.readings, name)) for name in names]
    return " ".join(f"{theirs / own - 1:+9.3%}" if own and theirs is not None else f"{'-':>9}" for own, theirs in pairs)


if __name__ == "__main__":
    sys.exit(main())
