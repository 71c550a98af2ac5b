"""Modules of users, made by chance, against plain PyTorch: `just fuzz-modules`.

Each is measured under `none`, under a checkpoint for every block, and under others by chance, in this process. What
gcprof says of its gradients must be what two plain runs of two steps and one with the same blocks under
`torch.utils.checkpoint` by hand say: no `bit-equal` and no `within noise` that they refute, no `invalid` that they do
not find. A module is made from the seed and its number: `--first NUMBER --times 1` makes the same one again.
"""

import gc
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from profiler.analysis.rows import verdict
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.measuring.trial import measure
from profiler.training.models.user import as_workload
from tests import make
from tests.fuzz import numbered
from tests.plain_steps import judged, two_steps, under, without_gradient

WIDTH, BATCH = 8, 6
OWN_CHECKPOINTS: dict[str, dict[str, Any]] = {
    "reentrant": {"use_reentrant": True},
    "not-reentrant": {"use_reentrant": False},
    "lossy": {"use_reentrant": False, "preserve_rng_state": False},
}
GOLDEN = 0.6180339887498949  # its multiples, less their whole parts, are those that come least near to each other
drawn_from_the_system = count()
# What a block may be, with the chance of each; the rest of the chance is nothing of it.
CHOICES: dict[str, dict[str, float]] = {
    "layer": {"norm": 0.2, "mlp": 0.2},
    "drop": {"trains": 0.3, "eval": 0.1},
    "noise": {
        **dict.fromkeys(("torch", "random", "numpy", "own-python", "own-numpy", "own-torch"), 0.04),
        "system": 0.02,
    },
    "hook": dict.fromkeys(("forward", "before", "backward", "before-backward", "tensor"), 0.06),
    "frozen": {"layer": 0.1, "whole": 0.05},
    "own": {"reentrant": 0.14, "not-reentrant": 0.08, "lossy": 0.08},
    "in_place": {"relu": 0.15, "add": 0.1, "input": 0.04},
    "branch": {"mean": 0.12, "rows": 0.12},
    "keeps": {"counter": 0.04, "buffer": 0.04},
}


class Plan(NamedTuple):
    blocks: tuple[dict[str, str], ...]
    shared: str | None  # "weight": the last block's is the first's; "block": the last is the first
    frozen_stem: bool
    loop: str | None


def planned(name: str) -> Plan:
    chance = random.Random(name)
    blocks = tuple(
        {key: drawn for key, chances in CHOICES.items() if (drawn := _drawn(chance, chances))}
        for _ in range(chance.randint(2, 5))
    )
    shared = _drawn(chance, {"weight": 0.1, "block": 0.05})
    if shared == "block":
        blocks = (*blocks[:-1], blocks[0])
    return Plan(blocks, shared, chance.random() < 0.35, _drawn(chance, dict.fromkeys(("skip", "sum", "gate"), 0.1)))


def made(plan: Plan, *, has_own: bool = True) -> tuple[nn.Module, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """A user's factory: the module, its batch and its loss; without its own checkpoints where it is to have none."""
    return Generated(plan, has_own=has_own), torch.randn(BATCH, WIDTH), lambda output: output.square().mean()


class Generated(nn.Module):
    def __init__(self, plan: Plan, *, has_own: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH).requires_grad_(not plan.frozen_stem)
        self.blocks = nn.ModuleList(Block(chosen, has_own=has_own) for chosen in plan.blocks)
        self.head = nn.Linear(WIDTH, 1)
        self.gate = nn.Linear(WIDTH, 1)
        self.loop = plan.loop
        if plan.shared == "block":
            self.blocks[-1] = self.blocks[0]
        elif plan.shared == "weight":
            self.blocks[-1].layer.weight = self.blocks[0].layer.weight

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.through(values, lambda block, *given: block.own(block, *given))

    def through(self, values: torch.Tensor, call: Callable[..., torch.Tensor]) -> torch.Tensor:
        values = self.stem(values)
        gates = (torch.sigmoid(self.gate(values)),) if self.loop == "gate" else ()
        means = []
        for block in self.blocks:
            if self.loop == "skip" and random.random() < 0.3:
                continue
            values = call(block, values, *gates)
            means.append(values.mean())
        return self.head(values) + (sum(means) if self.loop == "sum" else 0.0)


class Block(nn.Module):
    """A residual block with what was chosen for it."""

    def __init__(self, chosen: dict[str, str], *, has_own: bool) -> None:
        super().__init__()
        self.chosen = chosen
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if chosen.get("layer") == "norm" else nn.Identity()
        self.second = nn.Linear(WIDTH, WIDTH) if chosen.get("layer") == "mlp" else nn.Identity()
        self.extra = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.3 if "drop" in chosen else 0.0).train(chosen.get("drop") != "eval")
        self.python, self.numpy = random.Random(), np.random.default_rng()
        self.torch = torch.Generator(device="cpu")
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.calls = 0
        self.options = OWN_CHECKPOINTS.get(chosen.get("own", "")) if has_own else None
        if "frozen" in chosen:
            (self if chosen["frozen"] == "whole" else self.layer).requires_grad_(False)
        if hook := HOOKS.get(chosen.get("hook", "")):
            hook(self)

    def own(self, function: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        """The function under the user's own checkpoint, where there is one."""
        return checkpoint(function, *given, **self.options) if self.options else function(*given)

    def forward(self, values: torch.Tensor, gate: torch.Tensor | float = 1.0) -> torch.Tensor:
        if self.chosen.get("in_place") == "input":
            values.mul_(1.1)
        changed = gate * self.body(values)
        if self.chosen.get("hook") == "tensor" and changed.requires_grad:
            changed.register_hook(lambda gradient: 0.9 * gradient)
        return values + changed

    def body(self, values: torch.Tensor) -> torch.Tensor:
        values = self.layer(self.norm(values) + self.kept())
        change = {"relu": torch.relu_, "add": lambda values: values.add_(0.5)}.get(self.chosen.get("in_place", ""))
        values = self.drop(self.second(torch.tanh(change(values) if change else values)))
        branch = self.chosen.get("branch")
        if branch == "rows":
            rows = values.sum(1) > 0
            values = values.clone()
            values[rows] = values[rows] * 0.5
        elif branch == "mean" and float(values.detach().mean()) > 0:
            values = torch.tanh(self.extra(values))
        return values * torch.full((), 0.5 + self.drawn())

    def kept(self) -> torch.Tensor | float:
        """What hangs on the calls before."""
        if self.chosen.get("keeps") == "counter":
            self.calls += 1
            return 0.5 if self.calls > 2 else 0.0
        if self.chosen.get("keeps") == "buffer":
            self.mean.mul_(0.5).add_(0.1)
            return self.mean.clone()
        return 0.0

    def drawn(self) -> float:
        draws = {
            "torch": lambda: torch.rand(()).item(),
            "random": random.random,
            "numpy": np.random.rand,
            "own-python": self.python.random,
            "own-numpy": self.numpy.random,
            "own-torch": lambda: torch.rand((), generator=self.torch).item(),
            # another in every call, as `os.urandom` gives, but any two of 20 in a row are at least 0.02 apart: two runs
            # of a step that draws one differ by more than rounding
            "system": lambda: next(drawn_from_the_system) * GOLDEN % 1,
        }
        return draws[self.chosen["noise"]]() if "noise" in self.chosen else 0.5


HOOKS: dict[str, Callable[[nn.Module], object]] = {
    "forward": lambda block: block.register_forward_hook(lambda module, arguments, output: 1.2 * output),
    "before": lambda block: block.register_forward_pre_hook(lambda module, given: (1.1 * given[0], *given[1:])),
    "backward": lambda block: block.register_full_backward_hook(_larger),
    "before-backward": lambda block: block.register_full_backward_pre_hook(lambda module, out: (out[0] * 0.8,)),
}


def _larger(module: nn.Module, inputs: Any, outputs: Any) -> tuple[torch.Tensor | None, ...]:
    return tuple(one if one is None else one * 1.3 for one in inputs)


def _drawn(chance: random.Random, chances: dict[str, float]) -> str | None:
    """One of the words by its chance, or nothing."""
    return chance.choices([*chances, None], [*chances.values(), 1 - sum(chances.values())])[0]


def _recursive(blocks: list[nn.Module], values: torch.Tensor) -> torch.Tensor:
    """The first half under a checkpoint, and so within each half; which wants each block once, in a row."""
    if len(blocks) < 2:
        return blocks[0](values)
    half = len(blocks) // 2
    return _recursive(blocks[half:], under(partial(_recursive, blocks[:half]), values))


PRODUCTS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
EACH: dict[str, tuple[slice, dict[str, Any]]] = {  # the blocks that are under a checkpoint each, and how
    "all": (slice(None), {}),
    "every:k=2": (slice(1, None, 2), {}),
    "first:n=1": (slice(1), {}),
    "selective:save=mm+addmm": (slice(None), {"context_fn": partial(create_selective_checkpoint_contexts, PRODUCTS)}),
    "offload": (slice(0), {}),
}
EQUAL = {"bit-equal", "within noise"}
FAILS, REFUSED = "fails", "refused"


class Finding(NamedTuple):
    """What is said of a strategy's gradients, and how many parameters train and get none."""

    verdict: str
    num_without_gradient: int | None = None
    detail: str = ""


def compare(name: str) -> Iterator[tuple[str, Finding, Finding]]:
    """A module's strategies, each with what gcprof says and what plain PyTorch says."""
    plan = planned(name)
    none, digests = said(plan, "none", None)
    yield "none", none, truth(plan, "none")
    if digests is None:
        return
    others = ["selective:save=mm+addmm", "offload"]
    if plan.shared != "block":  # there it matters whether a block that is there twice is one block or two
        others += ["every:k=2", "first:n=1", *([] if plan.loop else ["recursive"])]
    own = ["own"] if any("own" in block for block in plan.blocks) else []
    for strategy in ("all", random.Random(f"{name}-strategies").choice(others), *own):
        yield strategy, said(plan, strategy, digests)[0], truth(plan, strategy)


def is_right(plan: Plan, said: Finding, truth: Finding) -> bool:
    """Whether gcprof says what is true; a strategy that is refused says nothing.

    Where nobody can seed what is drawn, chance takes the branches, and it is enough that neither is sure.
    """
    if said.verdict == REFUSED:
        return True
    verdicts = {said.verdict, truth.verdict}
    if any(block.get("noise") == "system" for block in plan.blocks):
        return not verdicts & EQUAL
    return (len(verdicts) == 1 or verdicts <= EQUAL) and said.num_without_gradient == truth.num_without_gradient


def said(plan: Plan, strategy: str, digests: dict[str, str] | None) -> tuple[Finding, dict[str, str] | None]:
    """What gcprof says, or what it raises; and the digests of its gradients."""
    blocks = "blocks.*" if plan.shared == "block" else None  # of two, one is left, which is no stack
    case = make.case(strategy, model=Choice("generated"), batch_size=None, blocks=blocks, warmup=0, samples=1)
    trial = Trial(case=case, passes=("equality",), digests=digests)
    try:
        record = measure(trial, build=lambda: as_workload(made(plan)))
    except (Unsupported, RuntimeError) as error:
        word = REFUSED if isinstance(error, Unsupported) else FAILS
        return Finding(word, detail=f"{type(error).__name__}: {error}".partition("\n")[0]), None
    word = verdict(record)
    if record.outcome == "invalid" and word in EQUAL:  # they contradict each other
        word = "invalid"
    count = record.equality.num_without_gradient if record.equality else None
    return Finding(word, count, record.detail or ""), record.equality.digests if record.equality else None


def truth(plan: Plan, strategy: str) -> Finding:
    """What is true of the strategy's gradients, beside two runs without the module's own checkpoints."""
    build = partial(made, plan, has_own=False)
    try:
        first = two_steps(build)
        again = steps = two_steps(build, update=first[0].gradients)
        if strategy == "own":
            steps = two_steps(partial(made, plan))
        elif strategy != "none":
            steps = two_steps(build, partial(by_hand, strategy))
    except RuntimeError as error:
        return Finding(FAILS, detail=f"{error}".partition("\n")[0])
    return Finding(judged(first, again, steps), len(without_gradient(build()[0], steps[0])))


def by_hand(strategy: str, module: nn.Module, values: torch.Tensor) -> torch.Tensor:
    """A generated module's forward by hand: its blocks under checkpoints, or what it saves on the host."""
    if strategy == "recursive":
        return module.head(_recursive(list(module.blocks), module.stem(values)))
    chosen, options = EACH[strategy]
    blocks = list(dict.fromkeys(module.blocks))[chosen]  # one that is there twice is one block

    def call(block: nn.Module, *given: torch.Tensor) -> torch.Tensor:
        return under(block, *given, **options) if block in blocks else block(*given)

    with save_on_cpu() if strategy == "offload" else nullcontext():
        return module.through(values, call)


def main() -> int:
    asked = numbered("users' modules by chance, against plain PyTorch", "modules", times=300).parse_args()
    torch.set_num_threads(1)
    gc.freeze()
    words: Counter[str] = Counter()
    num_wrong = 0
    for number in range(asked.first, asked.first + asked.times):
        name = f"{asked.seed}-{number}"
        with warnings.catch_warnings(action="ignore"):
            for strategy, theirs, true in compare(name):
                words[theirs.verdict] += 1
                if not is_right(planned(name), theirs, true):
                    num_wrong += 1
                    print(f"{number} {strategy}: {theirs}, and by hand {true}\n  {planned(name)}", flush=True)
    gc.unfreeze()
    told = ", ".join(f"{count} {word}" for word, count in words.most_common())
    print(f"{asked.times} modules of seed {asked.seed}, {words.total()} trials: {told}; {num_wrong} wrong")
    return int(bool(num_wrong) or not words)


if __name__ == "__main__":
    sys.exit(main())
