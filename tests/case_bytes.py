"""The bytes of the users' steps of docs/tables/cases.md, by arithmetic and by PyTorch's own hooks and allocator."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils import _pytree as pytree

from tests.case_truths import Facts, compared, with_facts
from tests.plain_steps import Forward, under
from tests.user_models import experts, from_data, frozen_tower, large_vocabulary, marked_loop, one_layer

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


def watched() -> dict[str, Facts]:
    """ReLU's result, which the last layer takes too, and the loss; not less by the gradient that the forward frees."""
    batch, width = 64, 256
    return {"none": {"saved_bytes": batch * width * FLOAT + FLOAT}}


def in_a_dict() -> dict[str, Facts]:
    """Four images of each of six parts; under checkpoints the parts' inputs but the batch, the result, and one part's.

    The head has two images of a 16th and of a 64th: what it takes, and what ReLU gives.
    """
    image = 2 * 8 * 64 * 64 * FLOAT
    head = 2 * (image // 16 + image // 64)
    kept = 5 * image + image + 3 * image + head
    told = f"with --blocks 'body.*', `all` keeps and recomputes at most {kept / 2**20:.2f} MiB"
    return {"none": {"GCP051": f"{told} of {(24 * image + head) / 2**20:.2f} MiB"}}


def trained_apart() -> dict[str, Facts]:
    """The gradients that the first layer gets within the forward; tanh's result, which square takes too; the loss."""
    batch, width = 64, 32
    saved = (width * width + width + batch * width + 1) * FLOAT
    return {"none": {"saved_bytes": saved}, "all": {"saved_bytes": saved + RANDOM_STATE}}


def loaded() -> dict[str, Facts]:
    """What PyTorch's hook on saved tensors is given, without weights, the batch and views of them; and the loss."""
    module, (value, target), loss = from_data.make("shuffled")
    known = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), value, target)}
    sizes: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = loss(module(value), target)
    assert result.isfinite()
    saved = sum(nbytes for storage, nbytes in sizes.items() if storage not in known)
    return {"none": {"outcome": "ok", "saved_bytes": saved + FLOAT}}


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
    state = torch.get_rng_state().nbytes  # which the one checkpoint keeps on a CPU, and costs of stages leave out
    return {
        "all": {
            "all_bytes": peaks["layer"] - state,
            "better_blocks": lowest,
            "better_bytes": peaks[lowest] - state,
        }
    }


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


def sent(way: str, routing: str) -> dict[str, Facts]:
    """The bytes of a step whose tokens go there."""
    build = partial(experts.make, batch_size=96, width=64, way=way, sent=routing)

    def without_loss() -> tuple[nn.Module, torch.Tensor]:
        net, batch, _ = build()
        return net, batch

    loss = build()[2]
    return {"none": {"peak_bytes": _peak(without_loss, lambda net, batch: loss(net(batch))), "GCP062": "routed"}}


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
