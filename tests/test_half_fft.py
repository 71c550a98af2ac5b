"""Fourier transforms of half precision are traced as CUDA's kernels run them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from profiler.core.case import Choice, Trial
from profiler.engines.local import Local
from profiler.predicting.prediction import predict
from profiler.predicting.trace import half_fft
from profiler.predicting.trace.cuda_semantics import cuda_like
from profiler.predicting.trace.fake_tensors import fake_tensors
from profiler.predicting.trace.temporaries import copied_bytes
from tests import make
from tests.program import PATIENCE_SECONDS
from tests.user_models import transforms

SHAPE = (4, 8, 16)
ONE: tuple[dict[str, Any], ...] = ({}, {"n": 8}, {"n": 32, "dim": 1, "norm": "ortho"})
SEVERAL: tuple[dict[str, Any], ...] = ({}, {"s": (16, 8)}, {"s": (2, -1), "dim": (0, 1), "norm": "forward"})
BACK: tuple[dict[str, Any], ...] = ({}, {"s": (16, 8)}, {"s": (2, -1), "dim": (0, 2), "norm": "forward"})
TYPES = {torch.bfloat16: (torch.complex64, torch.float32), torch.float16: (torch.complex32, torch.float16)}
NEWER = pytest.mark.skipif(torch.bfloat16 not in half_fft.COMPLEX, reason="CUDA refuses bfloat16 in this torch")
DTYPES = (pytest.param(torch.bfloat16, marks=NEWER), torch.float16)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "ihfft", "fft2", "ifft2", "rfft2", "fftn", "ifftn", "rfftn"])
def test_what_is_transformed_is_complex_and_as_large_as_in_single_precision(name, dtype):
    for options in SEVERAL if name[-1] in "2n" else ONE:
        single = getattr(torch.fft, name)(torch.empty(SHAPE), **options)

        with fake_tensors(), cuda_like():
            half = getattr(torch.fft, name)(torch.empty(SHAPE, dtype=dtype), **options)

        assert (half.shape, half.dtype, half.is_conj()) == (single.shape, TYPES[dtype][0], single.is_conj())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["irfft", "hfft", "irfft2", "irfftn"])
def test_what_is_transformed_back_is_real_and_as_large_as_in_single_precision(name, dtype):
    for options in BACK if name[-1] in "2n" else ONE:
        single = getattr(torch.fft, name)(torch.empty(4, 8, 17), **options)

        with fake_tensors(), cuda_like():
            half = getattr(torch.fft, name)(torch.empty(4, 8, 17, dtype=dtype), **options)

        assert (half.shape, half.dtype) == (single.shape, TYPES[dtype][1])


def test_other_lengths_than_powers_of_two_are_refused_in_float16_as_cufft_refuses_them():
    with fake_tensors(), cuda_like():
        assert torch.fft.rfft(torch.empty(4, 8, dtype=torch.float16)).shape == (4, 5)
        with pytest.raises(RuntimeError, match=r"powers of two .* signal size of\[12\]"):
            torch.fft.rfft(torch.empty(4, 12, dtype=torch.float16))


def test_single_precision_is_torchs_own_and_the_functions_are_put_back():
    own = torch.fft.rfft

    with fake_tensors(), cuda_like():
        assert torch.fft.rfft(torch.empty(4, 12), 8, -1, norm="ortho").dtype == torch.complex64

    assert torch.fft.rfft is own


def test_bfloat16_takes_the_transform_in_its_own_type_besides_and_one_side_where_it_has_two():
    pairs = 4 * 8 * (16 // 2 + 1)  # complex numbers of one side
    values = torch.empty(SHAPE, dtype=torch.bfloat16)
    granules = {  # of 512 bytes each
        onesided: copied_bytes(torch.ops.aten._fft_r2c.default, (values, [2], 0, onesided), {})
        for onesided in (True, False)
    }

    rounded = {nbytes: -(-nbytes // 512) * 512 for nbytes in (pairs * 4, pairs * 8)}
    assert granules == {True: rounded[pairs * 4], False: rounded[pairs * 4] + rounded[pairs * 8]}
    assert copied_bytes(torch.ops.aten._fft_r2c.default, (values.float(), [2], 0, False), {}) == 0


@pytest.fixture(scope="module")
def rehearsing(hollow):
    with Local(stage_seconds=PATIENCE_SECONDS, rehearses=True) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=NEWER), "fp16"])
def test_the_bytes_of_steps_with_them_are_those_of_a_rehearsal(rehearsing, precision):
    cases = [
        make.case(
            model=Choice(f"{transforms.__file__}:make:call={call}"),
            device="rehearse:h100",
            batch_size=64,
            precision=precision,
        )
        for call in transforms.CALLS
    ]

    rehearsed = rehearsing.run([Trial(case=case, passes=("memory",)) for case in cases])
    predicted = [predict(Trial(case=case.foreseen)) for case in cases]

    peaks = [[record.readings.peak_bytes for record in records] for records in (rehearsed, predicted)]
    assert peaks[0] == peaks[1]
    assert None not in peaks[0]
