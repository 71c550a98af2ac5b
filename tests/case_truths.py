"""What is true of the users' steps of docs/cases.md, by loops in plain PyTorch and by arithmetic, without gcprof.

A truth is, by strategy, what is to be said of it: by a word of `tests.cases.TOLD`, or by a note's code what the note
says, None where it must not be there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointError

from tests.plain_steps import Forward, apart, chain, judged, two_steps, under, without_gradient
from tests.user_models import (
    breaks,
    causes,
    dataclass_batch,
    draws,
    experts,
    frozen_tower,
    hooks,
    keeps,
    large_vocabulary,
    marked_loop,
    modes,
    no_gradient,
    one_layer,
    own_checkpoint,
)

Facts = Mapping[str, Any]
FLOAT, RANDOM_STATE = 4, 5056  # bytes: a number in fp32; the CPU's random state, which a checkpoint keeps


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
    return with_facts(found, all={"GCP005": name, "detail": f"draws other numbers from {name}"}) if name else found


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


def watched() -> dict[str, Facts]:
    """ReLU's result, which the last layer takes too, and the loss; not less by the gradient that the forward frees."""
    batch, width = 64, 256
    return {"none": {"saved_bytes": batch * width * FLOAT + FLOAT}}


def packed() -> dict[str, Facts]:
    """Halves of what is saved: the inputs of layers and squares, and the weights but the first, which is not needed."""
    batch, width, layers = 64, 128, 3
    saved = 2 * layers * batch * width * FLOAT + (layers - 1) * width * width * FLOAT
    return {"none": {"saved_bytes": saved // 2 + FLOAT}}


def needs_data() -> dict[str, Facts]:
    return {"none": {"outcome": "skipped", "detail": "the model's own hook on saved tensors (saved_hooks.py:"}}


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


def fails(factory: str, names: str) -> dict[str, Facts]:
    with pytest.raises(CheckpointError):
        two_steps(getattr(causes, factory), chain())
    cause = f"the forward changes {names}, which the recompute finds changed"
    return {"none": {"outcome": "ok"}, "all": {"outcome": "failed", "detail": cause}}


def counted_twice() -> dict[str, Facts]:
    return with_facts(compared(causes.marked, {"all": chain()}), all={"GCP004": "(0.calls, 1.calls)"})


def on_ctx() -> dict[str, Facts]:
    """Of each of four blocks the input of Square, beside the inputs of checkpoints: all are (batch, width)."""
    one = 4 * 8 * FLOAT
    inputs = 3 * one  # of all blocks but the first, whose is the batch
    saved = 4 * one + inputs + one + 4 * RANDOM_STATE + FLOAT  # and the last result, which the loss saves
    return {"all": {"saved_bytes": saved, "GCP054": f"{4 * one} B are attributes of ctx"}}


def left(nbytes: int | None) -> dict[str, Facts]:
    """What each step leaves held."""
    return {"none": {"GCP048": f"grows by {nbytes} B" if nbytes else None}}


def kept_means() -> dict[str, Facts]:
    """A mean of each of three blocks in every call."""
    return {"none": {"GCP048": f"grows by {3 * FLOAT} B"}, "all": {"GCP048": f"grows by {2 * 3 * FLOAT} B"}}


def calls() -> dict[str, Facts]:
    """Of six results, which the next product and the loss save too, two are within a segment of two calls."""

    def cut(net: nn.Module, value: torch.Tensor) -> torch.Tensor:
        first, second, third = ([*net.weights][at : at + 2] for at in (0, 2, 4))
        for pair in (first, second):
            value = under(lambda value, pair=pair: _run(value, pair), value)
        return _run(value, third).square().mean()

    activation = 2048 * 32 * FLOAT
    saved = {"none": 6 * activation + FLOAT, "segments:k=3": 4 * activation + 2 * RANDOM_STATE + FLOAT}
    found = compared(marked_loop.make, {"segments:k=3": cut})
    return with_facts(found, **{strategy: {"saved_bytes": nbytes} for strategy, nbytes in saved.items()})


def _run(value: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        value = marked_loop.plain(value, weight)
    return value


def better() -> dict[str, Facts]:
    """The peaks of PyTorch's allocator with the layer under a checkpoint, and with each of its parts alone."""
    peak = partial(_peak, one_layer.one)
    peaks = {
        "layer": peak(lambda net, value: under(net.layer, value).sum()),
        "layer.attention": peak(lambda net, value: net.layer.mlp(under(net.layer.attention, value)).sum()),
        "layer.mlp": peak(lambda net, value: under(net.layer.mlp, net.layer.attention(value)).sum()),
    }
    lowest = min(peaks, key=lambda name: peaks[name])
    return {"all": {"all_bytes": peaks["layer"], "better_blocks": lowest, "better_bytes": peaks[lowest]}}


def in_chunks() -> dict[str, Facts]:
    """The peaks of PyTorch's allocator, as it is, with each layer under a checkpoint, and with the loss in chunks."""

    def checkpointed(net: nn.Module, batch: Any) -> torch.Tensor:
        value = net.embedding(batch[0])
        for layer in net.layers:
            value = under(layer, value)
        return cross_entropy(net.head(value), batch[1])

    make = large_vocabulary.make
    whole = _peak(make, lambda net, batch: net(*batch))
    remedies = {
        "finer checkpointing": _peak(make, checkpointed),
        "loss in 8 chunks": _peak(partial(make, chunks=8), lambda net, batch: net(*batch)),
    }
    return {"none": {"peak_bytes": whole, "remedy": min(remedies, key=lambda name: remedies[name])}}


def towers() -> dict[str, Facts]:
    """What is saved with the hook and without it, counted by PyTorch's own hooks on what is saved."""
    saved, without = (_saved_bytes(partial(frozen_tower.make, hook)) for hook in ("on", "off"))
    held = frozen_tower.BATCH * frozen_tower.WIDTH * FLOAT  # the input that needs a gradient, which the graph holds
    needless = f"{(saved - without + held) / 1024:.1f} KiB are saved for gradients that reach no parameter"
    told = f"{needless}: nothing trains in tower"
    return {"none": {"gradients": "bit-equal", "saved_bytes": saved + held + FLOAT, "GCP055": told}}


def _saved_bytes(build: Callable[[], Any]) -> int:
    """The bytes of all storages that a forward saves, but for parameters and the batch."""
    net, batch = build()
    resident = {tensor.untyped_storage()._cdata for tensor in (*net.parameters(), batch)}
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(batch)
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(nbytes for storage, nbytes in storages.items() if storage not in resident)


def routed() -> dict[str, Facts]:
    """Under `all` each expert's load is counted in the forward and in the recompute."""
    found = compared(experts.make, {"all": chain()})
    return with_facts(found, all={"buffers_difference": 1 / 2, "GCP004": "(0.load, 1.load, 2.load)"})


def sent(way: str, routing: str) -> dict[str, Facts]:
    """The bytes of a step whose tokens go there."""
    build = partial(experts.make, batch_size=96, width=64, way=way, sent=routing)

    def without_loss() -> tuple[nn.Module, torch.Tensor]:
        net, batch, _ = build()
        return net, batch

    loss = build()[2]
    return {"none": {"peak_bytes": _peak(without_loss, lambda net, batch: loss(net(batch))), "GCP062": "routed"}}


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


def _peak(build: Callable[[], Any], forward: Forward) -> int:
    """The most bytes of a step in plain PyTorch: its parameters, its batch, and what the allocator gives besides."""
    net, batch = build()
    forward(net, batch).backward()
    net.zero_grad()
    with torch.profiler.profile(profile_memory=True) as profile:
        forward(net, batch).backward()
    resident = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors_of(net, batch)}
    now = most = sum(resident.values())
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def tensors_of(net: nn.Module, batch: Any) -> list[torch.Tensor]:
    """All tensors that are there before a step."""
    return [
        *net.parameters(),
        *net.buffers(),
        *(leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)),
    ]
