"""Gradients are equal, or the row is invalid and says where."""

import math
import re

import msgspec
import pytest
import torch
from torch import nn
from torch._functorch import config
from torch._inductor import compile_fx
from torch._inductor.utils import fresh_cache

from profiler.core.errors import Unsupported
from profiler.measuring import meters
from profiler.measuring.meters import equality
from profiler.training import strategies
from profiler.training.workload import Workload
from tests.chain_models import workload
from tests.conftest import measured
from tests.plans import EVERY, written
from tests.user_models import architectures

SKIPPED = {("mnist-cnn:channels=4", "from-start"): "301 blocks would nest 301 checkpoints; 48 are the most"}
MODELS = (
    "mlp",
    "mnist-cnn:channels=4",
    "cifar-resnet:depth=2",
    "transformer:layers=4,width=32,sequence=16,vocabulary=50",
    "dense-chain:widths=16+32+16+8",
    "llama:sequence=16",
)
PASSES = ("equality",)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", [choice for choices in EVERY.values() for choice in choices])
def test_gradients_are_bit_equal_on_the_cpu(model, strategy, tmp_path):
    choice = written(strategy, model, tmp_path)
    if (model, strategy) in SKIPPED:
        with pytest.raises(Unsupported, match=SKIPPED[model, strategy]):
            measured(model, choice, passes=PASSES)
        return

    record = measured(model, choice, passes=PASSES)

    assert record.outcome == "ok", record.detail
    assert record.equality.gradients_equal
    assert record.equality.loss_equal
    assert record.equality.buffers_equal or "GCP004" in [note.code for note in record.notes]
    assert record.equality.random_state_equal


def test_a_gradient_that_is_zero_but_for_rounding_is_held_to_the_largest_of_the_model():
    """The bias before a BatchNorm has none: two runs differ by as much as it is, and by nothing that matters."""
    model, batch, loss = architectures.any_order()
    loss(model(batch)).backward()
    gradients = {name: float(value.grad.abs().max()) for name, value in model.named_parameters()}

    none, every = (
        measured(f"{architectures.__file__}:any_order", strategy, batch_size=None, passes=PASSES)
        for strategy in ("none", "all")
    )

    assert 0 < gradients["0.hidden.bias"] < 1e-6 * max(gradients.values())
    assert (none.outcome, every.outcome) == ("ok", "ok"), every.detail
    assert 0 < none.equality.noise_floor < 1e-3
    assert "GCP044" not in [note.code for note in none.notes]


def test_a_difference_within_the_noise_of_the_model_is_ok_unless_strict():
    build = "tests.faulty:build:kind=noise"
    calm, floor = (measured(model, "none", passes=PASSES).equality.noise_floor for model in ("mlp", build))
    noisy, strict = (measured(build, "segments:k=2", passes=PASSES, verify=verify) for verify in ("auto", "strict"))

    assert calm == 0.0 < floor
    assert (noisy.outcome, noisy.equality.gradients_equal, strict.outcome) == ("ok", False, "invalid")


def test_spectral_norms_vectors_are_named_as_what_the_recompute_changes_and_are_no_batchnorms():
    record = measured(f"{architectures.__file__}:critic", "all", passes=PASSES, batch_size=None, repair_batchnorm=True)

    (text,) = (note.text for note in record.notes if note.code == "GCP004")
    assert record.outcome == "invalid"
    assert re.search(r": the recompute changes \d.0.parametrizations.weight.0._[uv], .* again(;|$)", record.detail)
    assert "running" not in record.detail + text
    assert text.endswith("a second time")


def test_a_loss_that_is_not_finite_is_a_note():
    record = measured("tests.faulty:build:kind=nan", "segments:k=2", passes=("equality", "memory"))

    assert record.outcome == "ok"
    assert "GCP007" in [note.code for note in record.notes]


@pytest.mark.parametrize(
    ("reference", "other", "expected"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.0, -3.0], 0.25),
        ([0.0], [3.0], 1.0),
        ([0.0], [-0.0], 0.0),  # not the same bits
        ([1.0], [math.nan], 2.0),
        (None, [0.0, 0.0], 2.0),  # there on one side only: as different as can be
        (None, None, 0.0),
    ],
)
def test_differences_are_relative_to_the_largest_value(reference, other, expected):
    tensors = (None if values is None else torch.tensor(values) for values in (reference, other))

    assert meters.difference(*tensors) == expected


@pytest.mark.parametrize("place", [0, 3, 6])
def test_values_are_compared_a_part_at_a_time(monkeypatch, place):
    monkeypatch.setattr(meters, "CHUNK", 3)
    reference, other = torch.ones(7), torch.ones(7)
    other[place] = 4.0

    assert meters.difference(reference, other) == 3 / 4
    assert meters.largest(torch.cat([other, torch.tensor([math.inf, math.nan])])) == 4.0
    assert meters.largest(torch.zeros(0)) == 0.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")
def test_gradients_of_a_gpu_are_compared_on_it_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr(meters, "CHUNK", 2**16)
    weight = nn.Parameter(torch.ones(2**20, device="cuda:0"))
    ran = equality.Ran(
        workload=Workload(module=nn.ParameterList([weight]), batch=(), loss=lambda module, batch: module[0].sum()),
        loss=weight.sum(),
        again=weight.sum,
    )
    ran.loss.backward()
    results = equality.collect(lambda: ran)
    gradients = {name: gradient + 1 for name, gradient in results.gradients.items()}
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()

    equality.compare(results, msgspec.structs.replace(results, gradients=gradients))

    assert 2 * 8 * 2**16 <= torch.cuda.max_memory_allocated() - before < 8 * 2**20  # of float64; whole, one takes more


PARTITION = "min_cut_rematerialization_partition"  # the one function that the budget speaks to


@pytest.mark.slow
def test_every_budget_is_compiled_anew_in_one_process(monkeypatch):
    budgets, partition = [], vars(compile_fx)[PARTITION]
    noted = lambda *given, **named: budgets.append(config.activation_memory_budget) or partition(*given, **named)  # noqa: E731
    monkeypatch.setattr(compile_fx, PARTITION, noted)

    with fresh_cache():  # else a graph may come from the disk
        for budget in (0.1, 1.0, 0.0):
            module = nn.Sequential(nn.Linear(3, 3))
            strategies.compile_budget(workload(module, ("0",)), budget=budget)
            module(torch.ones(2, 3)).sum().backward()

    assert budgets == [0.1, 1.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("is_wrong", [False, True])
def test_code_that_draws_otherwise_when_compiled_is_compared_with_a_compile_without_a_budget(is_wrong, monkeypatch):
    partition = vars(compile_fx)[PARTITION]

    def planted(*arguments, **keywords):
        forward, backward = partition(*arguments, **keywords)
        if is_wrong and config.activation_memory_budget < 1:
            double_a_gradient(backward)
        return forward, backward

    monkeypatch.setattr(compile_fx, PARTITION, planted)
    with fresh_cache():
        record = measured("tests.chain_models:drawing", "compile-budget:budget=0.9", passes=PASSES)

    assert record.outcome == ("invalid" if is_wrong else "ok"), record.detail
    assert record.equality.against == "compile-budget:budget=1.0"
    assert "GCP011" in [note.code for note in record.notes]


def double_a_gradient(backward):
    """A planted fault: the first gradient that a compiled backward gives is twice what it should be."""
    (output,) = (node for node in backward.graph.nodes if node.op == "output")
    (results,) = output.args
    right = next(node for node in results if node is not None)
    with backward.graph.inserting_before(output):
        wrong = backward.graph.call_function(torch.ops.aten.add.Tensor, (right, right))
    wrong.meta = dict(right.meta)
    output.args = ([wrong if node is right else node for node in results],)
    backward.recompile()


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_gradients_that_would_vanish_in_half_precision_are_compared_as_they_are_trained(precision):
    record = measured(
        "tests.chain_models:small_loss", "_planted:fault=random-state", passes=PASSES, precision=precision
    )

    assert record.outcome == "invalid"
    assert record.equality.largest_difference > 0.01
