"""Predicted against measured peak and saved bytes, every strategy of the catalogue: `python -m benchmarks.accuracy`.

On the CPU, whose allocator's events are exact, or with `--device cuda:0` on a GPU. Fails where an error is above its
bound: 0.1 % for perceptrons and transformers, 1 % for convolutions, calibrated with what the operators of `none` were
measured to take. The errors without calibration stand beside. `-o` writes the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from profiler import __version__
from profiler.core import catalogue, gpu_specs
from profiler.core.case import FAKE, OPERATORS, Calibration, Case, Choice, Trial
from profiler.core.record import Readings, Record
from profiler.engines.local import Local
from profiler.training import models, strategies
from tests.plans import written

STRATEGIES = (
    "segments:k=2",
    "segments:k=2,split=balanced",
    "sqrt",
    "all",
    "every:k=2",
    "first:n=2",
    "recursive",
    "from-start",
    "selective:save=matmul",
    "selective:save=conv",
    "selective:save=attention",
    "offload",
    "plan",  # of all sorts of segments
    "hf",
    "compile-budget",
)
BLIND = ("none", "segments:k=2", "sqrt", "all")  # predicted without calibration too
EXACT, NEAR = 0.001, 0.01
MODELS = {  # with the bound of each, the batch and the optimizer
    "mlp": (EXACT, 64, "adamw"),
    "dense-chain:widths=64+64+64+64": (EXACT, 64, "momentum"),
    "transformer:layers=4,width=64,sequence=64": (EXACT, 4, "adamw"),
    "transformer:layers=6,width=32,sequence=128,dropout=0": (EXACT, 2, "sgd"),
    "hf:bert:hidden_size=64,intermediate_size=128,num_attention_heads=2,num_hidden_layers=4": (EXACT, 4, "adamw"),
    "hf:gpt2:n_embd=64,n_head=2,n_layer=4": (EXACT, 2, "adamw"),
    "mnist-cnn:channels=16": (NEAR, 16, "sgd"),
    "cifar-resnet:depth=3": (NEAR, 16, "momentum"),
    "torchvision:resnet18:size=64": (NEAR, 4, "sgd"),
    "torchvision:resnet50:size=64": (NEAR, 4, "sgd"),
    "torchvision:densenet121:size=64": (NEAR, 4, "sgd"),
    "torchvision:mobilenet_v3_large:size=64": (NEAR, 4, "sgd"),
    "torchvision:efficientnet_b0:size=64": (NEAR, 4, "sgd"),
    "torchvision:convnext_tiny:size=64": (NEAR, 4, "sgd"),
    "torchvision:vit_b_16:size=64": (NEAR, 2, "sgd"),
    "torchvision:swin_t:size=64": (NEAR, 4, "sgd"),
}
HEAD = """# Predicted against measured

Peak and saved bytes of one training step on {device}, under every strategy of the catalogue that the model can have:
predicted without running it, and measured by the allocator itself. The worst error of all strategies, calibrated
with what the operators of the step without checkpointing were measured to take besides their results, and without (the
worst of `none`, `segments:k=2`, `sqrt` and `all`). On a CPU the latter is what oneDNN's convolutions work in, which it
chooses by the processor: that of ResNet-18 was -0.4 % on one machine and -38 % on another.
Made by `python -m benchmarks.accuracy` with gcprof {version} and torch {torch}.

| model | strategies | peak, calibrated | saved | peak, not calibrated | of strategy |
|---|--:|--:|--:|--:|---|
"""


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """How far one prediction is from its measurement, as fractions."""

    strategy: str
    peak: float
    saved: float
    uncalibrated_peak: float | None  # of those in BLIND


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only models whose names hold one of these")
    parser.add_argument("-o", "--output", type=Path, help="write the table to this file")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N")
    asked = parser.parse_args()
    chosen = [model for model in MODELS if not asked.words or any(word in model for word in asked.words)]
    lines, missed, torch, name = [], [], None, None
    with TemporaryDirectory() as folder, Local(stage_seconds=600.0) as engine:
        for model in chosen:
            bound, batch, optimizer = MODELS[model]
            none = case(model, batch, optimizer, asked.device)
            (baseline,) = engine.run([Trial(case=none, passes=("memory", OPERATORS))])
            assert baseline.outcome == "ok", baseline.detail
            assert baseline.environment, "an ok record has one"
            torch, name = baseline.environment.torch, baseline.environment.device_name
            word = gpu_specs.word_of(name or "") or none.twin.device
            errors = list(compare(engine, baseline, Path(folder), FAKE + word))
            missed += [(model, one) for one in errors if max(abs(one.peak), abs(one.saved)) > bound]
            lines.append(row(model, errors))
            print(lines[-1], end="", flush=True)
    for model, one in missed:
        print(f"above its bound: {model} {one}", file=sys.stderr)
    if asked.output:
        head = HEAD.format(version=__version__, torch=torch, device="a CPU" if asked.device == "cpu" else name)
        before = asked.output.read_text(encoding="utf-8") if asked.output.is_file() else ""
        _, mark, others = before.partition("\n## ")  # sections that other benchmarks wrote
        asked.output.write_text(head + "".join(lines) + mark + others, encoding="utf-8")
    return int(bool(missed))


def compare(engine: Local, baseline: Record, folder: Path, device: str) -> Iterator[Error]:
    """The errors of every strategy that can be both measured and predicted; others say why not.

    The folder is for the file of a plan; `device` is the one to predict for, the one that was measured.
    """
    hidden = baseline.readings.hidden_bytes
    for strategy in ("none", *STRATEGIES):
        chosen = catalogue.resolve(Choice(written(strategy, baseline.case.model, folder)), strategies.TABLE)
        real = msgspec.structs.replace(baseline.case, strategy=chosen)
        fake = msgspec.structs.replace(real, device=device)
        trials = [
            Trial(case=fake, passes=("memory",), calibration=Calibration(hidden_bytes=hidden)),
            Trial(case=real, passes=("memory",)),
        ]
        trials += [Trial(case=fake, passes=("memory",))] if strategy in BLIND else []
        found = []
        for trial in trials:  # each by itself: an engine runs no case twice, and would tell the blind what it measured
            (record,) = engine.run([trial])
            found.append(record)
            if record.outcome != "ok":  # what cannot be foreseen need not be measured
                print(
                    f"  {strategy}: {record.case.device} {record.outcome}: {record.detail}", file=sys.stderr, flush=True
                )
                break
        else:
            yield _error(strategy, *(record.readings for record in found))


def _error(strategy: str, calibrated: Readings, measured: Readings, blind: Readings | None = None) -> Error:
    return Error(
        strategy=strategy,
        peak=apart(calibrated.peak_bytes, measured.peak_bytes),
        saved=apart(calibrated.saved_bytes, measured.saved_bytes),
        uncalibrated_peak=apart(blind.peak_bytes, measured.peak_bytes) if blind else None,
    )


def apart(predicted: int | None, measured: int | None) -> float:
    assert predicted is not None, "an ok record was predicted"
    assert measured, "an ok record was measured"
    return predicted / measured - 1


def case(model: str, batch: int, optimizer: str, device: str) -> Case:
    return Case(
        model=catalogue.resolve(Choice(model), models.TABLE),
        strategy=Choice("none"),
        optimizer=Choice(optimizer),
        batch_size=batch,
        device=device,
        verify="off",
    )


def row(model: str, errors: list[Error]) -> str:
    """One line of the table: the worst of all strategies."""
    peak = max(errors, key=lambda one: abs(one.peak)).peak
    saved = max(errors, key=lambda one: abs(one.saved)).saved
    blind = max(
        (one for one in errors if one.uncalibrated_peak is not None), key=lambda one: abs(one.uncalibrated_peak)
    )
    texts = (f"{value * 100:+.3f} %" for value in (peak, saved, blind.uncalibrated_peak))
    return f"| `{model}` | {len(errors)} | {' | '.join(texts)} | `{blind.strategy}` |\n"


if __name__ == "__main__":
    sys.exit(main())
