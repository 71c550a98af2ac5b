"""`selective` where an operator that it keeps draws random numbers: those after it draw as in the forward."""

import pytest
import torch
from torch import nn

from profiler.planning.plan_code import emit
from profiler.training.strategies import selective
from profiler.training.workload import Workload
from tests.pasted import apply, planned
from tests.plans import Saving


class Block(nn.Module):
    """Two masks, of which the second one is drawn after the first."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        hidden = torch.relu(self.first(x)) * torch.bernoulli(torch.full_like(x, 0.5))
        return x + self.second(hidden) * torch.rand_like(x)


def gradients(save=None, change=lambda workload: None):
    torch.manual_seed(0)
    module = nn.Sequential(*[Block() for _ in range(3)])
    batch = torch.randn(16, 64)
    workload = Workload(
        module=module, blocks=("0", "1", "2"), batch=batch, loss=lambda module, x: module(x).square().mean()
    )
    if save:
        selective.apply(workload, save=save)
    change(workload)
    torch.manual_seed(1)
    for _ in range(2):
        workload.loss(module, batch).backward()
    return [parameter.grad for parameter in module.parameters()], torch.get_rng_state()


@pytest.mark.parametrize("save", ["bernoulli", "bernoulli+addmm", "addmm", "rand_like"])
def test_gradients_are_those_without_checkpoints(save):
    plain, state = gradients()
    kept, after = gradients(save)

    assert all(map(torch.equal, plain, kept))
    assert torch.equal(state, after)


@pytest.mark.parametrize("kind", ["python", "fsdp"])
def test_gradients_of_emitted_code_are_those_without_checkpoints(kind):
    def change(workload):
        code = emit(planned(workload, [Saving([0], "bernoulli+addmm"), Saving([2], "bernoulli")]), kind)
        assert "nondeterministic_seeded" in code
        apply(code, workload.module)

    plain, _ = gradients()
    kept, _ = gradients(change=change)

    assert all(map(torch.equal, plain, kept))
