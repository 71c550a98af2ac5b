"""Steps of an assembled model whose strategy is switched on and off: gradients, what ran, what was kept."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.core.case import Choice
from profiler.training.assemble import Assembled, assemble
from tests import make
from tests.catalogue_choices import EVERY

MODELS = (
    "mlp",
    "cifar-resnet:depth=2",
    "transformer:layers=4,width=32,sequence=16,vocabulary=50",
    "llama:sequence=16",
)
CHOICES = [choice for choices in EVERY.values() for choice in choices]


class _Operators(TorchDispatchMode):
    """Counts the operators that run, under everything that gcprof installs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.counts[str(function)] += 1
        return function(*arguments, **(keywords or {}))


def built(model: str, strategy: str, batch_size: int | None = 4, **fields) -> Assembled:
    case = make.case(strategy, model=Choice(model), batch_size=batch_size, **fields)
    return assemble(case)


def step(assembled: Assembled) -> tuple[dict[str, torch.Tensor], Counter[str], int]:
    """The gradients, what ran, and the bytes of the distinct storages that autograd was given to keep."""
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address comes twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with _Operators() as operators, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assembled.gradients()
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in assembled.workload.module.named_parameters()
        if parameter.grad is not None
    }
    return gradients, operators.counts, sum(storage.nbytes() for storage in kept.values())


def assert_same(step_of_strategy, step_of_none) -> None:
    gradients, operators, saved = step_of_strategy
    true_gradients, true_operators, true_saved = step_of_none
    assert gradients.keys() == true_gradients.keys()
    assert all(torch.equal(gradient, true_gradients[name]) for name, gradient in gradients.items())
    assert operators == true_operators
    assert saved == true_saved
