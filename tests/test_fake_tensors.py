"""Fake tensors made past FakeTensorMode's cache: those that FakeTensorMode itself makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from profiler.predicting.trace.fake_tensors import QuickFakeMode, fake_tensors

Made = Callable[[], torch.Tensor]


def base() -> torch.Tensor:
    return torch.zeros(4, 6, dtype=torch.float16, device="cuda", requires_grad=True)


MADE: dict[str, Made] = {
    "a detached tensor": lambda: base().detach(),
    "a detached part of one": lambda: base()[1:, ::2].t().detach(),
    "a detached conjugate": lambda: torch.zeros(3, dtype=torch.complex64, device="cuda").conj().detach(),
    "an empty one": lambda: torch.empty(2, 3, device="cuda"),
    "an empty one of the host": lambda: torch.empty(2, 3),
    "an empty one with channels last": lambda: torch.empty(
        2, 3, 4, 5, dtype=torch.bfloat16, device="cuda:0", memory_format=torch.channels_last, requires_grad=True
    ),
    "an empty one of no device": lambda: torch.empty(2, device="meta"),
    "one without elements": lambda: torch.empty(0, device="cuda"),
    "an empty one with strides": lambda: torch.empty_strided((3, 4), (1, 5), dtype=torch.int64, device="cuda"),
}


def told(mode: Any, make: Made) -> list[object]:
    """All that a step can see of a fake tensor."""
    with mode:
        tensor = make()
        assert isinstance(tensor, FakeTensor)
        return [
            tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, tensor.layout,
            tensor.untyped_storage().nbytes(), tensor.requires_grad, tensor.is_leaf, tensor.is_conj(), tensor.is_neg(),
            tensor._version, tensor.is_inference(), tensor.constant,
        ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_a_tensor_is_as_pytorch_makes_it(name: str) -> None:
    modes = FakeTensorMode(), QuickFakeMode(), fake_tensors()
    plain, *ours = [told(mode, MADE[name]) for mode in modes]
    assert ours == [plain, plain]


def test_what_is_detached_has_the_storage_and_the_version_of_its_tensor() -> None:
    with fake_tensors():
        tensor = torch.zeros(3, device="cuda")
        detached = tensor.detach()
        assert detached.untyped_storage()._cdata == tensor.untyped_storage()._cdata
        detached.add_(1)
        assert tensor._version == detached._version == 1
