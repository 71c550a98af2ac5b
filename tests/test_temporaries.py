"""What operators take besides their results, and those that write in place, as the allocator sees it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from profiler.core.case import Choice, Trial
from profiler.core.record import Readings
from profiler.measuring.trial import measure
from profiler.predicting.prediction import predict
from profiler.predicting.trace import fake_tensors, in_place, temporaries
from profiler.training import assemble
from profiler.training.workload import Workload
from tests import make

WIDTH = 20_000  # elements of a sample: the loss weighs as much as all else
LOSSES = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "soft_margin_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)
PICKS = {
    "sort": lambda x: x.view(16, -1, 8).sort(2)[0],
    "topk": lambda x: x.topk(16, dim=1)[0],
    "max": lambda x: x.max(1)[0],
    "min": lambda x: x.min(1)[0],
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "minimum": lambda x: torch.minimum(x, x.flip(0)),
    "spread and mean": lambda x: sum(torch.var_mean(x)),
    "spread and mean of columns": lambda x: torch.cat(torch.var_mean(x, 0)),
    "index": lambda x: x[torch.arange(8)],
    "index_select": lambda x: x.index_select(0, torch.arange(8)),
    "gather": lambda x: x.gather(1, torch.zeros(16, 100, dtype=torch.long)),
}

FOLDS = {
    "columns": lambda x: F.unfold(x.view(16, 2, 100, 100), 3, padding=1),
    "patches": lambda x: F.unfold(x.view(16, 2, 100, 100).transpose(2, 3), 10, stride=10),
    "patches that leave a margin": lambda x: F.unfold(x.view(16, 2, 100, 100), 16, stride=16),
    "image with gaps": lambda x: F.fold(x.view(16, 8, 2500), (149, 149), 2, stride=3),
    "image": lambda x: F.fold(x.view(16, 8, 2500).transpose(1, 2).reshape(16, 8, 2500), (51, 51), 2),
}


class Scaled(nn.Module):
    """Nothing but a product, and what is asked for."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(x * self.scale)


def build(change: Callable, loss: Callable) -> Workload:
    batch = torch.rand(16, WIDTH), torch.rand(16, WIDTH)
    module = Scaled(change)
    return Workload(
        module=module, batch=batch, loss=lambda module, batch: loss(module(batch[0]), batch[1]), blocks=("",)
    )


def both(built: Callable[[], Workload], strategy: str = "none") -> tuple[Readings, Readings]:
    """Predicted and measured."""
    case = partial(make.case, strategy, model=Choice("mlp"), batch_size=16, verify="off")
    with mock.patch.object(assemble, "_from_catalogue", return_value=built):
        real = measure(Trial(case=case(), passes=("memory",))).readings
        return predict(Trial(case=case(device="fake:cpu"))).readings, real


def check(found: Readings, real: Readings) -> None:
    assert found.saved_bytes == pytest.approx(real.saved_bytes, abs=64)  # one number more or less
    for phase, bytes_ in real.phases.items():
        assert found.phases[phase].allocated == pytest.approx(bytes_.allocated, rel=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_take_what_the_allocator_sees(name, reduction):
    change = torch.sigmoid if name == "binary_cross_entropy" else torch.clone
    loss = partial(getattr(F, name), reduction=reduction)

    check(*both(partial(build, change, lambda out, target: loss(out, target).mean())))


@pytest.mark.parametrize("weights", [{"weight": torch.ones(WIDTH)}, {"pos_weight": torch.ones(1)}], ids=", ".join)
def test_a_weighted_loss_takes_what_the_allocator_sees(weights):
    check(*both(partial(build, torch.clone, partial(F.binary_cross_entropy_with_logits, **weights))))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_targets_of_another_type_count_as_what_the_loss_makes_of_them(dtype):
    def loss(out, target):
        return F.mse_loss(out, target.to(dtype))

    found, real = both(partial(build, torch.clone, loss))

    assert found.saved_bytes == pytest.approx(real.saved_bytes, abs=64)


class Labelled(nn.Module):
    """A block with a loss and a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        picked = torch.zeros_like(x).scatter_add(1, torch.zeros(x.shape, dtype=torch.long), x)
        gathered = picked.gather(1, torch.zeros(x.shape, dtype=torch.long))
        return gathered + F.binary_cross_entropy_with_logits(self.scale * x, torch.ones(WIDTH).expand_as(x))


def labelled() -> Workload:
    def loss(module, batch):
        return module(batch).square().mean()

    module = nn.Sequential(*(Labelled() for _ in range(3)))
    return Workload(module=module, batch=torch.rand(16, WIDTH), loss=loss, blocks=("0", "1", "2"))


@pytest.mark.parametrize("strategy", ["none", "all"])
def test_what_a_block_computes_again_is_not_taken_for_autograds_own(strategy):
    found, real = both(labelled, strategy)

    assert found.peak_bytes == pytest.approx(real.peak_bytes, rel=0.001)


def test_a_backward_that_is_differentiated_itself_does_not_write_in_place():
    def loss(out, target):
        (slope,) = torch.autograd.grad(F.binary_cross_entropy_with_logits(out, target), out, create_graph=True)
        return slope.square().sum()

    found, real = both(partial(build, torch.clone, loss))

    assert found.peak_bytes == pytest.approx(real.peak_bytes, rel=0.001)


class Heads(nn.Module):
    """One large feature, several small heads."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(16, WIDTH)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.trunk(x)
        return torch.cat([head(features) for head in self.heads])


def heads() -> Workload:
    def loss(module, batch):
        return module(batch).square().mean()

    return Workload(module=Heads(), batch=torch.rand(256, 16), loss=loss, blocks=("",))


def test_gradients_of_what_is_used_more_than_once_are_summed_in_place():
    found, real = both(heads)

    assert found.peak_bytes == pytest.approx(real.peak_bytes, rel=0.005)


def test_out_of_place_their_sum_takes_more(monkeypatch):
    monkeypatch.setattr(in_place, "SUM", None)

    found, real = both(heads)

    assert found.peak_bytes > 1.2 * real.peak_bytes


@pytest.mark.parametrize("name", PICKS)
def test_backwards_that_write_in_place_take_what_the_allocator_sees(name):
    check(*both(partial(build, PICKS[name], lambda out, target: (out * out).mean())))


@pytest.mark.parametrize("name", FOLDS)
def test_folds_take_what_the_allocator_sees(name):
    check(*both(partial(build, FOLDS[name], lambda out, target: out.sum())))


def test_as_large_as_they_look_folds_take_less(monkeypatch):
    monkeypatch.setattr(fake_tensors, "LARGER", ())

    with pytest.raises(AssertionError):
        check(*both(partial(build, FOLDS["columns"], lambda out, target: out.sum())))


def test_without_the_elements_of_a_loss_its_peak_is_missed(monkeypatch):
    monkeypatch.setattr(fake_tensors, "LARGER", ())

    with pytest.raises(AssertionError):
        check(*both(partial(build, torch.clone, F.mse_loss)))


def test_without_the_temporaries_of_a_loss_its_forward_is_missed(monkeypatch):
    monkeypatch.setattr(temporaries, "TEMPORARIES", {})

    with pytest.raises(AssertionError):
        check(*both(partial(build, torch.clone, F.mse_loss)))


def test_out_of_place_the_backward_takes_more(monkeypatch):
    monkeypatch.setattr(in_place, "NODES", {})

    with pytest.raises(AssertionError):
        check(*both(partial(build, PICKS["index"], lambda out, target: (out * out).mean())))
