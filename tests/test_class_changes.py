"""Strategies beside others that change a class of a block or wrap it; the truth is a net checkpointed by hand."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import profiler
from profiler.core.errors import Unsupported
from profiler.training.workload import local
from tests import pasted

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


def step(net):
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
    plain, by_hand = (step(join(Net(*runs), mesh)) for runs in ((), STRATEGIES[strategy]))
    net = Net()
    whole = None if is_first else join(net, mesh)
    switch = profiler.apply(net, strategy, example=X).switch
    whole = whole or join(net, mesh)

    on = step(whole)
    switch(False)
    off = step(whole)
    switch(True)
    again = step(whole)

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
