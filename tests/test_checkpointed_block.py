"""A checkpointed block behaves as in `checkpoint(block, x)` by hand, which is the truth here."""

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import profiler
from profiler.core.errors import Unsupported
from profiler.planning.plan_code import emit
from tests import pasted
from tests.plans import Saving, plan_of
from tests.user_models import hooks

HOOKS = Path(hooks.__file__)
BLOCKS = tuple(f"layers.{index}" for index in range(4))
PLAN = [[0, [1, 2]]]


def under(function, x):
    return checkpoint(function, x, use_reentrant=False)


def keeping(function, x):
    context = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default, torch.ops.aten.addmm.default])
    return checkpoint(function, x, use_reentrant=False, context_fn=context)


BY_HAND: dict[str, Callable[..., torch.Tensor]] = {  # how four blocks are checkpointed in plain PyTorch
    "all": lambda a, b, c, d, x: under(d, under(c, under(b, under(a, x)))),
    "segments:k=2": lambda a, b, c, d, x: d(c(under(lambda x: b(a(x)), x))),
    "every:k=2": lambda a, b, c, d, x: under(d, c(under(b, a(x)))),
    "recursive": lambda a, b, c, d, x: d(under(c, under(lambda x: b(under(a, x)), x))),
    "selective:save=mm": lambda a, b, c, d, x: keeping(d, keeping(c, keeping(b, keeping(a, x)))),
    "plan": lambda a, b, c, d, x: d(under(lambda x: under(lambda x: c(b(x)), a(x)), x)),
    "emitted plan": lambda a, b, c, d, x: d(under(lambda x: under(lambda x: c(b(x)), a(x)), x)),
}


def by_hand(strategy, build):
    torch.manual_seed(0)
    net, x, loss = build()
    scale = {"scale": 0.7} if net.named else {}
    torch.manual_seed(1)
    result = loss(BY_HAND[strategy](*(partial(layer, **scale) for layer in net.layers), x))
    return step(net, result)


def applied(strategy, build):
    torch.manual_seed(0)
    net, x, loss = build()
    if strategy == "emitted plan":
        pasted.apply(emit(plan_of(net, BLOCKS, PLAN), "python"), net)
    elif strategy == "plan":
        profiler.apply(net, plan_of(net, BLOCKS, PLAN), example=x)
    else:
        profiler.apply(net, strategy, example=x, blocks="layers.*")
    torch.manual_seed(1)
    return step(net, loss(net(x)))


def step(net, loss):
    loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
    return {"loss": loss.detach(), **gradients}, list(getattr(net, "events", []))


HOOKED = [(hooks.hooked, name) for name in BY_HAND if name != "emitted plan"]  # whose hooks run around it


@pytest.mark.parametrize(("build", "strategy"), [*HOOKED, *((hooks.reparametrized, name) for name in BY_HAND)])
def test_hooks_run_in_the_order_and_weights_are_computed_with_the_values_of_checkpoints_by_hand(build, strategy):
    expected, events = by_hand(strategy, build)

    found, seen = applied(strategy, build)

    assert seen == events
    assert (len(seen) > 4 * 7) == (build is hooks.hooked)  # each kind of hook once for each block, and more
    assert pasted.same(found, expected)


@pytest.mark.parametrize(
    ("strategy", "times"),
    [("none", 1), ("offload", 1), ("segments:k=2", 2), ("all", 2), ("recursive", 3), ("from-start", 4), ("plan", 3)],
)
def test_a_checkpointed_module_is_shown_as_before_and_is_pickled_and_copied_with_its_checkpoints(strategy, times):
    net, x = nn.Sequential(*(hooks.Block(8) for _ in range(4))), torch.randn(2, 8)
    shown, names = repr(net), list(net.state_dict())
    plan = plan_of(net, tuple("0123"), [[[0], 1], Saving([3], "matmul")])
    profiler.apply(net, plan if strategy == "plan" else strategy, example=x)
    assert all(isinstance(block, hooks.Block) for block in net)
    assert (repr(net), list(net.state_dict()), type(net[0]).__name__) == (shown, names, "Block")
    torch.save(net, stored := io.BytesIO())
    stored.seek(0)

    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(stored, weights_only=False)):
        calls = []
        twin[0].drop.register_forward_pre_hook(lambda block, arguments, calls=calls: calls.append(block))
        twin(x).sum().backward()

        assert calls == [twin[0].drop] * times
        assert all(parameter.grad is not None for parameter in twin[0].parameters())
        with pytest.raises(Unsupported, match="checkpointed already") if times > 1 else nullcontext():
            profiler.apply(twin, "all", blocks="?")
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize(
    ("call", "num_hooked"), [(lambda layer, x: layer.forward(x, scale=0.5), 0), (lambda layer, x: layer(x=x), 2)]
)
def test_a_block_that_is_called_past_its_hooks_or_by_names_alone_is_checkpointed_too(call, num_hooked):
    net, seen, calls = nn.Sequential(*(hooks.Block(8) for _ in range(2))), [], []
    for layer in net:
        layer.register_forward_hook(lambda *_: seen.append(1))
        layer.drop.register_forward_pre_hook(lambda *_: calls.append(1))
    net.forward = lambda x: call(net[1], call(net[0], x))
    profiler.apply(net, "all", blocks="?")

    net(torch.randn(2, 8)).sum().backward()

    assert (len(seen), len(calls)) == (num_hooked, 4)
