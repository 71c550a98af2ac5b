"""What kernels on CUDA take besides their results because they want dense tensors: arithmetic, and the allocator's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from profiler.core import gpu_specs
from profiler.core.allocator_history import GRANULE
from profiler.core.gpu_kinds import is_hollow
from profiler.predicting.trace.convolutions import Machine, convolution_bytes, machine_of
from profiler.predicting.trace.cuda_semantics import cuda_like
from profiler.predicting.trace.fake_tensors import fake_tensors
from profiler.predicting.trace.kernel_bytes import parts_of
from profiler.predicting.trace.temporaries import copied_bytes

aten = torch.ops.aten
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")]
IMAGES = (4, 64, 28, 28)
FLOAT = 4  # bytes
AMPERE = Machine()
TURING = Machine(capability=(7, 5), workspace_bytes=2**23)
WITH_BIAS = [True, True, True]
SHAPES = {"images": IMAGES, "wide images": (2, 96, 56, 40), "small images": (16, 32, 7, 9), "one": (1, 512, 14, 14)}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NO_BIAS, ALL_BUT_BIAS = [0], [True, True, False]

Make = Callable[..., torch.Tensor]
Call = tuple[Any, tuple[Any, ...]]


def dense(make: Make, shape: tuple[int, ...]) -> torch.Tensor:
    return make(shape)


def channels_last(make: Make, shape: tuple[int, ...]) -> torch.Tensor:
    return make(shape).to(memory_format=torch.channels_last)


def half_the_channels(make: Make, shape: tuple[int, ...]) -> torch.Tensor:
    return make((shape[0], 2 * shape[1], *shape[2:]))[:, : shape[1]]


def turned(make: Make, shape: tuple[int, ...]) -> torch.Tensor:
    return make((shape[0], shape[1], shape[3], shape[2])).transpose(2, 3)


LAYOUTS = {one.__name__: one for one in (dense, channels_last, half_the_channels, turned)}


def convolution(taken: torch.Tensor, groups: int, out_channels: int, weight_layout: Any) -> Call:
    weight = weight_layout(taken.new_empty, (out_channels, taken.shape[1] // groups, 3, 3))
    return aten.convolution.default, (taken, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups)


def convolution_backward(
    taken: torch.Tensor, gradient_layout: Any, groups: int, wanted: list[bool], weight_layout: Any = dense
) -> Call:
    gradient = gradient_layout(taken.new_empty, tuple(taken.shape))
    weight = weight_layout(taken.new_empty, (taken.shape[1], taken.shape[1] // groups, 3, 3))
    options = ([1, 1], [1, 1], [1, 1], False, [0, 0], groups, wanted)
    bias_sizes = [taken.shape[1]] if wanted[-1] else NO_BIAS
    return aten.convolution_backward.default, (gradient, taken, weight, bias_sizes, *options)


def pooled_largest(taken: torch.Tensor) -> Call:
    return aten.max_pool2d_with_indices.default, (taken, [2, 2], [2, 2])


def pooled_largest_backward(taken: torch.Tensor, gradient_layout: Any) -> Call:
    shape = (*taken.shape[:2], taken.shape[2] // 2, taken.shape[3] // 2)
    gradient, places = (
        gradient_layout(taken.new_empty, shape),
        dense(partial(taken.new_zeros, dtype=torch.int64), shape),
    )
    options = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    return aten.max_pool2d_with_indices_backward.default, (gradient, taken, *options, places)


def averaged(taken: torch.Tensor) -> Call:
    return aten.avg_pool2d.default, (taken, [2, 2], [2, 2])


def averaged_backward(taken: torch.Tensor, gradient_layout: Any) -> Call:
    shape = (*taken.shape[:2], taken.shape[2] // 2, taken.shape[3] // 2)
    gradient = gradient_layout(taken.new_empty, shape)
    return aten.avg_pool2d_backward.default, (gradient, taken, [2, 2], [2, 2], [0, 0], False, True, None)


def averaged_to_seven(taken: torch.Tensor) -> Call:
    return aten._adaptive_avg_pool2d.default, (taken, [7, 7])


def averaged_to_seven_backward(taken: torch.Tensor, gradient_layout: Any) -> Call:
    return aten._adaptive_avg_pool2d_backward.default, (
        gradient_layout(taken.new_empty, (*taken.shape[:2], 7, 7)),
        taken,
    )


def normalised(taken: torch.Tensor) -> Call:
    width = taken.shape[-1]
    return aten.native_layer_norm.default, (taken, [width], taken.new_ones(width), taken.new_ones(width), 1e-5)


def softmax_backward(taken: torch.Tensor) -> Call:
    return aten._softmax_backward_data.default, (taken, torch.empty_like(taken), -1, taken.dtype)


def rolled(taken: torch.Tensor, dims: list[int]) -> Call:
    return aten.roll.default, (taken, [3] * len(dims), dims)


def counted(call: Call, machine: Machine = AMPERE) -> int:
    func, args = call
    return copied_bytes(func, args, {}) + convolution_bytes(func, args, {}, machine)


def machine_here() -> Machine:
    known = gpu_specs.of_device(torch.cuda.get_device_name())
    assert known is not None
    return machine_of(known, gpu_specs.workspace_bytes(known))


def on_cpu(layout: Any = dense, shape: tuple[int, ...] = IMAGES) -> torch.Tensor:
    return layout(torch.empty, shape)


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def test_dense_tensors_are_not_copied():
    taken = on_cpu()

    calls = [
        convolution(taken, 1, 64, dense),
        convolution_backward(taken, dense, 1, ALL_BUT_BIAS),
        pooled_largest_backward(taken, dense),
        averaged(taken),
        averaged_to_seven_backward(taken, dense),
        rolled(taken, [2]),
    ]

    assert [counted(call) for call in calls] == [0] * len(calls)


def test_a_convolution_copies_an_input_that_is_half_of_another():
    assert counted(convolution(on_cpu(half_the_channels), 1, 64, dense)) == 4 * 64 * 28 * 28 * FLOAT


def test_a_convolution_of_channels_last_copies_a_weight_that_lies_otherwise():
    assert counted(convolution(on_cpu(channels_last), 1, 48, dense)) == 48 * 64 * 9 * FLOAT


def test_a_weight_of_channels_last_has_the_input_copied():
    assert counted(convolution(on_cpu(), 1, 48, channels_last)) == 4 * 64 * 28 * 28 * FLOAT


def test_in_double_precision_nothing_is_channels_last():
    taken = on_cpu(channels_last).double()

    assert counted(convolution(taken, 1, 48, dense)) == 2 * 4 * 64 * 28 * 28 * FLOAT


def test_the_backward_holds_its_copies_until_both_gradients_are_there():
    images = 4 * 64 * 28 * 28 * FLOAT
    taken = on_cpu(half_the_channels)

    assert counted(convolution_backward(taken, turned, 1, ALL_BUT_BIAS)) == 2 * images
    assert counted(convolution_backward(taken, turned, 1, [True, False, False])) == images


def test_a_copied_weight_is_gone_before_its_gradient_is_made():
    taken = on_cpu(channels_last)

    assert counted(convolution_backward(taken, channels_last, 1, ALL_BUT_BIAS)) == 0
    assert counted(convolution_backward(taken, channels_last, 1, [True, False, False])) == 64 * 64 * 9 * FLOAT


def test_before_ampere_a_convolution_of_bfloat16_multiplies_columns_of_pixels():
    taken = on_cpu().bfloat16()
    columns = 64 * 9 * 28 * 28 * taken.itemsize

    assert counted(convolution(taken, 1, 48, dense), TURING) == columns + 2**23
    assert counted(convolution(taken, 1, 48, dense)) == 0
    assert counted(convolution(taken.float(), 1, 48, dense), TURING) == 0


def test_a_shift_of_three_dimensions_makes_two_results_on_its_way():
    assert counted(rolled(on_cpu(), [1, 2, 3])) == 2 * 4 * 64 * 28 * 28 * FLOAT


def test_a_sum_of_tests_is_one_of_whole_numbers():
    tests = torch.zeros(IMAGES, dtype=torch.bool)

    assert counted((aten.sum.dim_IntList, (tests, [1]))) == 8 * tests.numel()
    assert counted((aten.sum.dim_IntList, (tests.float(), [1]))) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_of_norms_are_floats(dtype):
    with fake_tensors(), cuda_like():
        images, weight = torch.empty(IMAGES, dtype=dtype), torch.empty(64, dtype=dtype)

        batch = aten.native_batch_norm(images, weight, weight, None, None, True, 0.1, 1e-5)
        layer = aten.native_layer_norm(images, [28], weight[:28], weight[:28], 1e-5)

    assert [one.dtype for one in (*batch, *layer)] == [dtype, torch.float32, torch.float32] * 2


def test_on_the_cpu_they_are_not():
    with fake_tensors():
        images, weight = (torch.empty(shape, dtype=torch.bfloat16) for shape in (IMAGES, (64,)))

        found = aten.native_layer_norm(images, [28], weight[:28], weight[:28], 1e-5)

    assert found[1].dtype == torch.bfloat16


def test_a_bias_that_is_no_part_of_the_product_is_added_in_place():
    seen = []
    taken, weight, bias = on_cpu().transpose(1, 3), torch.empty(16, 64), torch.empty(16)

    with fake_tensors(), cuda_like():
        out = F.linear(taken.clone().transpose(1, 2), weight.clone(), bias.clone())
        seen.append(out.untyped_storage().nbytes())

    assert seen == [4 * 28 * 28 * 16 * FLOAT]
    assert out.shape == (4, 28, 28, 16)


def strided_backward(taken: torch.Tensor, side: int, step: int, wanted: list[bool]) -> Call:
    """Of one filter a channel, which cuDNN or PyTorch's own kernel does."""
    channels, height, width = taken.shape[1:]
    shape = (taken.shape[0], channels, (height - 1) // step + 1, (width - 1) // step + 1)
    weight = taken.new_empty((channels, 1, side, side))
    options = ([step, step], [side // 2, side // 2], [1, 1], False, [0, 0], channels, wanted)
    return aten.convolution_backward.default, (turned(taken.new_empty, shape), taken, weight, NO_BIAS, *options)


CALLS = {
    "convolution": lambda taken: convolution(taken, 1, 48, dense),
    "convolution with weights of channels last": lambda taken: convolution(taken, 1, 48, channels_last),
    "convolution of groups": lambda taken: convolution(taken, 2, 64, dense),
    "convolution of each channel": lambda taken: convolution(taken, taken.shape[1], taken.shape[1], dense),
    "backward": lambda taken: convolution_backward(taken, dense, 1, ALL_BUT_BIAS),
    "backward of a turned gradient": lambda taken: convolution_backward(taken, turned, 1, ALL_BUT_BIAS),
    "backward of part of a gradient": lambda taken: convolution_backward(taken, half_the_channels, 1, ALL_BUT_BIAS),
    "backward to the input": lambda taken: convolution_backward(taken, dense, 1, [True, False, False]),
    "backward to the weight": lambda taken: convolution_backward(taken, turned, 1, [False, True, False]),
    "backward of groups": lambda taken: convolution_backward(taken, dense, 4, ALL_BUT_BIAS),
    "backward of groups of a turned gradient": lambda taken: convolution_backward(taken, turned, 2, ALL_BUT_BIAS),
    "backward to the bias too": lambda taken: convolution_backward(taken, dense, 1, WITH_BIAS),
    "backward of a turned gradient to the bias too": lambda taken: convolution_backward(taken, turned, 1, WITH_BIAS),
    "backward of each channel": lambda taken: convolution_backward(taken, dense, taken.shape[1], ALL_BUT_BIAS),
    "backward of each channel, in steps": lambda taken: strided_backward(taken, 3, 2, ALL_BUT_BIAS),
    "backward of each channel, one number": lambda taken: strided_backward(taken, 1, 2, ALL_BUT_BIAS),
    "backward of each channel, large": lambda taken: strided_backward(taken, 7, 1, ALL_BUT_BIAS),
    "backward of each channel to the input": lambda taken: strided_backward(taken, 5, 1, [True, False, False]),
    "backward of each channel to the weight": lambda taken: strided_backward(taken, 3, 1, [False, True, False]),
    "max pool": pooled_largest,
    "max pool's backward": lambda taken: pooled_largest_backward(taken, dense),
    "max pool's backward of channels last": lambda taken: pooled_largest_backward(taken, channels_last),
    "average pool": averaged,
    "average pool's backward": lambda taken: averaged_backward(taken, turned),
    "adaptive pool": averaged_to_seven,
    "adaptive pool's backward": lambda taken: averaged_to_seven_backward(taken, dense),
    "adaptive pool's backward of a turned gradient": lambda taken: averaged_to_seven_backward(taken, turned),
    "layer norm": normalised,
    "softmax's backward": softmax_backward,
    "roll": lambda taken: rolled(taken, [2, 3]),
    "roll of one dimension": lambda taken: rolled(taken, [1]),
    "roll of three": lambda taken: rolled(taken, [1, 2, 3]),
}


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("_", [pytest.param(None, marks=gpu, id="cuda")])
def test_the_allocator_is_asked_for_what_was_counted(_, name, layout, shape, dtype):
    make = partial(torch.empty, dtype=dtype, device="cuda")
    func, args = CALLS[name](LAYOUTS[layout](make, SHAPES[shape]))
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()

    results = func(*args)

    stats = torch.cuda.memory_stats()
    own = stats["requested_bytes.all.current"] - before
    asked = stats["requested_bytes.all.peak"] - before - own
    requests = parts_of(counted((func, args), machine_here()))  # each rounded up as the allocator does, or as asked for
    if not is_hollow(torch.cuda.get_device_name()) and "convolution" in str(func):
        asked = min(asked, sum(requests))  # cuDNN's workspace is beside what is counted, and its own affair
    assert asked <= sum(requests) < asked + max(1, GRANULE * len(requests))
    assert results is not None
