"""A strategy switched off leaves the step of `none`: bytes, gradients, operators; and it can be switched on again."""

from collections import Counter
from itertools import product

import pytest
import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.core.case import Choice
from profiler.core.errors import Unsupported
from profiler.training import STRATEGIES
from profiler.training.assemble import Assembled, assemble
from profiler.training.block_segments import checkpoint_segments
from tests import make, pasted
from tests.plans import EVERY, written

MODELS = (
    "mlp",
    "cifar-resnet:depth=2",
    "transformer:layers=4,width=32,sequence=16,vocabulary=50",
    "llama:sequence=16",
)
GPT2 = "hf:gpt2:n_embd=32,n_head=2,n_layer=3,vocab_size=50,sequence=8"
CASES = [*product(MODELS, (choice for choices in EVERY.values() for choice in choices)), (GPT2, "hf")]
WITHOUT = {"compile-budget"}  # compiled code stays what it is
ELSEWHERE = {"hf"}  # on models of Hugging Face


class Operators(TorchDispatchMode):
    """Counts the operators that run, under everything that gcprof installs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.counts[str(function)] += 1
        return function(*arguments, **(keywords or {}))


def step(assembled: Assembled) -> tuple[dict[str, torch.Tensor], Counter[str], int]:
    """The gradients, what ran, and the bytes of the distinct storages that autograd was given to keep."""
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address comes twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with Operators() as operators, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assembled.gradients()
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in assembled.workload.module.named_parameters()
        if parameter.grad is not None
    }
    return gradients, operators.counts, sum(storage.nbytes() for storage in kept.values())


def test_every_strategy_of_the_catalogue_has_a_switch_or_is_known_to_have_none():
    assert {name for name, choices in EVERY.items() if not choices} == {*WITHOUT, *ELSEWHERE, "_planted"}
    assert EVERY.keys() == STRATEGIES.keys()


@pytest.mark.filterwarnings("error:.*checkpointing.*is deprecated:FutureWarning")
@pytest.mark.parametrize(("model", "strategy"), CASES)
def test_a_strategy_that_is_switched_off_leaves_the_step_of_none(model, strategy, tmp_path):
    none = make.case(model=Choice(model), batch_size=4)
    true = step(assemble(none))
    try:
        assembled = assemble(replace(none, strategy=Choice(str(written(strategy, model, tmp_path)))))
    except Unsupported as reason:
        pytest.skip(str(reason))
    on = step(assembled)

    assembled.switch(False)
    off = step(assembled)
    assembled.switch(True)
    again = step(assembled)

    assert pasted.same(off[0], true[0])
    assert off[1:] == true[1:]
    assert again[1:] == on[1:]
    if assembled.applied.recomputes or strategy == "hf":
        assert sum(again[1].values()) > sum(true[1].values())  # it does recompute, so the switch did something


def test_an_activation_writes_in_place_again_once_a_switch_is_off():
    work = pasted.in_place()
    switch = checkpoint_segments(work, [[1, 2]])
    was = work.module[1].inplace
    switch(False)

    assert (was, work.module[1].inplace) == (False, True)
