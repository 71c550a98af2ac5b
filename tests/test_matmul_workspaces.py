"""What products take besides their results: by rule, and of random ones on a CUDA device as its allocator saw it.

The rules are those of aten/src/ATen/native/cuda/Blas.cpp and aten/src/ATen/cuda/CublasHandlePool.cpp.
"""

from __future__ import annotations

import random

import pytest
import torch

from profiler.core import gpu_specs
from profiler.predicting.trace.matmul_workspaces import given_workspace, taking_workspaces
from profiler.predicting.trace.temporaries import temporary_bytes

aten = torch.ops.aten
MIB = 2**20
WORKSPACE = 32 * MIB
SIZES = (1, 2, 3, 8, 17, 64, 100)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def taken(operator, *arguments, nbytes: int = WORKSPACE, **keywords) -> int:
    return taking_workspaces(None, nbytes)(operator.default, arguments, keywords)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (aten.mm, (meta(8, 4), meta(4, 6))),
        (aten.bmm, (meta(2, 8, 4), meta(2, 4, 6))),
        (aten.baddbmm, (meta(2, 8, 6), meta(2, 8, 4), meta(2, 4, 6))),
        (aten.mv, (meta(8, 4), meta(4))),
        (aten.dot, (meta(4), meta(4))),
    ],
    ids=lambda one: str(one) if not isinstance(one, tuple) else "",
)
def test_a_product_takes_cublas_workspace(operator, arguments):
    assert taken(operator, *arguments) == WORKSPACE


@pytest.mark.parametrize(
    ("bias", "left", "right", "beta", "expected"),
    [
        (meta(6), meta(8, 4), meta(4, 6), 1, MIB),
        (meta(1, 6), meta(8, 4), meta(4, 6), 1, MIB),
        (meta(6), meta(8, 4), meta(4, 6), 0.5, WORKSPACE),
        (meta(1), meta(8, 4), meta(4, 1), 1, WORKSPACE),
        (meta(6), meta(8, 1), meta(1, 6), 1, WORKSPACE),
        (meta(12)[::2], meta(8, 4), meta(4, 6), 1, WORKSPACE),
        (meta(8, 6), meta(8, 4), meta(4, 6), 1, WORKSPACE),
    ],
)
def test_a_row_that_is_added_is_added_by_cublaslt(bias, left, right, beta, expected):
    assert taken(aten.addmm, bias, left, right, beta=beta) == expected


def test_in_half_precision_a_whole_matrix_is_added_by_cublaslt():
    left, right = meta(8, 4, dtype=torch.float16), meta(4, 6, dtype=torch.float16)

    assert taken(aten.addmm, meta(8, 6, dtype=torch.float16), left, right) == MIB
    assert taken(aten.addmm, meta(6, 8, dtype=torch.float16).t(), left, right) == WORKSPACE


def test_a_factor_that_cublas_cannot_read_is_copied():
    assert taken(aten.mm, meta(8, 4).t(), meta(8, 6)) == WORKSPACE
    assert taken(aten.mm, meta(16, 8)[::2, ::2], meta(4, 6)) == WORKSPACE + 8 * 4 * 4
    assert taken(aten.mm, meta(1, 1).expand(8, 4), meta(4, 6)) == WORKSPACE + 8 * 4 * 4


def test_products_of_nothing_and_of_one_column_by_one_row_take_nothing():
    assert taken(aten.mm, meta(8, 0), meta(0, 6)) == 0
    assert taken(aten.bmm, meta(2, 8, 1), meta(2, 1, 6)) == 0
    assert taken(aten.bmm, meta(2, 8, 2), meta(2, 2, 6)) == WORKSPACE  # the twin


def test_where_workspaces_are_kept_only_copies_are_taken():
    assert taken(aten.mm, meta(16, 8)[::2, ::2], meta(4, 6), nbytes=0) == 8 * 4 * 4


def test_what_was_measured_of_a_product_has_its_workspace_in_it():
    measured = taking_workspaces(lambda func, args, kwargs: 33 * MIB, WORKSPACE)

    assert measured(aten.mm.default, (meta(8, 4), meta(4, 6)), {}) == 33 * MIB


def test_workspaces_are_as_large_as_the_environment_asks_for(monkeypatch):
    assert given_workspace(WORKSPACE) == WORKSPACE

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "4096")

    assert given_workspace(WORKSPACE) == (2 * 4096 + 8 * 16) * 1024
    assert taken(aten.addmm, meta(6), meta(8, 4), meta(4, 6)) == 4 * MIB


def strided(shape: tuple[int, ...], dtype: torch.dtype, chance: random.Random) -> torch.Tensor:
    """Of any order, with gaps or the same again and again."""
    if chance.random() < 0.2:
        return torch.empty((1,) * len(shape), device="cuda", dtype=dtype).expand(shape)
    order = chance.sample(range(len(shape)), len(shape))
    gaps = [chance.choice((1, 1, 1, 2)) for _ in shape]
    whole = torch.empty([shape[dim] * gaps[dim] for dim in order], device="cuda", dtype=dtype)
    part = whole[tuple(slice(None, None, gaps[dim]) for dim in order)]
    return part.permute([order.index(dim) for dim in range(len(shape))])


def product(chance: random.Random):
    """An operator, its arguments and the bytes of its result."""
    dtype = chance.choice(DTYPES)
    batch, rows, inner, columns = (chance.choice(SIZES) for _ in range(4))

    def one(*shape: int) -> torch.Tensor:
        return strided(shape, dtype, chance)

    whole, batched = rows * columns * dtype.itemsize, batch * rows * columns * dtype.itemsize
    bias = chance.choice((lambda: one(columns), lambda: one(rows, columns), lambda: one(1, columns)))
    return chance.choice(
        (
            lambda: (aten.mm, (one(rows, inner), one(inner, columns)), whole),
            lambda: (aten.addmm, (bias(), one(rows, inner), one(inner, columns)), whole),
            lambda: (aten.bmm, (one(batch, rows, inner), one(batch, inner, columns)), batched),
        )
    )()


def requests(operator, arguments) -> list[int]:
    torch.cuda.memory._record_memory_history(max_entries=1000, context=None)
    result = operator.default(*arguments)
    events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(None)
    del result
    return [event["size"] for event in events if event["action"] == "alloc"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")
@pytest.mark.skipif(torch.__version__ < "2.15", reason="workspaces are kept before 2.15")
@pytest.mark.parametrize("seed", range(200))
def test_a_random_product_asks_for_what_the_rules_say(seed):
    known = gpu_specs.of_device(torch.cuda.get_device_name())
    operator, arguments, result = product(random.Random(seed))
    hidden = taking_workspaces(temporary_bytes, given_workspace(gpu_specs.workspace_bytes(known)))

    found = requests(operator, arguments)

    assert sum(found) == result + hidden(operator.default, arguments, {})
