"""Small trainings of many kinds of modules, with generators of every kind, and a digest of all that they change."""

import hashlib
import random
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS = 8, 4
OF_PYTHON, OF_NUMPY = random.Random(), np.random.default_rng()
LEGACY, OF_TORCH = np.random.RandomState(), torch.Generator()
NUM_CALLS, SEEN = 0, []


def mlp() -> nn.Module:
    blocks = ((nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.2)) for _ in range(3))
    return nn.Sequential(*(nn.Sequential(*block) for block in blocks))


class Noisy(nn.Module):
    """Draws from a generator of its own, from globals of its file, and from Python's and numpy's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()
        self.generator = torch.Generator().manual_seed(3)
        self.own = random.Random(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rate = self.own.random() + random.random() + OF_PYTHON.random() + LEGACY.rand() + np.random.rand()
        x = x + float(rate + OF_NUMPY.random()) * 1e-3
        return self.layers(x + torch.rand(x.shape, generator=self.generator) + torch.rand(x.shape, generator=OF_TORCH))


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(WIDTH), nn.ReLU(), nn.LazyLinear(WIDTH))


def data_parallel() -> nn.Module:
    return nn.parallel.DistributedDataParallel(mlp())  # in the process group of a test


class Counter:
    def __init__(self) -> None:
        self.count, self.means = 0, {}

    def __call__(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        global NUM_CALLS
        NUM_CALLS += 1
        SEEN.append(output)
        self.count += 1
        self.means[self.count] = output.mean()


def hooked() -> nn.Module:
    """Hooks on two modules, and on all modules and optimizers until it is closed."""
    net, seen, ema, calls, draw = mlp(), [], torch.zeros(WIDTH), 0, np.random.default_rng(5).random
    counts = {"modules": 0, "optimizers": 0}
    own = torch.Generator().manual_seed(6)

    def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        seen.append(output.detach())
        ema.mul_(0.9).add_(output.detach().mean(0))
        return output + draw() * 1e-3 + torch.rand(output.shape, generator=own)

    def count(what: str, *given: Any) -> None:
        counts[what] += 1

    net[1].register_forward_hook(hook)
    net[2].register_forward_hook(Counter())
    handles = [
        nn.modules.module.register_module_forward_hook(partial(count, "modules")),
        register_optimizer_step_post_hook(partial(count, "optimizers")),
    ]
    net.close = lambda: [handle.remove() for handle in handles]
    net.observed = lambda: [calls, len(seen), ema.tolist(), *counts.items()]
    return net


@lru_cache
def mask(size: int) -> torch.Tensor:
    return torch.ones(size).cumsum(0)


class Remembering(nn.Module):
    """Changes its buffers, its attributes and its class in the forward, and recomputes its layers."""

    num_forwards = 0
    latest: torch.Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("last", torch.zeros(ROWS, WIDTH))
        self.history: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).num_forwards += 1
        type(self).latest = x
        self.mean.mul_(0.9).add_(x.mean(0))
        self.last = x.detach()
        self.history.append(x.detach())
        shift = self.mean * mask(x.shape[-1])
        for layer in self.layers.children():
            x = checkpoint(layer, x, use_reentrant=False)
        return x + shift


def compiled() -> nn.Module:
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    net.compile(backend="eager")
    return net


KINDS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "noisy": Noisy,
    "lazy": lazy,
    "ddp": data_parallel,
    "hooked": hooked,
    "remembering": Remembering,
    "compiled": compiled,
}


def train(kind: str, between: Callable[[nn.Module, Any, Any], object] = lambda net, batch, loss: None) -> str:
    """Train for two steps, run what is `between`, and train for two more; the digest of all that has changed."""
    global NUM_CALLS
    NUM_CALLS, Remembering.num_forwards = 0, 0
    SEEN.clear()
    mask.cache_clear()
    for seed in (random.seed, np.random.seed, torch.manual_seed, OF_PYTHON.seed, LEGACY.seed, OF_TORCH.manual_seed):
        seed(11)
    OF_NUMPY.bit_generator.state = np.random.default_rng(11).bit_generator.state
    net, of_loss, order = KINDS[kind](), [0], np.random.default_rng(12)
    data, optimizer = torch.randn(16, WIDTH), None

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        of_loss[0] += 1
        return nn.functional.mse_loss(output, target) * (1 + order.random() * 1e-3)

    for step in range(4):
        if step == 2:
            between(net, (data[:ROWS], data[:ROWS]), loss)
        batch = data[order.permutation(16)[:ROWS]]
        output = net(batch)
        optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=1e-2)
        optimizer.zero_grad()
        loss(output, batch).backward()
        optimizer.step()
    getattr(net, "close", list)()
    return digest(net, optimizer, [of_loss, order.bit_generator.state])


def digest(net: nn.Module, optimizer: torch.optim.Optimizer, own: list[object]) -> str:
    tensors = [*net.state_dict().values(), *(part for of in optimizer.state.values() for part in of.values())]
    tensors += [torch.get_rng_state(), OF_TORCH.get_state(), *SEEN, *getattr(net, "history", ())]
    states = [random.getstate(), OF_PYTHON.getstate(), np.random.get_state()[1].tolist(), OF_NUMPY.bit_generator.state]
    states += [LEGACY.get_state()[1].tolist(), NUM_CALLS, Remembering.num_forwards, [type(part) for part in tensors]]
    states += [getattr(net, "observed", list)(), *own, type(mask(WIDTH)).__name__]
    if isinstance(net, Noisy):
        states += [net.own.getstate(), net.generator.get_state().tolist()]
    bits = b"".join(part.detach().numpy().tobytes() for part in tensors)
    return hashlib.md5(bits + repr(states).encode()).hexdigest()
