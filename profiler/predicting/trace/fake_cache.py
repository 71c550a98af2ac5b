"""Fake tensors with less between an operator and its result: knows nothing of what is followed.

Most of the time of a traced step went into the keys of FakeTensorMode's cache of results.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format)


class QuickFakes(FakeTensorMode):
    """FakeTensorMode that finds the key of a call which it has seen before by a shorter one."""

    _keys: ClassVar[dict[Any, Any]] = {}  # as long as FakeTensorMode's own cache, which is the class's too

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled where tensors are fake, and saying so takes 10 us a call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, types, args, kwargs or {})

    def _cache_key(self, state: Any, func: Any, args: Any, kwargs: Any) -> Any:
        words: list[Any] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        if not (self._spell(words, args) and (not kwargs or self._spell(words, kwargs.items()))):
            return super()._cache_key(state, func, args, kwargs)
        short = tuple(words)
        found = self._keys.get(short)
        if found is None:
            found = self._keys[short] = super()._cache_key(state, func, args, kwargs)
        return found

    def _spell(self, words: list[Any], values: Any) -> bool:
        """Append all that the result depends on; False where that is not known."""
        words.append(len(values))
        for value in values:
            kind = type(value)
            words.append(kind)
            if kind is FakeTensor:
                if value.constant is not None or value.fake_mode is not self or value.layout is not torch.strided:
                    return False
                words += (value.shape, value.stride(), value.dtype, value.fake_device, value.storage_offset())
                words += (value.untyped_storage().nbytes(), value.requires_grad, value.is_conj(), value.is_neg())
            elif kind in (list, tuple):
                if not self._spell(words, value):
                    return False
            elif kind in PLAIN:
                words.append(value)
            else:
                return False
        return True


@contextmanager
def uncollected() -> Iterator[None]:
    """No collecting of cycles: it takes a quarter of a trace, and what it frees when is chance."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
