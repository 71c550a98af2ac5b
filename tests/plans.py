"""Every strategy of the catalogue, with the options of tests, and plans as `gcprof plan` would write them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from profiler.core import catalogue, plan_file
from profiler.core.case import Choice
from profiler.core.plan_file import PlanFile, Segment
from profiler.training import models
from profiler.training.blocks import find_blocks
from profiler.training.strategies import fingerprint

EVERY = {
    "none": ["none"],
    "segments": ["segments:k=1", "segments:k=2", "segments:k=4", "segments:k=3,split=balanced"],
    "sqrt": ["sqrt"],
    "all": ["all"],
    "every": ["every:k=2", "every:k=3"],
    "first": ["first:n=2"],
    "recursive": ["recursive"],
    "from-start": ["from-start"],
    "selective": ["selective:save=matmul", "selective:save=conv", "selective:save=attention", "selective:save=mm+relu"],
    "offload": ["offload"],
    "plan": ["plan"],  # a file is written for each model
    "own": ["own"],
    "hf": [],  # on models of Hugging Face, in test_families
    "compile-budget": [],  # other kernels: equal but for rounding, in test_equality
    "_planted": [],  # wrong on purpose, in test_equality
}


class Saving(NamedTuple):
    """A run under a save option."""

    run: list[Any]
    save: str


def plan_of(module: nn.Module, blocks: Sequence[str], runs: Sequence[Any]) -> PlanFile:
    """`runs` are lists of indices of the blocks, and of runs within the run."""
    segments = tuple(_segment(run, blocks) for run in runs)
    return PlanFile(plan="by hand", segments=segments, fingerprint=fingerprint(module, tuple(blocks)))


def all_sorts(length: int) -> list[Any]:
    """Of 4 blocks or more: a run within a run, a block that is kept, and the last one under a save option."""
    half, quarter = length // 2, length // 4
    return [[list(range(quarter)), *range(quarter, half)], Saving([length - 1], "matmul")]


def written(strategy: str, model: str, folder: Path) -> str:
    """The strategy as it stands; for `plan`, one with a file that has all sorts of segments for this model."""
    if strategy != "plan":
        return strategy
    build, options = catalogue.load(Choice(model), models.TABLE)
    workload = build(**options)
    blocks = workload.blocks or find_blocks(workload.module)
    plan_file.write(plan_of(workload.module, blocks, all_sorts(len(blocks))), folder / "plan.json")
    return f"plan:file={folder / 'plan.json'}"


def _segment(run: Any, blocks: Sequence[str]) -> Segment:
    items, save = run if isinstance(run, Saving) else (run, None)
    inside = tuple(blocks[one] if isinstance(one, int) else _segment(one, blocks) for one in items)
    return Segment(blocks=inside, save=save)
