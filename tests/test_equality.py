"""Gradients are equal, or the row is invalid and says where."""

import math
import re
from types import SimpleNamespace

import msgspec
import pytest
import torch
from torch import nn
from torch._functorch import config
from torch._inductor import compile_fx
from torch._inductor.utils import fresh_cache

from profiler.analysis.rows import verdict
from profiler.core import catalogue
from profiler.core.errors import Unsupported
from profiler.measuring.meters import equality, plain_torch
from profiler.training import models, strategies
from profiler.training.workload import Workload
from tests import make
from tests.catalogue_choices import EVERY
from tests.chain_models import workload
from tests.conftest import measured
from tests.plans import written
from tests.user_models import any_order, siamese

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


def attempted(model, strategy):
    """A trial as a worker makes it: what cannot be had is a row with its reason."""
    try:
        return measured(model, strategy, passes=PASSES)
    except Unsupported as reason:
        return make.record(strategy, outcome="skipped", detail=str(reason))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", [choice for choices in EVERY.values() for choice in choices])
def test_gradients_are_bit_equal_on_the_cpu(model, strategy, tmp_path):
    record = attempted(model, written(strategy, model, tmp_path))

    if (model, strategy) in SKIPPED:
        assert (record.outcome, record.detail) == ("skipped", SKIPPED[model, strategy])
        return
    assert record.outcome == "ok", record.detail
    assert record.equality.gradients_equal
    assert record.equality.loss_equal
    assert record.equality.buffers_equal or "GCP004" in [note.code for note in record.notes]
    assert record.equality.random_state_equal


def test_the_noise_floor_is_nothing_or_the_noise_of_the_model():
    calm, noisy = (measured(model, "none", passes=PASSES) for model in ("mlp", "tests.faulty:build:kind=noise"))

    assert calm.equality.noise_floor == 0.0
    assert noisy.outcome == "ok"
    assert noisy.equality.noise_floor > 0


def test_a_gradient_that_is_zero_but_for_rounding_is_held_to_the_largest_of_the_model():
    """The bias before a BatchNorm has none: two runs differ by as much as it is, and by nothing that matters."""
    model, batch, loss = any_order.make()
    loss(model(batch)).backward()
    gradients = {name: float(value.grad.abs().max()) for name, value in model.named_parameters()}

    none, every = (
        measured(f"{any_order.__file__}:make", strategy, batch_size=None, passes=PASSES) for strategy in ("none", "all")
    )

    assert 0 < gradients["0.hidden.bias"] < 1e-6 * max(gradients.values())
    assert (none.outcome, every.outcome) == ("ok", "ok"), every.detail
    assert 0 < none.equality.noise_floor < 1e-3
    assert "GCP044" not in [note.code for note in none.notes]


def test_a_difference_within_the_noise_is_ok_unless_strict():
    noisy = measured("tests.faulty:build:kind=noise", "segments:k=2", passes=PASSES)
    strict = measured("tests.faulty:build:kind=noise", "segments:k=2", passes=PASSES, verify="strict")

    assert (noisy.outcome, strict.outcome) == ("ok", "invalid")
    assert not noisy.equality.gradients_equal


@pytest.mark.usefixtures("with_test_models")
def test_batchnorm_updated_twice_is_a_note_and_not_a_failure():
    record = measured("batchnorm", "segments:k=2", passes=PASSES)

    assert record.outcome == "ok"
    assert record.equality.gradients_equal
    assert not record.equality.buffers_equal
    assert [note.code for note in record.notes] == ["GCP004"]


def test_the_repair_holds_what_blocks_that_run_twice_have_of_both_batches():
    fields = {"passes": PASSES, "batch_size": None, "blocks": "blocks.*"}
    found, repaired = (
        measured(f"{siamese.__file__}:twins", "all", repair_batchnorm=repair, **fields) for repair in (False, True)
    )

    assert found.equality.buffers_difference > 0.1
    assert "--repair-batchnorm mends it" in next(note.text for note in found.notes if note.code == "GCP004")
    assert (repaired.outcome, repaired.equality.buffers_equal) == ("ok", True)


@pytest.mark.parametrize("repair", [False, True])
def test_spectral_norms_vectors_are_named_as_what_the_recompute_changes_and_are_no_batchnorms(repair):
    record = measured(f"{siamese.__file__}:critic", "all", passes=PASSES, batch_size=None, repair_batchnorm=repair)

    (text,) = (note.text for note in record.notes if note.code == "GCP004")
    assert record.outcome == "invalid"
    assert re.search(r": the recompute changes \d.0.parametrizations.weight.0._[uv], .* again(;|$)", record.detail)
    assert "running" not in record.detail
    assert ("--repair-batchnorm mends it" in text) is not repair
    assert re.search("the recompute updates .* a second time$", text)
    assert ("running" in text) is not repair


def test_a_loss_that_is_not_finite_is_a_note():
    record = measured("tests.faulty:build:kind=nan", "segments:k=2", passes=("equality", "memory"))

    assert record.outcome == "ok"
    assert "GCP007" in [note.code for note in record.notes]


@pytest.mark.parametrize(
    ("reference", "other", "expected"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.0, -3.0], 0.25),
        ([0.0], [0.0], 0.0),
        ([0.0], [3.0], 1.0),
        ([2.0], [-2.0], 2.0),
        ([1.0], [float("nan")], 2.0),
        ([1.0], [float("inf")], 2.0),
        (None, [0.0, 0.0], 2.0),  # there on one side only: as different as can be
        (None, None, 0.0),
    ],
)
def test_differences_are_relative_to_the_largest_value(reference, other, expected):
    tensors = (None if values is None else torch.tensor(values) for values in (reference, other))

    assert plain_torch.difference(*tensors) == expected


def test_the_largest_value_is_one_of_those_that_are_finite():
    assert plain_torch.largest(torch.tensor([0.5, -0.75, math.inf, math.nan])) == 0.75
    assert plain_torch.largest(torch.tensor([math.inf])) == plain_torch.largest(torch.zeros(0)) == 0.0


@pytest.mark.parametrize("place", [0, 3, 6])
def test_values_are_compared_a_part_at_a_time(monkeypatch, place):
    monkeypatch.setattr(plain_torch, "CHUNK", 3)
    reference, other = torch.ones(7), torch.ones(7)
    other[place] = 4.0

    assert plain_torch.difference(reference, other) == 3 / 4
    assert plain_torch.largest(other) == 4.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")
def test_gradients_of_a_gpu_are_compared_on_it_a_part_at_a_time(monkeypatch):
    monkeypatch.setattr(plain_torch, "CHUNK", 2**16)
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


@pytest.mark.gpu_arithmetic
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")
def test_a_difference_is_the_same_on_a_gpu():
    reference, other = torch.randn(1000), torch.randn(1000)

    on_gpu = plain_torch.difference(reference, other, device=torch.device("cuda:0"))

    assert on_gpu == plain_torch.difference(reference, other)


def test_negative_zero_is_not_bit_equal_to_zero():
    zero, negative = torch.tensor([0.0]), torch.tensor([-0.0])

    results = [
        equality.Results(loss=one, gradients={}, buffers={}, random_states={"torch": zero}) for one in (zero, negative)
    ]

    compared = equality.compare(*results)
    assert not compared.loss_equal
    assert compared.largest_difference is None


def test_every_built_in_model_is_tried_here():
    built_in = {e.name for e in catalogue.entries(models.TABLE) if catalogue.FAMILY not in e.parameters}

    assert {name.partition(":")[0] for name in MODELS} == built_in


@pytest.fixture
def partition(monkeypatch):
    """The one function that the budget speaks to; what is set as its `result` looks at what it makes."""
    spy = SimpleNamespace(result=lambda forward, backward: None)
    original = vars(compile_fx)["min_cut_rematerialization_partition"]

    def watched(*arguments, **keywords):
        made = original(*arguments, **keywords)
        spy.result(*made)
        return made

    monkeypatch.setattr(compile_fx, "min_cut_rematerialization_partition", watched)
    with fresh_cache():  # else a graph may come from the disk
        yield spy


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        "dense-chain:widths=16+32",
        pytest.param("mnist-cnn:channels=4", marks=pytest.mark.nightly),
        pytest.param("transformer:layers=2,width=32,heads=2,sequence=16,vocabulary=64", marks=pytest.mark.nightly),
    ],
)
def test_every_built_in_model_has_its_gradients_when_it_is_compiled(model):
    record = measured(model, "compile-budget:budget=0.5", batch_size=4, passes=("equality",))

    assert record.outcome == "ok", record.detail


@pytest.mark.slow
def test_every_budget_is_compiled_anew_in_one_process(partition):
    budgets = []
    partition.result = lambda forward, backward: budgets.append(config.activation_memory_budget)

    for budget in (0.1, 1.0, 0.0):
        module = nn.Sequential(nn.Linear(3, 3))
        strategies.compile_budget(workload(module, ("0",)), budget=budget)
        module(torch.ones(2, 3)).sum().backward()

    assert budgets == [0.1, 1.0, 0.0]


@pytest.mark.slow
def test_code_that_draws_otherwise_when_compiled_is_compared_with_the_same_compile_without_a_budget():
    record = measured("tests.compiled_draw:build", "compile-budget:budget=0.9", passes=PASSES)

    assert record.outcome == "ok", record.detail
    assert record.equality.against == "compile-budget:budget=1.0"
    assert "GCP011" in [note.code for note in record.notes]


@pytest.mark.slow
def test_a_gradient_that_a_budget_makes_wrong_is_invalid_there_too(partition):
    partition.result = lambda forward, backward: config.activation_memory_budget < 1 and double_a_gradient(backward)

    record = measured("tests.compiled_draw:build", "compile-budget:budget=0.9", passes=PASSES)

    assert record.equality.against == "compile-budget:budget=1.0"
    assert record.outcome == "invalid"


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


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "amp-bf16", "fp16", "amp-fp16"])
def test_checkpointing_changes_no_result_and_half_precision_does(precision):
    none, every = (
        measured("mlp", strategy, passes=("equality", "memory", "time"), precision=precision)
        for strategy in ("none", "all")
    )

    assert none.equality.precision_difference > 1e-4
    assert every.outcome == "ok"
    assert every.equality.gradients_equal


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_gradients_that_would_vanish_in_half_precision_are_compared_as_they_are_trained(precision):
    record = measured("tests.small_loss:build", "_planted:fault=random-state", passes=PASSES, precision=precision)

    assert record.outcome == "invalid"
    assert record.equality.largest_difference > 0.01


@pytest.mark.parametrize("strategy", ["none", "_planted:fault=random-state"])
def test_gradients_that_are_all_zero_are_not_verifiable(strategy):
    vanished = measured("tests.small_loss:build:scale=0.0", strategy, passes=PASSES)
    there = measured("tests.small_loss:build", strategy, passes=PASSES)

    assert vanished.equality.gradients_equal
    assert ["GCP014" in {note.code for note in record.notes} for record in (vanished, there)] == [True, False]
    assert verdict(vanished) == "not verifiable"
