"""What strategies do to a module; switched off they leave the step of `none`: bytes, gradients, operators."""

import inspect
from collections import Counter
from dataclasses import dataclass
from functools import partial, partialmethod
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import profiler
from profiler.core import catalogue
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.predicting.prediction import predict
from profiler.training import STRATEGIES, strategies
from profiler.training.assemble import Assembled, assemble
from profiler.training.block_segments import checkpoint_segments, repaired
from profiler.training.observed_forward import ChainBytes, observe
from profiler.training.strategies import peak, split_as_torch, split_balanced, split_text
from profiler.training.workload import Workload
from tests import make, pasted
from tests.chain_models import Counted, workload
from tests.conftest import measured
from tests.pasted import named
from tests.plans import EVERY, written

TRANSFORMER = "transformer:layers=12,width=64,sequence=32,dropout=0"
BY_BLOCKS = ("segments:k=1", "sqrt", "recursive", "from-start", "all", "every:k=1", "first:n=1", "selective:save=mm")


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("strategy", BY_BLOCKS)
def test_whatever_checkpoints_no_block_of_a_short_chain_says_so(strategy, length):
    applied = profiler.apply(nn.Sequential(*(nn.Linear(2, 2) for _ in range(length))), strategy)

    assert ("GCP001" in [note.code for note in applied.notes]) == (not applied.recomputes)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("none", [1, 1, 1, 1, 1, 1]),
        ("all", [2, 2, 2, 2, 2, 2]),
        ("every:k=3", [1, 1, 2, 1, 1, 2]),
        ("first:n=4", [2, 2, 2, 2, 1, 1]),
        ("sqrt", [2, 2, 2, 1, 1, 1]),  # sqrt(6) = 2.4: two segments, the last one plain
        ("segments:k=3", [2, 2, 2, 2, 1, 1]),
        ("recursive", [3, 3, 2, 2, 2, 1]),  # [[0] [1] 2] [3 ...]: halves within halves
        ("from-start", [6, 5, 4, 3, 2, 1]),  # n(n+1)/2 in all
    ],
)
def test_every_strategy_computes_each_block_as_often_as_it_says(strategy, expected):
    module = nn.Sequential(*[Counted() for _ in range(6)])
    work = workload(module, tuple("012345"))
    apply, options = catalogue.load(Choice(strategy), STRATEGIES)

    applied = apply(work, **options)

    for block in module:
        block.calls = 0  # one forward may have been observed
    work.loss(module, work.batch).backward()
    assert [block.calls for block in module] == expected
    assert [1 + applied.recomputes.get(index, 0) for index in range(6)] == expected


@dataclass
class Boxed:
    x: torch.Tensor


class Unboxing(Counted):
    def forward(self, x: torch.Tensor | Boxed) -> torch.Tensor:
        return super().forward(x.x if isinstance(x, Boxed) else x)


class Tapped(nn.Module):
    """Each block feeds the next one, and something else besides."""

    def __init__(self, tap) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Unboxing() for _ in range(4)])
        self.tap = tap

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        total, kept = torch.zeros(4, 2, 3), []
        for index, layer in enumerate(self.layers):
            x = layer(x)
            x = self.tap(x, index, total, kept)
        return x + total.sum(), kept


TAPS = {
    "more than a chain": lambda x, index, total, kept: torch.tanh(x) + x,
    "by an item": lambda x, index, total, kept: total.__setitem__(index, x.detach()) or x,
    "by what is returned": lambda x, index, total, kept: kept.append(x) or x,
    "written over": lambda x, index, total, kept: x.relu_(),
    "a dataclass": lambda x, index, total, kept: Boxed(x) if index < 3 else x,
}


@pytest.mark.parametrize("strategy", ["segments:k=2", "from-start"])
@pytest.mark.parametrize("tap", TAPS)
def test_a_module_that_does_more_than_chain_its_blocks_is_unsupported_and_not_changed(tap, strategy):
    module, x = Tapped(TAPS[tap]), torch.ones(2, 3)
    expected = module(x)

    with pytest.raises(Unsupported, match=f"cannot be run together.*{tap if 'class' in tap else ''}"):
        profiler.apply(module, strategy, example=x)
    with pytest.raises(Unsupported, match="pass a batch as example="):
        profiler.apply(module, strategy)

    torch.testing.assert_close(module(x), expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("error::FutureWarning")
def test_hooks_around_blocks_get_what_a_selective_checkpoint_saves():
    """Of each block its input, 4 KiB, and the results of its two products, 16 KiB and 4 KiB."""
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(2)))
    profiler.apply(blocks, "selective:save=addmm", blocks="?")
    parameters = {parameter.data_ptr() for parameter in blocks.parameters()}
    packed = []

    def pack(tensor):
        packed.append(0 if tensor.data_ptr() in parameters else tensor.nbytes)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        blocks(torch.ones(64, 16)).sum().backward()

    reach = "respect_saved_tensors_hooks" in inspect.signature(checkpoint).parameters  # not before torch 2.15
    assert sum(packed) == 2 * (4 + (16 + 4 if reach else 0)) * 1024


def test_selective_checkpointing_that_keeps_nothing_says_so_and_what_the_blocks_have():
    def notes(save: str) -> list[str]:
        case = make.case(f"selective:save={save}", model=Choice("mnist-cnn:channels=2,layers=5"), device="fake:t4")
        return [note.text for note in predict(Trial(case=case, passes=("memory",))).notes if note.code == "GCP063"]

    (nothing,) = notes("matmul")

    assert "save=matmul has no operator of these blocks" in nothing
    assert nothing.endswith("these blocks have save=conv")
    assert notes("conv") == notes("matmul+conv") == []


@pytest.mark.parametrize("word", ["matmull", "__name__"])
def test_selective_refuses_an_operator_that_aten_does_not_have(word):
    with pytest.raises(Unsupported, match=f"no operator '{word}'"):
        strategies.selective(workload(nn.Sequential(Counted()), ("0",)), save=word)


@pytest.mark.parametrize(  # of transformers since 5.23 and before, and of diffusers
    "on", ["activation_checkpointing_enable", "gradient_checkpointing_enable", "enable_gradient_checkpointing"]
)
def test_the_switch_of_diffusers_and_of_transformers_is_used_by_the_name_that_it_has(on):
    class Model(Counted):
        gradient_checkpointing, given = False, ()

        def switch(self, *given, on=True):
            self.gradient_checkpointing, self.given = on, given

    setattr(Model, on, Model.switch)
    setattr(Model, on.replace("enable", "disable"), partialmethod(Model.switch, on=False))
    module = Model()

    applied = strategies.hugging_face(workload(module, ("linear",)))
    is_on, given = module.gradient_checkpointing, module.given
    applied.switch(False)

    assert (is_on, given) == (True, ({"use_reentrant": False},) if on.endswith("enable") else ())
    assert (applied.split, applied.keeps_own) == ("1 switched on", True)
    assert not module.gradient_checkpointing


@pytest.mark.parametrize("k", [2, 5])
def test_the_extra_flops_of_every_kth_block_equal_arithmetic(k):
    batch, time, width, layers = 8, 32, 64, 12
    weights = 3 * width * width + width * width + 4 * width * width  # qkv, out, up: the recompute stops before down
    tokens = batch * time
    attention = 2 * 2 * batch * time * time * width  # scores and mixing, as torch counts a causal one

    extra = [measured(TRANSFORMER, s, passes=("flops",)).readings.backward_flops for s in ("none", f"every:k={k}")]

    assert extra[1] - extra[0] == (layers // k) * (2 * tokens * weights + attention)


def twice(module, x, *, checkpointed):
    """Two forwards of a module, of different batches, and a backward, in which the second runs again first."""
    run = partial(checkpoint, use_reentrant=False) if checkpointed else lambda module, x: module(x)
    (run(module, x) + run(module, 3 * x + 1)).square().sum().backward()


@pytest.mark.parametrize(
    "norm", [partial(nn.BatchNorm1d, momentum=None), partial(nn.InstanceNorm1d, track_running_stats=True)]
)
def test_blocks_that_share_a_norm_and_run_several_times_have_the_statistics_of_the_plain_ones(norm):
    """The recomputes run in reverse, so that no momentum makes up for them."""
    shared = [norm(4) for _ in range(3)]
    plain, held, left_alone = (
        nn.Sequential(*(nn.Sequential(nn.Conv1d(4, 4, 1), both, nn.ReLU()) for _ in range(2))) for both in shared
    )
    held.load_state_dict(plain.state_dict())
    left_alone.load_state_dict(plain.state_dict())
    x = torch.randn(4, 4, 5)
    applied = repaired(workload(held, ("0", "1")), Applied(recomputes={0: 1, 1: 1}))

    twice(plain, x, checkpointed=False)
    twice(held, x, checkpointed=True)
    twice(left_alone, x, checkpointed=True)

    assert "of 1 BatchNorm" in applied.notes[0].text
    assert all(map(torch.equal, plain.buffers(), held.buffers()))
    assert not all(map(torch.equal, plain.buffers(), left_alone.buffers()))
    assert held[0][1].momentum == plain[0][1].momentum
    for one, other in zip(plain.parameters(), held.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.usefixtures("with_test_models")
def test_a_batchnorm_whose_results_are_saved_counts_its_batches_twice_and_is_repaired():
    record = measured("batchnorm", "selective:save=native_batch_norm", passes=("equality",))
    repaired = measured("batchnorm", "selective:save=native_batch_norm", passes=("equality",), repair_batchnorm=True)

    assert record.equality.buffers_difference is None
    assert record.equality.differing_buffers == tuple(f"{i}.num_batches_tracked" for i in (1, 3, 5))
    assert (repaired.equality.buffers_equal, repaired.equality.gradients_equal) == (True, True)


# --- where chains are cut


@pytest.mark.parametrize(
    ("length", "segments", "text"),
    [(5, 1, "5"), (5, 5, "4x1+1"), (9, 4, "3x2+3"), (50, 32, "31x1+19"), (100, 32, "31x3+7")],
)
def test_the_split_is_that_of_checkpoint_sequential(length, segments, text):
    """Its early stop leaves out what comes after the last saved tensor, so every module here saves one."""
    chain = nn.Sequential(*(Counted() for _ in range(length)))
    x = torch.randn(1, 3, requires_grad=True)

    split = split_as_torch(length, segments)

    checkpoint_sequential(chain, segments, x, use_reentrant=False).sum().backward()
    assert [block.calls for block in chain] == [1 + any(index in run for run in split) for index in range(length)]
    assert split_text(split, length) == text


def largest(saved: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    return max(sum(saved[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(len(sizes)))


def every_cut(length: int, segments: int):
    if segments == 1 or length == 1:
        yield (length,)
        return
    yield (length,)
    for first in range(1, length):
        for rest in every_cut(length - first, segments - 1):
            yield (first, *rest)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 5), st.integers(0, 30))
def test_balanced_has_the_smallest_possible_largest_segment(saved, segments, tail):
    chain = ChainBytes(saved=tuple(saved), inputs=(1,) * len(saved), tail=tail)

    split = split_balanced(chain, min(segments, len(saved)))

    sizes = [len(run) for run in split]
    sizes += [len(saved) - sum(sizes)] if sum(sizes) < len(saved) else []
    best = min(largest(chain.saved, sizes) for sizes in every_cut(len(saved), min(segments, len(saved))))
    assert largest(chain.saved, sizes) == best
    assert [place for run in split for place in run] == list(range(sum(map(len, split))))
    assert len(sizes) <= segments


def test_the_last_segment_is_checkpointed_only_where_head_and_loss_hold_much():
    little = ChainBytes(saved=(10, 10, 10, 10), inputs=(1, 1, 1, 1), tail=0)
    much = ChainBytes(saved=(10, 10, 10, 10), inputs=(1, 1, 1, 1), tail=50)

    plain_end, checkpointed_end = split_balanced(little, 2), split_balanced(much, 2)

    assert (split_text(plain_end, 4), split_text(checkpointed_end, 4)) == ("2+2", "2x2+0")
    at_loss = peak(little, [range(2), range(2, 4)], is_whole=False)
    assert at_loss == 1 + 1 + 20  # both inputs and the plain end
    assert peak(much, checkpointed_end, is_whole=True) == 1 + 1 + 50


def test_an_observation_counts_what_each_block_saves():
    chain = observe(named("mlp", 64)).chain

    relu = 64 * 20 * 4
    assert chain.saved == (0, relu, 0, relu, 0)  # Linear saves its input, which is the batch or is counted already
    state = torch.get_rng_state().nbytes  # every checkpoint keeps it, on the CPU in the memory that is measured
    assert chain.inputs == (64 * 10 * 4 + state, *[relu + state] * 4)
    assert chain.tail == 64 * 5 * 4 + 4  # log-softmax and the loss's weight


def test_the_words_of_a_blocks_call_are_its_own():
    class Block(nn.Module):
        def forward(self, x, given=1, output=2):
            return x * given + output

    class Model(nn.Sequential):
        def forward(self, x):
            return self[1](self[0](x, given=2, output=1), given=2, output=1).sum()

    batch, module = torch.ones(2, requires_grad=True), Model(Block(), Block())

    assert observe(Workload(module=module, blocks=("0", "1"), batch=batch, loss=lambda module, x: module(x))).linked[0]


# --- switches

MODELS = ("mlp", "cifar-resnet:depth=2", "transformer:layers=4,width=32,sequence=16,vocabulary=50", "llama:sequence=16")
GPT2 = "hf:gpt2:n_embd=32,n_head=2,n_layer=3,vocab_size=50,sequence=8"
CASES = [*product(MODELS, (choice for choices in EVERY.values() for choice in choices)), (GPT2, "hf")]


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
    """Compiled code stays what it is; `hf` is among CASES."""
    assert {name for name, choices in EVERY.items() if not choices} == {"compile-budget", "hf", "_planted"}
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
