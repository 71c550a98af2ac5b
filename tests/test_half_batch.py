"""What half the batch would save is what a trace of the model with half its batch shows."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

from profiler.analysis.explanation import remedies
from profiler.core.case import Calibration, Choice, Trial, encode
from profiler.core.trace_data import Followed, Trace, live
from profiler.engines import read_answer
from profiler.engines.local import Local
from profiler.predicting.prediction import follow_case
from profiler.predicting.trace.batch_growth import BatchGrowth, Grown, size_of
from profiler.training.workload import Workload
from tests import make
from tests.program import PATIENCE_SECONDS
from tests.traced import by_hand

MADE = "tests/made_weights.py"
TRANSFORMER = "transformer:layers=2,width=64,sequence=32,vocabulary=128"
KINDS = ("standardised", "merged", "dequantised", "masked")


def followed(model: str, batch_size: int, strategy: str = "none", *, with_choices: bool = False, **fields) -> Trace:
    device = fields.pop("device", "fake:cpu")
    case = make.case(strategy, model=Choice(model), batch_size=batch_size, device=device, **fields)
    return follow_case(Trial(case=case), with_choices=with_choices).trace


def promised(trace: Trace) -> int:
    """The peak that half the batch is said to have. Bytes."""
    gains = {remedy.kind: remedy.nbytes for remedy in remedies(trace, floor_bytes=0)}
    return max(live(trace)) - gains.get("batch", 0)


def checked(model: str, batch_size: int, strategy: str = "none", **fields) -> tuple[int, int]:
    """The promised peak and the true one, where gains of less than a hundredth are not told."""
    whole, half = (followed(model, size, strategy, **fields) for size in (batch_size, batch_size // 2))
    peak = max(live(half))
    return promised(whole), max(live(whole)) if 1 - peak / max(live(whole)) < 0.01 else peak


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16"])
@pytest.mark.parametrize("model", ["mlp", "mnist-cnn:channels=8", "cifar-resnet", TRANSFORMER])
def test_half_the_batch_has_the_promised_peak(model, precision):
    promise, peak = checked(model, 8, precision=precision)

    assert promise == peak


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp:width=256", "mnist-cnn:channels=8", TRANSFORMER])
def test_on_a_gpu_it_is_the_promised_peak_to_a_hundredth(model):
    promise, peak = checked(model, 64, precision="amp-bf16", device="fake:h100")

    assert promise == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize("strategy", ["all", "sqrt"])
def test_what_is_recomputed_grows_as_what_was_saved(strategy):
    promise, peak = checked(TRANSFORMER, 8, strategy, precision="amp-bf16")

    assert promise == peak


def test_it_is_the_same_where_autograd_keeps_stand_ins():
    plain, stood_in = (promised(followed(TRANSFORMER, 8, with_choices=way)) for way in (False, True))

    assert plain == stood_in == checked(TRANSFORMER, 8)[1]


def test_of_several_forwards_each_has_half_the_batch():
    promise, peak = checked(TRANSFORMER, 8, accumulate=2)

    assert promise == peak


@pytest.mark.parametrize("strategy", ["none", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_tables_and_masks_of_the_step_do_not_grow(kind, strategy):
    promise, peak = checked(f"{MADE}:make:kind={kind}", 8, strategy)

    assert promise == peak


@pytest.mark.parametrize("kind", KINDS)
def test_nor_do_they_on_a_gpu(kind):
    promise, peak = checked(f"{MADE}:make:kind={kind}", 8, device="fake:h100")

    assert promise == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize("width", [32, 256])
def test_what_compares_all_samples_shrinks_to_a_quarter(width):
    promise, peak = checked(f"{MADE}:contrasted:width={width}", 256)

    assert promise == peak


@pytest.mark.slow
def test_a_batch_need_not_lead():
    promise, peak = checked(f"{MADE}:recurrent", 16)

    assert promise == peak


@pytest.mark.parametrize("words", ["sequence=64,width=32", "sequence=16,width=64", "sequence=64,width=64"])
def test_other_dimensions_of_the_size_of_the_batch_do_not_grow(words):
    promise, peak = checked(f"transformer:layers=2,vocabulary=128,{words}", 64)

    assert promise == peak


def test_one_sample_is_not_halved():
    trace = followed(TRANSFORMER, 1)

    assert promised(trace) == max(live(trace))


def test_a_batch_without_tensors_is_halved_by_category():
    def build() -> Workload:
        x = torch.zeros(64, 8)
        return Workload(module=nn.Linear(8, 8), batch=None, loss=lambda module, batch: module(x).square().sum())

    case = make.case("none", model=Choice("mlp"), batch_size=None, device="fake:cpu")

    trace = follow_case(Trial(case=case), build=build).trace

    assert {allocation.batch_power for allocation in trace.allocations} == {1}


def test_what_was_measured_of_an_operator_is_not_halved():
    case = make.case("none", model=Choice("mlp:width=64"), batch_size=8, device="fake:cpu")
    call = "aten.mm(f32[8,64],f32[64,64])"
    trial = Trial(case=case, calibration=Calibration(hidden_bytes={call: 10**6}))

    trace = follow_case(trial).trace

    assert not any(operator.batch_bytes for operator in trace.operators if operator.hidden_bytes == 10**6)


def test_powers_and_hidden_bytes_are_halved_by_hand():
    trace = by_hand(
        [("forward", "m")],
        [(1000, 1, 1, "m", "forward", "temporaries")] * 3 + [(1000, 0, 1, "m", "before", "parameters")],
    )
    lives = [
        msgspec.structs.replace(life, batch_power=power)
        for life, power in zip(trace.allocations, (0, 1, 2, 1), strict=True)
    ]
    operator = msgspec.structs.replace(trace.operators[0], hidden_bytes=100, batch_bytes=30)

    trace = msgspec.structs.replace(trace, allocations=tuple(lives), operators=(operator,))

    assert promised(trace) == 1000 + 500 + 250 + 1000 + 70


def growth(batch: torch.Tensor, known: dict[int, Grown]) -> BatchGrowth:
    """Of a batch that is known itself."""
    found = BatchGrowth(len(batch), lambda tensor: known.get(tensor.untyped_storage()._cdata, ()))
    known[batch.untyped_storage()._cdata] = found.of_batch(batch)
    return found


OPERATORS = {
    "a product with the batch grows": (lambda x: (x, torch.zeros(6, 4)), torch.ops.aten.mm.default, 1),
    "a product over the batch does not": (lambda x: (x.t(), x), torch.ops.aten.mm.default, 0),
    "one with itself grows twice": (lambda x: (x, x.t()), torch.ops.aten.mm.default, 2),
    "what only data tell grows": (lambda x: (x,), torch.ops.aten.nonzero.default, 1),
    "one sample does not grow": (lambda x: (x[3],), torch.ops.aten.clone.default, 0),
    "some samples do": (lambda x: (x[1:3],), torch.ops.aten.clone.default, 1),
    "an expanded row grows": (lambda x: (torch.zeros(1, 5).expand(8, 5),), torch.ops.aten.clone.default, 1),
    "zeros of other sizes do not": (lambda x: (x, [5, 5]), torch.ops.aten.new_zeros.default, 0),
    "zeros of its size do": (lambda x: ([8, 5],), torch.ops.aten.zeros.default, 1),
    "what is sliced grows in its gradient": (
        lambda x: (x[:, :2], [8, 6], 1, 0, 2, 1),
        torch.ops.aten.slice_backward.default,
        1,
    ),
}


@pytest.mark.parametrize("words", OPERATORS)
def test_an_operator_says_itself_what_grows(words):
    give, operator, power = OPERATORS[words]
    batch = torch.ones(8, 6)
    arguments = give(batch)
    result = operator(*arguments)

    (grown,) = growth(batch, {}).of_results(operator, arguments, {}, [result])

    assert len(grown) == power


def test_the_size_of_a_batch_is_the_one_that_most_of_its_tensors_have():
    sequence_first = [torch.zeros(32, 8, 4), torch.zeros(8)]

    assert size_of(sequence_first, None) == 8
    assert size_of(sequence_first[:1], None) == 32
    assert size_of(sequence_first[:1], 8) == 8
    assert size_of(sequence_first, 7) == 8
    assert size_of([], 8) is None


@pytest.mark.slow
def test_of_a_rehearsed_step_what_products_work_in_is_not_halved(hollow):
    def rehearsed(batch_size: int, model: str) -> Trace:
        case = make.case("none", model=Choice(model), device="rehearse:h100", batch_size=batch_size)
        words = "profiler.engines.worker:follow_rehearsed", encode(Trial(case=case)).decode()
        return read_answer(engine.ask(*words, failing="no answer"), "followed", Followed).trace

    with Local(stage_seconds=PATIENCE_SECONDS, rehearses=True) as engine:
        mlp, whole, half = rehearsed(8, "mlp"), rehearsed(8, TRANSFORMER), rehearsed(4, TRANSFORMER)

    assert promised(mlp) == max(live(mlp))
    assert promised(whole) == pytest.approx(max(live(half)), rel=0.01)
