"""Everything that is checked on a CUDA machine, in at most 8 minutes: `just gpu [FOLDER]`.

First the `gpu` tests: where they fail, nothing else runs. Then the sweep of configs/gpu.toml, measured, rehearsed and
predicted; the accuracy of predictions; the published systems at full size; and three plans. Each step prints to a file
of its own and is ended when its seconds are over. `steps.txt` lists the steps with their exit codes and seconds. On a
hollow device (`GCPROF_HOLLOW=h200`) this is a dry run; `--small` takes less time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from profiler.rehearsal.device import ASKED

SECONDS = 480.0  # of all steps together
PATIENCE = 3  # times as long for a dry run, which traces and rehearses on whatever CPU there is


class Step(NamedTuple):
    """One command, and the most seconds that it may take."""

    name: str
    words: tuple[str, ...]
    seconds: float
    hollow: str | None = None  # the GPU to rehearse on instead of the one that is here


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where run folders, tables and texts go")
    parser.add_argument("--small", action="store_true", help="small models: a dry run")
    parser.add_argument("--rehearse", default="h200", help="the word of the GPU that is here, to be rehearsed too")
    parser.add_argument("--device", default="cuda:0", help="cpu tries the script itself where there is no CUDA")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    codes: dict[str, int | None] = {}
    patience = PATIENCE if asked.small else 1
    began = time.monotonic()
    lines = [f"{'step':22} {'exit code':>9} {'seconds':>8}"]
    for step in steps(asked.folder, asked.device, asked.rehearse, small=asked.small):
        left = patience * SECONDS - (time.monotonic() - began)
        codes[step.name], seconds = run(step, asked.folder, min(patience * step.seconds, left))
        code = codes[step.name]
        lines.append(f"{step.name:22} {'ended' if code is None else code:>9} {seconds:8.1f}")
        print(lines[-1], flush=True)
        (asked.folder / "steps.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        if step.name == "tests" and code:
            print((asked.folder / "tests.txt").read_text(encoding="utf-8")[-4000:])
            break
    return int(any(code != 0 for code in codes.values()))


def steps(folder: Path, device: str, gpu: str, *, small: bool) -> list[Step]:
    """What is run, in order: commands of gcprof, besides the tests and the benchmark."""
    python = sys.executable
    gcprof = (python, "-m", "profiler")
    size = ("--model", "mlp,mnist-cnn:channels=8", "--batch-size", "8") if small else ()
    models = ("mlp",) if small else ()
    sweep = (*gcprof, "run", "--config", "configs/gpu.toml", *size)
    plan = (*gcprof, "plan", "--device", device, "--budget", "75%", "--rounds", "1")
    return [
        Step("tests", (python, "-m", "pytest", "-q", "-n", "0", "-m", "gpu", "tests/test_gpu.py"), 150.0),
        Step("sweep", (*sweep, "--device", device, "--predict", "-o", f"{folder}/sweep"), 120.0),
        Step("sweep rehearsed", (*sweep, "--device", "cuda:0", "-o", f"{folder}/rehearsed"), 60.0, hollow=gpu),
        Step("compared", (*gcprof, "compare", f"{folder}/sweep", f"{folder}/rehearsed"), 10.0),
        Step(
            "accuracy",
            (python, "-m", "benchmarks.accuracy", *models, "--device", device, "-o", f"{folder}/accuracy.md"),
            90.0,
        ),
        *[Step(name, published(gcprof, name, folder, device, small=small), 60.0) for name in PUBLISHED],
        *[
            Step(name, (*plan, *(SMALL_PLAN if small else words), "-o", f"{folder}/{name}.json"), 60.0)
            for name, words in PLANS.items()
        ],
    ]


PUBLISHED = ("mnist-cnn", "bert", "resnet152", "cifar-resnet")
PLANS = {
    "plan-bert": ("hf:bert:head=classification,sequence=128", "--batch-size", "64", "--optimizer", "adamw"),
    "plan-resnet152": ("torchvision:resnet152", "--batch-size", "32"),
    "plan-cifar-resnet": ("cifar-resnet:depth=19", "--batch-size", "1280", "--optimizer", "momentum"),
}
SMALL_PLAN = ("transformer:layers=4,width=256", "--batch-size", "16")


def published(gcprof: tuple[str, ...], name: str, folder: Path, device: str, *, small: bool) -> tuple[str, ...]:
    """The command of a published system: measured on the device at full size, or predicted where models are small."""
    how = ("--predict",) if small else ("--device", device)
    return (*gcprof, "reproduce", name, *how, "-o", f"{folder}/{name}")


def run(step: Step, folder: Path, seconds: float) -> tuple[int | None, float]:
    """The step's exit code, None where it was ended, and its seconds. Its output goes to a file."""
    began = time.monotonic()
    environment = os.environ | ({ASKED: step.hollow} if step.hollow else {})
    with (folder / f"{step.name.replace(' ', '-')}.txt").open("w", encoding="utf-8") as output:
        try:
            done = subprocess.run(
                step.words,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=max(1.0, seconds),
                env=environment,
                check=False,
            )
            return done.returncode, time.monotonic() - began
        except subprocess.TimeoutExpired:
            return None, time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
