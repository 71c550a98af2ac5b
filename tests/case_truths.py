"""What is true of the users' steps of docs/tables/cases.md, by plain PyTorch and arithmetic, without gcprof.

A truth is, by strategy, what is to be said of it: by a word of `tests.cases.TOLD`, or by a note's code what the note
says, None where it must not be there.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

from tests.plain_steps import Forward, apart, chain, judged, two_steps, under
from tests.user_models import (
    breaks,
    causes,
    draws,
    experts,
    hooks,
    keeps,
    overwritten,
    own_checkpoint,
)

Facts = Mapping[str, Any]


def compared(build: Callable[[], Any], ways: Mapping[str, Forward], plain: Forward | None = None) -> dict[str, Facts]:
    """What two plain runs, and one with the checkpoints of each way by hand, say of the gradients."""
    first = two_steps(build, plain)
    again = two_steps(build, plain, update=first[0].gradients)
    steps = {"none": again, **{strategy: two_steps(build, way) for strategy, way in ways.items()}}
    facts: dict[str, Facts] = {}
    for strategy, other in steps.items():
        told = judged(first, again, other)
        amount = {"largest_difference": apart(first, other)} if told == "differ" else {}
        facts[strategy] = {"gradients": told, **amount}
    return facts


def with_facts(found: dict[str, Facts], **more: Facts) -> dict[str, Facts]:
    """The facts of each strategy with those that are added."""
    return {strategy: {**facts, **more.get(strategy, {})} for strategy, facts in found.items()}


def drawn(source: str, name: str) -> dict[str, Facts]:
    found = compared(partial(draws.make, source), {"all": chain()})
    if found["none"]["gradients"] == "not verifiable":
        return with_facts(found, none={"GCP044": "os.urandom"}, all={"detail": "nothing can be verified"})
    return with_facts(found, all={"GCP005": name, "detail": f"draws different numbers from {name}"}) if name else found


def written_over() -> dict[str, Facts]:
    """In float64, and each block with a matrix of its own, which nothing writes over: `all` has these gradients."""
    torch.manual_seed(0)
    module, (inputs, targets), loss = overwritten.on_ctx()
    loss(module(inputs), targets).backward()
    wrong = [parameter.grad.double() for parameter in module.parameters()]
    module.zero_grad()
    value = inputs.double()
    for block in module.double():
        value = torch.tanh(block.fc(value) @ block.host[0].double())
    loss(value, targets.double()).backward()
    right = [parameter.grad for parameter in module.parameters()]
    pairs = zip(right, wrong, strict=True)
    amount = max(float((one - two).abs().max() / max(one.abs().max(), two.abs().max())) for one, two in pairs)
    none = {"outcome": "invalid", "detail": f"wrong by {amount:.1e}"}
    return {"none": none, "all": {"gradients": "differ", "detail": "it is `none` that is wrong"}}


def through(net: nn.Module, value: torch.Tensor, call: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The forward of own_checkpoint's blocks by another call than the model's own."""
    value = net.stem(value)
    for block in net.blocks:
        value = call(block, value)
    return net.head(value).mean()


def lossy() -> dict[str, Facts]:
    ways = {"all": partial(through, call=under), "own": lambda net, value: net(value)}
    build = partial(own_checkpoint.wrapped, "lossy", 0.5)
    return compared(build, ways, partial(through, call=lambda block, value: block(value)))


def hooked() -> dict[str, Facts]:
    return compared(hooks.hooked, {"all": chain("layers", scale=0.7), "first:n=2": chain("layers", count=2, scale=0.7)})


def kept(factory: str) -> dict[str, Facts]:
    build = getattr(keeps, factory)
    found = compared(build, {"all": chain()})
    if factory == "counting":
        return with_facts(found, all={"GCP049": "0.calls, 1.calls, 2.calls"})
    return with_facts(found, all={"detail": "of the second step, while those of the first agree"})


def overlooked(kind: str) -> dict[str, Facts]:
    """A layer's term is multiplied by how often it has run. Its forward is the third under `all`, else the second.

    What is computed from it is computed anew in the recompute, the fourth; a plain number that is saved is the third's.
    """
    wrong, right = {"complex": (4, 2), "optimizer": (3, 2)}[kind]
    all_facts = {"gradients": "differ", "largest_difference": (wrong - right) / wrong}
    return {"none": {"gradients": "bit-equal"}, "all": all_facts}


def fails() -> dict[str, Facts]:
    with pytest.raises(CheckpointError):
        two_steps(causes.cached, chain())
    cause = "the forward changes 0.cache.keys, 1.cache.keys, which the recompute finds changed"
    return {"none": {"outcome": "ok"}, "all": {"outcome": "failed", "detail": cause}}


def routed() -> dict[str, Facts]:
    """Under `all` each expert's load is counted in the forward and in the recompute."""
    found = compared(experts.make, {"all": chain()})
    return with_facts(found, all={"buffers_difference": 1 / 2, "GCP004": "(0.load, 1.load, 2.load)"})


def data_dependent() -> dict[str, Facts]:
    """How many rows a mask of the data gathers, only the data tell."""
    return {"none": {"outcome": "skipped", "detail": "depends on its data (aten.nonzero"}}


def breaking() -> dict[str, Facts]:
    with pytest.raises(RuntimeError) as raised:
        two_steps(breaks.make)
    last = raised.traceback[-1]
    detail = f"RuntimeError: {raised.value} ({last.path.name}:{last.lineno + 1})"
    return {"none": {"outcome": "failed", "detail": detail}}


# --- bytes

FLOAT, RANDOM_STATE = 4, 5056  # bytes: a number in fp32; the CPU's random state, which a checkpoint keeps


def own_bytes() -> dict[str, Facts]:
    """Blocks' inputs; what each GELU and second layer take; the loss. Under checkpoints, inputs and random states."""
    batch, width, inner, depth = 32, 16, 32, 4
    between = (depth + 1) * batch * width * FLOAT
    within = depth * 2 * batch * inner * FLOAT
    told = f"the model's own checkpoints ({depth} calls in a forward) are switched off"
    return {
        "none": {"saved_bytes": between + within + FLOAT, "GCP047": told},
        "own": {"saved_bytes": between + depth * RANDOM_STATE + FLOAT, "GCP047": None},
    }


def trained_apart() -> dict[str, Facts]:
    """The gradients that the first layer gets within the forward; tanh's result, which square takes too; the loss."""
    batch, width = 64, 32
    saved = (width * width + width + batch * width + 1) * FLOAT
    return {"none": {"saved_bytes": saved}, "all": {"saved_bytes": saved + RANDOM_STATE}}


def packed() -> dict[str, Facts]:
    """Halves of what is saved: the inputs of layers and squares, and the weights but the first, which is not needed."""
    batch, width, layers = 64, 128, 3
    saved = 2 * layers * batch * width * FLOAT + (layers - 1) * width * width * FLOAT
    return {"none": {"saved_bytes": saved // 2 + FLOAT}}


def on_ctx() -> dict[str, Facts]:
    """Of each of four blocks the input of Square, beside the inputs of checkpoints: all are (batch, width)."""
    one = 4 * 8 * FLOAT
    inputs = 3 * one  # of all blocks but the first, whose is the batch
    saved = 4 * one + inputs + one + 4 * RANDOM_STATE + FLOAT  # and the last result, which the loss saves
    return {"all": {"saved_bytes": saved, "GCP054": f"{4 * one} B are attributes of ctx"}}
