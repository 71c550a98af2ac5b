"""State that modules keep in plain Python between calls: counters, lists, dicts, unregistered tensors."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from profiler.training.workload import local

OF_TORCH = {*vars(nn.Module()), "_route", "_compiled_call_impl"}  # attributes of every module, and of a routed block
DEEPEST = 8  # levels of nesting that are read
GROUPS = (list, tuple, set, frozenset, deque)
KINDS = (bool, int, float, complex, str, bytes, torch.Tensor, dict, *GROUPS)
Image = dict[str, str]  # from the full name of an attribute to the text of its value


def image(module: nn.Module) -> Image:
    """Return the text of every attribute that is plain, or an unregistered tensor."""
    return {name: told for name, value in _attributes(module) if (told := text(value)) is not None}


def moved(before: Image, after: Image) -> Image:
    """Return the attributes that changed, with the text of what they hold now."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: after.get(name, "gone") for name in names}


@contextmanager
def kept(module: nn.Module) -> Iterator[None]:
    """Restore, on exit, plain attributes, what lists, dicts and sets hold, and unregistered tensors with their values.

    A tensor gets its values back if its version tells that it was written in place.
    """
    before = [(submodule, name, value, content(value)) for submodule, name, value in _places(module)]
    names = {(submodule, name) for submodule, name, _, _ in before}
    written = [(tensor, tensor._version, tensor.clone()) for _, _, value, _ in before for tensor in writable(value)]
    try:
        yield
    finally:
        for submodule, name, _ in list(_places(module)):
            if (submodule, name) not in names:
                del vars(submodule)[name]
        for submodule, name, value, held in before:
            refill(value, held)
            vars(submodule)[name] = value
        for tensor, version, values in written:
            if tensor._version != version:
                tensor.copy_(values)


def writable(value: Any, depth: int = DEEPEST) -> list[torch.Tensor]:
    """Return the unregistered tensors of an attribute that can be written in place, detached."""
    if isinstance(value, torch.Tensor):
        if isinstance(value, nn.Parameter) or value.is_inference() or value.layout is not torch.strided:
            return []
        overlaps = any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True))
        return [] if overlaps else [value.detach()]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, GROUPS) else ()
    nested = [item for item in items if isinstance(item, (torch.Tensor, dict, *GROUPS))]
    return [tensor for item in nested for tensor in writable(item, depth - 1)] if depth else []


def content(value: Any) -> list[Any]:
    """Return the items of a dict, set, list or deque, in order; [] for any other value."""
    if isinstance(value, dict):
        return list(value.items())
    return list(value) if isinstance(value, (set, list, deque)) else []


def refill(value: Any, held: list[Any]) -> None:
    """Give a dict, set, list or deque its items back; an unchanged one is left alone: it may refuse to be changed."""
    if _same(content(value), held):
        return
    if isinstance(value, dict):
        _refill_dict(value, dict(held))
    elif isinstance(value, list):
        value[:] = held
    else:
        value.clear()
        value.update(held) if isinstance(value, set) else value.extend(held)


def _refill_dict(value: dict[Any, Any], held: dict[Any, Any]) -> None:
    """Change only what differs, where the order allows it: another thread may be reading."""
    for key in [key for key in value if key not in held]:
        del value[key]
    is_in_order = [*value] == [*held][: len(value)]
    for key, item in held.items():
        if not is_in_order:
            value.pop(key, None)
        if key not in value or value[key] is not item:
            value[key] = item


def _same(content: list[Any], held: list[Any]) -> bool:
    """Whether both hold the same objects; a dict's pairs are new tuples each time, so their items are compared."""
    return len(content) == len(held) and all(
        one is other or (type(one) is tuple and [*map(id, one)] == [*map(id, other)])
        for one, other in zip(content, held, strict=True)
    )


def _places(module: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Yield every attribute that the module keeps in plain Python: its submodule, name and value."""
    for submodule in module.modules():
        for name, value in list(vars(submodule).items()):
            if name not in OF_TORCH and (value is None or isinstance(value, KINDS)):
                yield submodule, name, value


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, submodule in module.named_modules():
        for name, value in list(vars(submodule).items()):
            if name not in OF_TORCH:
                yield f"{path}.{name}" if path else name, value


def text(value: Any, depth: int = DEEPEST) -> str | None:
    """Return a text that identifies a plain value or a container; None for any other value."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return _digest(value)
    if not depth:
        return None
    if isinstance(value, dict):
        texts = [f"{key!r}: {text(held, depth - 1)}" for key, held in value.items() if text(key, 0) is not None]
        return f"{{{', '.join(texts)}}}"
    if isinstance(value, (list, tuple, deque)):
        return f"[{', '.join(str(text(held, depth - 1)) for held in value)}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(str(text(held, depth - 1)) for held in value))}}}"
    return None


def _digest(tensor: torch.Tensor) -> str:
    own = local(tensor.detach())
    if own.layout is not torch.strided or own.is_meta:
        return f"{tuple(own.shape)} {own.dtype}"
    values = own.cpu().contiguous().flatten().view(torch.uint8).numpy().data
    digest = hashlib.blake2b(values, digest_size=16).hexdigest()
    return f"{tuple(own.shape)} {own.dtype} {digest}"
