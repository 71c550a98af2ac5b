"""Models whose steps are compared, changed by emitted code as if it were pasted or by other means."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from profiler.core import catalogue
from profiler.core.case import Choice
from profiler.core.plan_file import PlanFile
from profiler.training import models
from profiler.training.blocks import find_blocks
from profiler.training.workload import Workload
from tests.chain_models import Counted, InTuple, Looping, workload
from tests.plans import Saving, plan_of

LLAMA = (
    "hf:llama:hidden_size=32,intermediate_size=64,num_attention_heads=2,num_key_value_heads=2,num_hidden_layers=6,"
    "vocab_size=64"
)


def apply(code: str, module: nn.Module) -> None:
    """As if it stood in a file of the user's."""
    namespace: dict[str, Any] = {"__name__": "pasted"}
    exec(compile(code, "pasted.py", "exec"), namespace)
    namespace["apply_plan"](module)


def named(model: str, batch_size: int = 2) -> Workload:
    build, options = catalogue.load(Choice(model), models.TABLE)
    built = build(batch_size=batch_size, **options)
    names = built.blocks or find_blocks(built.module)
    return Workload(module=built.module, blocks=names, batch=built.batch, loss=built.loss)


def in_place() -> Workload:
    """Activations that write over their input, the first of which begins a run where a run begins at 1."""
    pairs = [layer for _ in range(3) for layer in (nn.Linear(3, 3), nn.ReLU(inplace=True))]
    return workload(nn.Sequential(*pairs), tuple("012345"))


BUILDS: dict[str, Callable[[], Workload]] = {
    "a Sequential": lambda: workload(nn.Sequential(*[Counted() for _ in range(6)]), tuple("012345")),
    "a loop with an argument": lambda: workload(Looping(), tuple(f"layers.{i}" for i in range(6))),
    "blocks that return tuples": lambda: workload(Looping(InTuple), tuple(f"layers.{i}" for i in range(6))),
    "in-place activations": in_place,
    "the transformer": lambda: named("transformer:layers=6,width=16,sequence=8,vocabulary=11"),
    "cifar-resnet": lambda: named("cifar-resnet:depth=2"),
    "llama": lambda: named(LLAMA),
}


def stepped(build: Callable[[], Workload], change: Callable[[Workload], object]) -> tuple[dict[str, Any], list[int]]:
    """Loss, gradients and buffers of one step after the change, and how often each block ran in it."""
    torch.manual_seed(0)
    built = build()
    calls = [0] * len(built.blocks)
    for index, name in enumerate(built.blocks):
        block = built.module.get_submodule(name)
        block.forward = counting(block.forward, calls, index)
    change(built)
    calls[:] = [0] * len(calls)
    torch.manual_seed(1)
    loss = built.loss(built.module, built.batch)
    loss.backward()
    found = {"loss": loss.detach(), **{f"buffer {name}": one for name, one in built.module.named_buffers()}}
    return found | {name: one.grad for name, one in built.module.named_parameters()}, calls


def counting(forward: Callable[..., Any], calls: list[int], index: int) -> Callable[..., Any]:
    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls[index] += 1
        return forward(*arguments, **keywords)

    return counted


def planned(built: Workload, runs: list[Any]) -> PlanFile:
    return plan_of(built.module, built.blocks, runs)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one if one[name] is not None)


@st.composite
def random_runs(draw: st.DrawFn, start: int = 0, stop: int = 6, deep: int = 3) -> list[Any]:
    """Indices in their order, some of them in runs."""
    items: list[Any] = []
    while start < stop:
        end = draw(st.integers(start + 1, stop))
        if deep and draw(st.booleans()):
            run = draw(random_runs(start, end, deep - 1))
            plain = all(isinstance(item, int) for item in run)
            items.append(Saving(run, "matmul") if plain and draw(st.booleans()) else run)
        else:
            items += range(start, end)
        start = end
    return items
