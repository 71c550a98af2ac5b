"""A checkpointed block behaves as by `checkpoint(block, x)`, also where others change it. By hand is the truth here."""

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import profiler
from profiler.core.errors import Unsupported
from profiler.planning.plan_code import emit
from profiler.training.workload import local
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
    return step(net, loss(BY_HAND[strategy](*(partial(layer, **scale) for layer in net.layers), x)))


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


# --- strategies beside others that change a class of a block or wrap it


DIM, LENGTH = 8, 4
RAN: list[int] = []  # one entry for each block that is computed
X = torch.linspace(-1, 1, 3 * DIM).view(3, DIM)
count = partial(RAN.append, 1)


class Counted(nn.Linear):
    count = staticmethod(count)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count()
        return super().forward(x)


class Net(nn.Module):
    """Four blocks in a loop, computed together or one by one under checkpoints by hand."""

    def __init__(self, *runs: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Counted(DIM, DIM) for _ in range(LENGTH))
        self.runs = runs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        by_hand = [index for run in self.runs for index in run]
        for run in self.runs:
            x = checkpoint(partial(self.several, run), x, use_reentrant=False)
        return self.several([index for index in range(LENGTH) if index not in by_hand], x)

    def several(self, run, x):
        for index in run:
            x = self.blocks[index](x)
        return x


STRATEGIES = {"all": ((0,), (1,), (2,), (3,)), "segments:k=2": ((0, 1),)}


@pytest.fixture
def mesh():
    store = dist.HashStore()  # type: ignore[attr-defined]  # which it has
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def sharded(net, mesh, **options):
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def normed(net, mesh):
    for block in net.blocks:
        parametrizations.weight_norm(block)
    return net


def compiled(net, mesh):
    for block in net.blocks:
        block.count = torch.compiler.disable(count)
        block.compile(backend="aot_eager")
    return net


PARTIES = {
    "fsdp2 in bf16": partial(sharded, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    "ddp": lambda net, mesh: nn.parallel.DistributedDataParallel(net),
    "weight_norm": normed,
    "compile": compiled,
}


def trained(net):
    """A step's loss and gradients, and how many blocks it computed."""
    RAN.clear()
    loss = net(X).float().square().mean()
    loss.backward()
    gradients = {name: local(parameter.grad).clone() for name, parameter in net.named_parameters()}
    net.zero_grad()
    return {"loss": loss.detach(), **gradients}, len(RAN)


QUICK = ("ddp", "weight_norm")  # the others import much of PyTorch


@pytest.mark.parametrize("party", [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in PARTIES])
@pytest.mark.parametrize("is_first", [True, False], ids=["strategy first", "strategy last"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_beside_another_change_of_class_has_the_step_of_checkpoints_by_hand(mesh, party, is_first, strategy):
    join = PARTIES[party]
    plain, by_hand = (trained(join(Net(*runs), mesh)) for runs in ((), STRATEGIES[strategy]))
    net = Net()
    whole = None if is_first else join(net, mesh)
    switch = profiler.apply(net, strategy, example=X).switch
    whole = whole or join(net, mesh)

    on = trained(whole)
    switch(False)
    off = trained(whole)
    switch(True)
    again = trained(whole)

    assert pasted.same(on[0], by_hand[0])
    assert pasted.same(off[0], plain[0])
    assert pasted.same(again[0], by_hand[0])
    assert (off[1], on[1], again[1]) == (plain[1], by_hand[1], by_hand[1])


def test_what_is_put_around_each_block_of_a_run_later_is_refused_and_not_computed_wrong():
    net = Net()
    profiler.apply(net, "segments:k=2", example=X)
    net.blocks = nn.ModuleList(nn.Sequential(block, nn.Linear(DIM, DIM)) for block in net.blocks)

    with pytest.raises(Unsupported, match=r"blocks\.1"):
        net(X)
