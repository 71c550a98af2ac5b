"""Writes a live module, or a factory, to a file from which another process makes it: weights as their shapes alone."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import nn

from profiler.core.errors import Unsupported
from profiler.training.known_values import MOST_FRACTIONS, MOST_WHOLE
from profiler.training.models import live
from profiler.training.optimizers.torch_optim import hooks_of


def pack(parts: Any, path: Path) -> None:
    """Write a tuple (module, batch[, loss]) or a factory as `live.unpack` reads it; nothing of it is changed.

    What the caller's script or notebook defines is sent whole, what it imports by name. Raises Unsupported for what
    cannot be pickled.
    """
    file = io.BytesIO()
    try:
        _Pickler(file).dump(parts)
    except Exception as error:  # pickling calls the user's code, which may raise anything
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(f"it cannot be pickled: {why}") from error
    switches = {name: read() for name, (read, _) in live.SWITCHES.items()}
    path.write_bytes(pickle.dumps((sys.path, switches, file.getvalue())))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._storages: dict[int, live.Storage] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return self._tensor(obj)
        if isinstance(obj, torch.Generator) and obj.device.type == "cpu":
            return live.generator, (obj.get_state(),)
        return super().reducer_override(obj)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            raise pickle.PicklingError(f"a {type(tensor).__name__} of layout {tensor.layout}")
        storage = tensor.untyped_storage()
        shared = self._storages.setdefault(storage._cdata, live.Storage(storage.nbytes()))
        place = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        is_parameter = isinstance(tensor, nn.Parameter)
        made = shared, tensor.dtype, *place, tensor.requires_grad, is_parameter, _values(tensor)
        state = dict(vars(tensor)), [*(tensor._backward_hooks or {}).values()], [*hooks_of(tensor).values()]
        return (live.tensor, made, state, None, None, live.set_state) if any(state) else (live.tensor, made)


def _values(tensor: torch.Tensor) -> bytes | None:
    """Return the values of a tensor that code may read: small ones and masks; None for weights and large data."""
    most = MOST_FRACTIONS if tensor.is_floating_point() else MOST_WHOLE
    if tensor.requires_grad or tensor.is_meta or tensor.is_complex() or not 0 < tensor.numel() <= MOST_WHOLE:
        return None
    with torch.no_grad():
        if tensor.numel() > most and not bool(((tensor == 0) | (tensor == 1)).all()):
            return None
        return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
