"""What is true of the users' steps of docs/tables/cases.md, by loops in plain PyTorch, without gcprof.

A truth is, by strategy, what is to be said of it: by a word of `tests.case_answers.TOLD`, or by a note's code what the
note says, None where it must not be there.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

from tests.plain_steps import Forward, apart, chain, judged, two_steps, under, without_gradient
from tests.user_models import (
    adapter,
    breaks,
    causes,
    dataclass_batch,
    draws,
    experts,
    hooks,
    keeps,
    modes,
    no_gradient,
    outside_of_blocks,
    overwritten,
    own_checkpoint,
    what_is_trained,
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


def frozen_prefix() -> dict[str, Facts]:
    def plain(net: nn.Module, value: torch.Tensor) -> torch.Tensor:
        value = net.prefix(value)
        for block in net.blocks:
            value = torch.tanh(block(value))
        return net.head(value).mean()

    build = own_checkpoint.prefix
    found = compared(build, {"own": lambda net, value: net(value)}, plain)
    return _with_lost(found, {"none": (build, plain), "own": (build, None)}, noted=("own",))


def no_gradients() -> dict[str, Facts]:
    build = no_gradient.make
    return _with_lost(compared(build, {}), {"none": (build, None)}, noted=("none",))


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


def _with_lost(
    found: dict[str, Facts], ways: Mapping[str, tuple[Callable[[], Any], Forward | None]], noted: tuple[str, ...]
) -> dict[str, Facts]:
    """Adds the parameters that get no gradient; a note names them where it is to be there."""
    more: dict[str, Facts] = {}
    for strategy, (build, forward) in ways.items():
        module = build()[0]
        lost = without_gradient(module, two_steps(build, forward)[0])
        num = sum(parameter.requires_grad for parameter in module.parameters())
        told = f"{len(lost)} of {num} trainable parameters get no gradient" if strategy in noted else None
        more[strategy] = {"num_without_gradient": len(lost), "GCP045": told}
    return with_facts(found, **more)


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


def in_mode(factory: str) -> dict[str, Facts]:
    """The layers of dropout and BatchNorm of what the factory returns, and those that are in eval mode."""
    build = getattr(modes, factory)
    layers = [layer for layer in build()[0].modules() if isinstance(layer, (nn.Dropout, nn.BatchNorm1d))]
    resting = [layer for layer in layers if not layer.training]
    told = f"{len(resting)} of {len(layers)} dropout and BatchNorm layers are in eval mode" if resting else None
    found = compared(build, {"all": lambda net, value: chain("layers")(net, value)})
    return with_facts(found, none={"GCP043": told}, all={"GCP043": told})


def hooked() -> dict[str, Facts]:
    return compared(hooks.hooked, {"all": chain("layers", scale=0.7), "first:n=2": chain("layers", count=2, scale=0.7)})


def kept(factory: str) -> dict[str, Facts]:
    build = getattr(keeps, factory)
    found = compared(build, {"all": chain()})
    if factory == "counting":
        return with_facts(found, all={"GCP049": "0.calls, 1.calls, 2.calls"})
    return with_facts(found, all={"detail": "of the second step, while those of the first agree"})


def named() -> dict[str, Facts]:
    module, *_ = modes.named("large", "bc")
    return {"none": {"num_parameters": sum(parameter.numel() for parameter in module.parameters())}}


def unknown_operator() -> dict[str, Facts]:
    return {"none": {"outcome": "skipped", "detail": "'users.twice.default' does not say what it returns"}}


def overlooked(kind: str) -> dict[str, Facts]:
    """A layer's term is multiplied by how often it has run. Its forward is the third under `all`, else the second.

    What is computed from it is computed anew in the recompute, the fourth; a plain number that is saved is the third's.
    """
    counted = {"complex": (4, 2), "optimizer": (3, 2), "subclass": (3, 2)}
    if kind == "buffer":  # one step: counted once, and twice under `all`
        return {"none": {"gradients": "bit-equal"}, "all": {"gradients": "bit-equal", "buffers_difference": 1 / 2}}
    wrong, right = counted[kind]
    all_facts = {"gradients": "differ", "largest_difference": (wrong - right) / wrong}
    return {"none": {"gradients": "bit-equal"}, "all": all_facts}


def beside_the_model(kind: str) -> dict[str, Facts]:
    """The silent term's factor counts forwards: under `all` that of the second step is the third, else the second."""

    def gradient(is_recomputed: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model, (value, target), loss, _ = what_is_trained.make(kind=kind)
        held: torch.Tensor = model[0].held[0]
        for _ in range(2):
            held.grad = None
            loss(chain()(model, value) if is_recomputed else model(value), target).backward()
        assert held.grad is not None
        return held.grad

    assert not torch.allclose(gradient(False), gradient(True))
    return {"none": {"gradients": "bit-equal"}, "all": {"gradients": "differ"}}


def by_its_level() -> dict[str, Facts]:
    """Under checkpoints by hand the recompute has the module's own weights in place of the fast ones."""

    def gradients(is_recomputed: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module, batch = outside_of_blocks.fast()
        for block in module.base.blocks if is_recomputed else ():
            block.forward = partial(under, block.forward)
        module(*batch).backward()
        return [parameter.grad for parameter in module.parameters()]

    assert not all(map(torch.allclose, gradients(False), gradients(True)))
    return {"none": {"gradients": "bit-equal"}, "all": {"gradients": "differ", "detail": "functional_call"}}


def under_autocast() -> dict[str, Facts]:
    """The step ends under autocast, and no other way."""
    module, (value, target), loss = adapter.make()
    with pytest.raises(RuntimeError, match="dtype"):
        module(value)
    with torch.autocast("cpu", torch.bfloat16):
        output = module(value)
    loss(output, target).backward()
    return {"none": {"outcome": "ok", "gradients": "bit-equal", "GCP057": "fp32"}}


def fails(factory: str, names: str) -> dict[str, Facts]:
    with pytest.raises(CheckpointError):
        two_steps(getattr(causes, factory), chain())
    cause = f"the forward changes {names}, which the recompute finds changed"
    return {"none": {"outcome": "ok"}, "all": {"outcome": "failed", "detail": cause}}


def counted_twice() -> dict[str, Facts]:
    return with_facts(compared(causes.marked, {"all": chain()}), all={"GCP004": "(0.calls, 1.calls)"})


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


def imported() -> dict[str, Facts]:
    module, *_ = modes.training()
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return with_facts(compared(modes.training, {}), none={"num_parameters": parameters})


def in_a_dataclass() -> dict[str, Facts]:
    """The model takes the whole of its batch, and so does its loss."""

    def through_layers(call: Callable[..., torch.Tensor]) -> Forward:
        def forward(net: nn.Module, batch: Any) -> torch.Tensor:
            value = net.embed(batch.features * batch.mask)
            for layer in net.layers:
                value = call(layer, value)
            return ((net.out(value).squeeze(-1) - batch.target) ** 2).mean()

        return forward

    def build() -> tuple[nn.Module, Any]:
        net, batch, _ = dataclass_batch.make()
        return net, batch

    return compared(build, {"all": through_layers(under)}, through_layers(lambda layer, value: layer(value)))
