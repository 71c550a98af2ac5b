"""A live module with its batch and loss, or a factory, from another process: what `gcprof.predict(model)` rehearses.

Tensors arrive as their shapes, strides and shared storages; the values of small ones and of masks come too.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

NAME = f"{__name__}:unpack"  # a model's name, as that of a factory of the user's
SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {  # what a step's memory depends on, by name
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    **{
        f"{kind} attention": (
            getattr(torch.backends.cuda, f"{kind}_sdp_enabled"),
            getattr(torch.backends.cuda, f"enable_{kind}_sdp"),
        )
        for kind in ("flash", "mem_efficient", "math", "cudnn")
    },
}


def unpack(path: str) -> Any:
    """Return (module, batch[, loss[, optimizer]]) of the file, on the default device, or what its factory returns."""
    paths, switches, made = pickle.loads(Path(path).read_bytes())
    sys.path[:] = paths
    for name, value in switches.items():
        read, write = SWITCHES[name]
        if read() != value:
            write(value)
    parts = pickle.loads(made)
    return parts if isinstance(parts, tuple) else parts()


class Storage:
    """Memory that tensors may share, of a number of bytes; made when the first tensor of it is."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._made: torch.UntypedStorage | None = None

    def made(self) -> torch.UntypedStorage:
        if self._made is None:
            self._made = torch.empty(self.nbytes, dtype=torch.uint8).untyped_storage()
        return self._made


def tensor(  # noqa: PLR0917  as pickle calls it
    storage: Storage,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    requires_grad: bool,
    is_parameter: bool,
    values: bytes | None,
) -> torch.Tensor:
    """Return a tensor in the storage; what is read of it where nothing is computed are its values, if there are any."""
    made = torch.empty(0, dtype=dtype).set_(storage.made(), offset, shape, strides)
    if values:
        known = torch.frombuffer(bytearray(values), dtype=dtype).reshape(shape)
        if made.is_cpu:
            made.copy_(known)
    made = nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)
    if values and not made.is_cpu:
        made.known_value = known  # type: ignore[attr-defined]
    return made


def set_state(made: torch.Tensor, state: tuple[Mapping[str, Any], Iterable[Any], Iterable[Any]]) -> None:
    """Give a tensor its attributes, its hooks, and those after its gradient has been accumulated."""
    attributes, hooks, after = state
    made.__dict__.update(attributes)
    for hook in hooks:
        made.register_hook(hook)
    for hook in after:
        made.register_post_accumulate_grad_hook(hook)


def generator(state: torch.Tensor) -> torch.Generator:
    """Return a generator on the CPU with that state."""
    return torch.Generator("cpu").set_state(state.cpu())
