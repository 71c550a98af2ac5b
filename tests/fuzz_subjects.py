"""The committed files that `tests.fuzz` damages, and the commands that read each: knows nothing of damage."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from profiler.core import plan_file
from profiler.core.case import encode_indented
from profiler.planning import chain as chains
from profiler.planning.chain import StageModule
from tests import examples

ROOT = Path(__file__).parents[1]


class Subject(NamedTuple):
    """A file with what stands beside it, and the commands that read it."""

    name: str
    target: str  # which of the files is damaged
    kind: str  # json, jsonl, toml
    files: dict[str, bytes]
    commands: tuple[str, ...]


@cache
def subjects() -> tuple[Subject, ...]:
    """Every file that is damaged; the runs, which most commands read, three times."""
    return (*(tuple(_runs()) * 3), *_configurations(), *_plans())


def _runs() -> Iterator[Subject]:
    with tempfile.TemporaryDirectory() as folder:
        made = {
            "troubled": examples.run(Path(folder) / "troubled", examples.troubled()).folder,
            "batches": examples.run(Path(folder) / "batches", examples.batches()).folder,
            "measured": ROOT / "results/reference/cpu/mnist-cnn",
            "predicted": ROOT / "results/reference/predicted-t4/mnist-cnn",
        }
        for name, path in made.items():
            texts = {file: (path / file).read_bytes() for file in ("manifest.json", "trials.jsonl")}
            files = {f"results/{run}/{file}": text for run in ("run", "other") for file, text in texts.items()}
            for file, kind in (("manifest.json", "json"), ("trials.jsonl", "jsonl")):
                yield Subject(f"{name}/{file}", f"results/run/{file}", kind, files, OF_RUNS)


def _configurations() -> Iterator[Subject]:
    for path in sorted((ROOT / "configs").glob("*.toml")):
        commands = ("run --dry-run --config file.toml", "run --dry-run --device fake:h100 --config file.toml")
        yield Subject(path.stem, "file.toml", "toml", {"file.toml": path.read_bytes()}, commands)
    for path in sorted((ROOT / "configs/devices").glob("*.toml"))[:5]:
        yield Subject(path.stem, "file.toml", "toml", {"file.toml": path.read_bytes()}, ("rates file.toml",))


def _plans() -> Iterator[Subject]:
    for path in sorted((ROOT / "tests/planning").glob("*.stages.json")):
        yield Subject(path.stem, "costs.json", "json", {"costs.json": path.read_bytes()}, OF_STAGES)
        named = _named(path)
        yield Subject(f"{path.stem}-named", "costs.json", "json", {"costs.json": named}, OF_STAGES)
    yield Subject("plan", "plan.json", "json", {"plan.json": PLAN}, ("plan-file plan.json",))


def _named(path: Path) -> bytes:
    """The chain as one of known modules, which code can be written for."""
    chain = chains.read(path)
    stages = (msgspec.structs.replace(one, blocks=(StageModule(name=one.name, parameters=()),)) for one in chain.stages)
    return encode_indented(msgspec.structs.replace(chain, stages=tuple(stages)))


PICTURES = ("frontier", "memory", "time", "samples", "heat", "growth")
OF_RUNS = (
    "show run", "show run --width 60", "show run --samples", "show run --json", "show run --over batch_size",
    "show run --format md", "show run --over batch_size,strategy", "list", "list --json", "validate run",
    "validate run --json", "merge run other -o merged",
    *(f"export run --to {kind}" for kind in ("csv", "md", "latex", "json")),
    *(f"compare {pair} --format {kind}" for pair in ("run other", "other run") for kind in ("table", "json", "csv")),
    "compare run other --allow-different torch", "compare run other --fail-on peak:>2%", "report run -o report.html",
    "report run other -o report.html --redact all", "run --resume run",
    *(f"plot run --kind {kind} -o plot.svg" for kind in PICTURES),
)  # fmt: skip
OF_STAGES = (
    "plan --stages costs.json --frontier", "plan --stages costs.json --frontier --json",
    "plan --stages costs.json --budget 60%", "plan --stages costs.json --budget 60% --json",
    "plan --stages costs.json --budget max", "plan --stages costs.json --budget 1GiB -o plan.json",
    "plan --stages costs.json --budget 60% --levels 2", "plan --stages costs.json --budget 60% --emit python",
)  # fmt: skip
PLAN = encode_indented(
    plan_file.PlanFile(
        plan="[1-2] 3:matmul [4 [5] 6]",
        segments=(
            plan_file.Segment(blocks=("a", "b")),
            plan_file.Segment(blocks=("c",), save="matmul"),
            plan_file.Segment(blocks=("d", plan_file.Segment(blocks=("e",)), "f")),
        ),
        fingerprint=dict.fromkeys("abcdef", ("weight float32 64 x 3",)),
    )
)
