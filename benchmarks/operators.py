"""Operators as predictions see them, against what they do: `just bench-operators [NAME ...]`.

Runs PyTorch's own samples of each operator (OpInfo; needs expecttest), forward and backward, on the CPU and then
without memory. The same operators must make storages of the same bytes, in the same order. Prints what does not, and
fails where that is not KNOWN. Samples whose sizes only data tell are counted and left out.

With `--hollow h100`, against PyTorch's CUDA allocator instead: see benchmarks/operators_hollow.py.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import operators_hollow
from profiler.predicting.trace.fake_tensors import FakeTensors, fake_tensors
from profiler.training.workload import tensors

SAMPLES = 60  # of each operator, spread over those that it has
KNOWN = {
    "cov": "asks its data whether weights are negative",
    "nn.functional.embedding_bag": "makes a storage of indices larger by one",
    "tensor_split": "asks its data where to split",
}
Made = list[tuple[str, tuple[int, ...]]]  # operators, each with the bytes of the storages of its results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--hollow", metavar="DEVICE", help="against PyTorch's CUDA allocator, on this device")
    parser.add_argument("--within", type=float, default=4, metavar="MINUTES", help="on the hollow device")
    words = parser.parse_args()
    return operators_hollow.main(words.hollow, words.within, words.names) if words.hollow else _on_cpu(words.names)


def _on_cpu(names: list[str]) -> int:
    warnings.simplefilter("ignore")  # samples are also of what is deprecated
    wrong: dict[str, list[str]] = {}
    compared, left_out, failing, operators = 0, 0, 0, set()
    for name, operator, arguments in samples(names):
        try:
            real = made(operator, *copied(arguments))
        except Exception:  # noqa: BLE001  what this type or build cannot do
            failing += 1
            continue
        try:
            with fake_tensors() as fakes:
                found = made(operator, *copied(arguments, fakes))
        except (DataDependentOutputException, DynamicOutputShapeException):
            left_out += 1
            continue
        except Exception as error:  # noqa: BLE001  whatever goes wrong is a result
            wrong.setdefault(name, []).append(f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        compared += 1
        operators.add(name)
        if real != found:
            wrong.setdefault(name, []).append(_difference(real, found))
    print(f"{len(operators)} operators, {compared} samples compared")
    print(f"left out: {left_out} samples whose sizes only data tell, {failing} that fail")
    for name, told in sorted(wrong.items()):
        print(f"{name}: {KNOWN.get(name, 'NOT KNOWN')}; {len(told)} samples, the first: {told[0]}")
    return int(not compared or not wrong.keys() <= KNOWN.keys())


def samples(names: list[str]) -> Iterator[tuple[str, Any, Any]]:
    """Name, function, and positional and named arguments, of those operators, or of all."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        name = ".".join(filter(None, (info.name, info.variant_test_name)))
        if (names and name not in names) or torch.float32 not in info.supported_dtypes("cpu"):
            continue
        found = list(info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd))
        for one in found[:: max(1, len(found) // SAMPLES)]:
            yield name, info.op, ((one.input, *one.args), one.kwargs)


def copied(arguments: Any, fakes: FakeTensors | None = None) -> Any:
    """Tensors that nobody else has, with or without memory."""

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        own = tensor.detach().clone()
        return (fakes.from_tensor(own) if fakes else own).requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, copy, arguments)


def made(operator: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Made:
    """What forward and backward make."""
    torch.manual_seed(0)
    with _Storages() as log:
        out = [one for one in tensors(operator(*arguments, **keywords)) if one.requires_grad]
        if out:
            torch.autograd.backward(out, [torch.ones_like(one) for one in out])
    return log.made


class _Storages(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.made: Made = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace != "prim" and not func.is_view and func is not torch.ops.aten.detach.default:
            held = tuple(one.untyped_storage().nbytes() for one in tensors(out))
            self.made += [(str(func), held)] if any(held) else []
        return out


def _difference(real: Made, found: Made) -> str:
    for one, other in zip(real, found, strict=False):
        if one != other:
            return f"{one[0]} of {list(one[1])} bytes, {other[0]} of {list(other[1])} without memory"
    return f"{len(real)} operators, {len(found)} without memory"


if __name__ == "__main__":
    sys.exit(main())
