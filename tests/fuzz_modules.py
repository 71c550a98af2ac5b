"""Modules of users, made by chance, against plain PyTorch: `just fuzz-modules`.

Each is measured under `none`, under a checkpoint for every block, and under others by chance, in this process. What
gcprof says of its gradients must be what two plain runs of two steps and one with the same blocks under
`torch.utils.checkpoint` by hand say: no `bit-equal` and no `within noise` that they refute, no `invalid` that they do
not find. A module is made from the seed and its number: `--first NUMBER --times 1` makes the same one again.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from profiler.analysis.rows import verdict
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.core.record import Record
from profiler.measuring.trial import measure
from profiler.training.models.user import as_workload
from tests import generated_modules, make
from tests.generated_modules import UNSEEDED, Plan
from tests.plain_steps import Forward, Steps, judged, two_steps, under, without_gradient

EQUAL = {"bit-equal", "within noise"}
FAILS, REFUSED = "fails", "refused"


class Finding(NamedTuple):
    """What is said of a strategy's gradients, and how many parameters train and get none."""

    verdict: str
    num_without_gradient: int | None = None
    detail: str = ""


class Compared(NamedTuple):
    """What gcprof says of a module under a strategy, and what plain PyTorch says."""

    number: int
    plan: Plan
    strategy: str
    said: Finding
    truth: Finding

    @property
    def is_right(self) -> bool:
        """Whether they are the same; a strategy that is refused says nothing.

        Where nobody can seed what is drawn, chance takes the branches, and it is enough that neither is sure.
        """
        if self.said.verdict == REFUSED:
            return True
        if any(block.get("noise") in UNSEEDED for block in self.plan.blocks):
            return not {self.said.verdict, self.truth.verdict} & EQUAL
        same = self.said.verdict == self.truth.verdict or {self.said.verdict, self.truth.verdict} <= EQUAL
        return same and self.said.num_without_gradient == self.truth.num_without_gradient

    def __str__(self) -> str:
        said, truth = self.said, self.truth
        return (
            f"{self.number} {self.strategy}: {said.verdict} ({said.num_without_gradient} without gradient), "
            f"and by hand {truth.verdict} ({truth.num_without_gradient}): {said.detail or truth.detail}\n  {self.plan}"
        )


def compare(seed: int, number: int) -> Iterator[Compared]:
    """The module of a number under `none` and its strategies, each with what plain PyTorch says."""
    plan = generated_modules.plan(f"{seed}-{number}")
    with warnings.catch_warnings(action="ignore"):
        none, plain = _measured(plan, "none", None), Plain(plan)
        yield Compared(number, plan, "none", _said(none), plain.truth("none"))
        if not isinstance(none, Record) or none.equality is None:
            return
        for strategy in strategies(plan, random.Random(f"{seed}-{number}-strategies")):
            said = _said(_measured(plan, strategy, none.equality.digests))
            yield Compared(number, plan, strategy, said, plain.truth(strategy))


def strategies(plan: Plan, chance: random.Random) -> list[str]:
    """`all`, another, and the module's own checkpoints where it has any."""
    others = list(OF_CALLS) if plan.shared == "block" else [*OF_CALLS, *OF_BLOCKS, *([] if plan.loop else CHAINS)]
    own = ["own"] if any("own" in block for block in plan.blocks) else []
    return ["all", chance.choice(others), *own]


class Plain:
    """A module in plain PyTorch: without its own checkpoints, twice, and under the checkpoints of strategies."""

    def __init__(self, plan: Plan) -> None:
        self._with_own = partial(generated_modules.make, plan)
        self._build = partial(generated_modules.make, plan, has_own=False)

    @cached_property
    def _runs(self) -> tuple[Steps, Steps]:
        first = two_steps(self._build)
        return first, two_steps(self._build, update=first[0].gradients)

    def truth(self, strategy: str) -> Finding:
        """What is true of the strategy's gradients."""
        try:
            first, again = self._runs
            steps = again if strategy == "none" else self._steps(strategy)
        except RuntimeError as error:
            return Finding(FAILS, detail=f"{error}".partition("\n")[0])
        module, *_ = self._build()
        return Finding(judged(first, again, steps), len(without_gradient(module, steps[0])))

    def _steps(self, strategy: str) -> Steps:
        return two_steps(self._with_own) if strategy == "own" else two_steps(self._build, by_hand(strategy))


def by_hand(strategy: str) -> Forward:
    """A generated module's forward by hand: its blocks under checkpoints, or what it saves on the host."""

    def forward(module: nn.Module, values: torch.Tensor) -> torch.Tensor:
        if strategy in CHAINS:
            return module.head(CHAINS[strategy](list(module.blocks), module.stem(values)))
        chosen, options = EACH[strategy]
        blocks = list(dict.fromkeys(module.blocks))[chosen]  # one that is there twice is one block

        def call(block: nn.Module, *given: torch.Tensor) -> torch.Tensor:
            return under(block, *given, **options) if block in blocks else block(*given)

        with save_on_cpu() if strategy == "offload" else nullcontext():
            return module.through(values, call)

    return forward


def _segments(blocks: list[nn.Module], values: torch.Tensor) -> torch.Tensor:
    """The first half under one checkpoint."""
    half = len(blocks) // 2
    return nn.Sequential(*blocks[half:])(under(nn.Sequential(*blocks[:half]), values))


def _recursive(blocks: list[nn.Module], values: torch.Tensor) -> torch.Tensor:
    """The first half under a checkpoint, and so within each half."""
    if len(blocks) < 2:
        return blocks[0](values)
    half = len(blocks) // 2
    return _recursive(blocks[half:], under(partial(_recursive, blocks[:half]), values))


def _from_start(blocks: list[nn.Module], values: torch.Tensor) -> torch.Tensor:
    """All but the last block under a checkpoint that holds the checkpoint of those before."""

    def before(count: int, values: torch.Tensor) -> torch.Tensor:
        return values if not count else under(lambda given: blocks[count - 1](before(count - 1, given)), values)

    return blocks[-1](before(len(blocks) - 1, values))


def _products() -> Any:
    return create_selective_checkpoint_contexts([torch.ops.aten.mm.default, torch.ops.aten.addmm.default])


EACH: dict[str, tuple[slice, dict[str, Any]]] = {  # the blocks that are under a checkpoint each, and how
    "all": (slice(None), {}),
    "every:k=2": (slice(1, None, 2), {}),
    "first:n=1": (slice(1), {}),
    "selective:save=mm+addmm": (slice(None), {"context_fn": _products}),
    "offload": (slice(0), {}),
}
OF_CALLS = ("selective:save=mm+addmm", "offload")  # the same, whether a block that is there twice is one block or two
OF_BLOCKS = ("every:k=2", "first:n=1")
CHAINS: dict[str, Callable[[list[nn.Module], torch.Tensor], torch.Tensor]] = {  # which want each block once, in a row
    "segments:k=2": _segments,
    "recursive": _recursive,
    "from-start": _from_start,
}


def _measured(plan: Plan, strategy: str, digests: dict[str, str] | None) -> Record | Exception:
    """What gcprof says, or what it raises."""
    blocks = "blocks.*" if plan.shared == "block" else None  # of two, one is left, which is no stack
    case = make.case(strategy, model=Choice("generated"), batch_size=None, blocks=blocks, warmup=0, samples=1)
    trial = Trial(case=case, passes=("equality",), digests=digests)
    try:
        return measure(trial, build=lambda: as_workload(generated_modules.make(plan)))
    except (Unsupported, RuntimeError) as error:
        return error


def _said(record: Record | Exception) -> Finding:
    if isinstance(record, Exception):
        word = REFUSED if isinstance(record, Unsupported) else FAILS
        return Finding(word, detail=f"{type(record).__name__}: {record}".partition("\n")[0])
    count = record.equality.num_without_gradient if record.equality else None
    word = verdict(record)
    contradicts = record.outcome == "invalid" and word in EQUAL
    return Finding("invalid" if contradicts else word, count, record.detail or "")


def main() -> int:
    parser = argparse.ArgumentParser(description="users' modules by chance, against plain PyTorch")
    parser.add_argument("--times", type=int, default=300, help="modules")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first module")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    gc.freeze()
    words: Counter[str] = Counter()
    num_wrong = 0
    for number in range(asked.first, asked.first + asked.times):
        for compared in compare(asked.seed, number):
            words[compared.said.verdict] += 1
            if not compared.is_right:
                num_wrong += 1
                print(compared, flush=True)
    gc.unfreeze()
    told = ", ".join(f"{count} {word}" for word, count in words.most_common())
    print(f"{asked.times} modules of seed {asked.seed}, {words.total()} trials: {told}; {num_wrong} wrong")
    return int(bool(num_wrong) or not words)


if __name__ == "__main__":
    sys.exit(main())
