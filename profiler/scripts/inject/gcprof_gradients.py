"""The gradients of the first two steps of each optimizer: a digest of each, and how far they are from other ones.

A line of kind `gradients` for each of these steps, before it changes anything. The bytes are kept in files, for a later
run of the same script to compare its own with: GCPROF_REFERENCE is the folder of those of an earlier run.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

STEPS = 2  # the first has the weights that all runs begin with; the second shows what follows from them
MOST_BYTES = 2**30  # kept of one step
ALIGNED = 16  # bytes: as the widest number needs
LEAST_SCALE = 2.0**-8  # of the largest gradient, as in profiler/measuring/meters/equality.py
FAR = 2.0  # the relative difference of what cannot be compared
Values = dict[str, torch.Tensor | None]


def key_of_process() -> str:
    """Return what a process is called in every run: its rank, or how it was started."""
    if rank := os.environ.get("RANK", os.environ.get("LOCAL_RANK")):
        return rank
    words = " ".join((*sys.argv, multiprocessing.current_process().name))
    return hashlib.sha256(words.encode()).hexdigest()[:12]


class Gradients:
    """Takes the digests, for the first two steps of each optimizer."""

    def __init__(
        self,
        roots: dict[int, Callable[[], Any]],  # modules that were called in training
        *,
        write: Callable[[dict[str, Any]], None],
        apart: Callable[[Callable[[], None]], None],  # does work whose allocations are not the script's
    ) -> None:
        self._roots, self._write, self._apart = roots, write, apart
        self._process = os.getpid()
        self._known: list[list[Any]] = []  # each optimizer, weakly, and how often it has stepped

    def before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        known = next((entry for entry in self._known if entry[0]() is optimizer), None)
        if known is None:
            known = [weakref.ref(optimizer), 0, len(self._known)]
            self._known.append(known)
        if known[1] < STEPS and os.getpid() == self._process:
            known[1] += 1
            self._apart(lambda: self._take(optimizer, number=known[2], step=known[1]))

    def _take(self, optimizer: Any, *, number: int, step: int) -> None:
        names = self._names(optimizer)
        gradients = {names[id(parameter)]: _on_host(parameter.grad) for parameter in _parameters(optimizer)}
        digests = {name: None if gradient is None else digest(gradient) for name, gradient in gradients.items()}
        file = f"{key_of_process()}.{number}.{step}.gradients"
        _keep(os.path.join(os.environ["GCPROF_WATCH"], file), gradients, digests)
        place = os.path.join(os.environ.get("GCPROF_REFERENCE", ""), file)
        line = {"kind": "gradients", "key": key_of_process(), "optimizer": number, "step": step, "digests": digests}
        self._write({**line, "differences": _differences(place, gradients, digests)})

    def _names(self, optimizer: Any) -> dict[int, str]:
        """Return the name of each of the optimizer's parameters: in its module, or by its place in the optimizer."""
        roots = [module for root in self._roots.values() if (module := root()) is not None]
        roots.sort(key=lambda module: -sum(1 for _ in module.parameters()))
        found: dict[int, str] = {}
        ours = {id(parameter) for parameter in _parameters(optimizer)}
        taken: set[str] = set()
        for module in roots:
            for name, parameter in module.named_parameters():
                if id(parameter) in ours and id(parameter) not in found:
                    found[id(parameter)] = f"{type(module).__name__}.{name}" if name in taken else name
                    taken.add(found[id(parameter)])
        for place, parameter in enumerate(_parameters(optimizer)):
            found.setdefault(id(parameter), f"parameter {place} of the optimizer")
        return found


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def digest(gradient: torch.Tensor) -> str:
    """Return the SHA-256 of a gradient's bytes, row after row."""
    return hashlib.sha256(_bytes(gradient)).hexdigest()


def _on_host(gradient: Any) -> torch.Tensor | None:
    """Return the values in rows on the host; of a sharded tensor, this rank's own."""
    if gradient is None:
        return None
    plain = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    plain = plain.detach()
    dense: torch.Tensor = plain.to_dense() if plain.is_sparse else plain
    return dense.cpu().contiguous()


def _bytes(tensor: torch.Tensor) -> Any:
    size = tensor.numel() * tensor.element_size()
    return (ctypes.c_char * size).from_address(tensor.data_ptr()) if size else b""


def _largest(tensor: torch.Tensor) -> float:
    return float(_wide(tensor).abs().nan_to_num(0.0, 0.0, 0.0).max()) if tensor.numel() else 0.0


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _text(gradient: torch.Tensor) -> list[Any]:
    return [str(gradient.dtype), list(gradient.shape)]


def _keep(path: str, gradients: Values, digests: dict[str, str | None]) -> None:
    """Write the bytes of all gradients into a file, and beside it a file that says where each is."""
    index = {}
    with open(path, "wb") as file:
        for name, gradient in gradients.items():
            place = file.tell()
            is_kept = gradient is not None and place + gradient.nbytes < MOST_BYTES
            index[name] = [digests[name], place if is_kept else None, None if gradient is None else _text(gradient)]
            if is_kept and gradient is not None:
                file.write(_bytes(gradient))
                file.write(bytes(-gradient.nbytes % ALIGNED))
    with open(f"{path}.json", "w", encoding="utf-8") as file:
        json.dump(index, file)


def _differences(path: str, gradients: Values, digests: dict[str, str | None]) -> dict[str, float | None]:
    """Return the relative difference of each gradient that is not that of the file, None where it was not kept.

    It is the largest absolute difference over the largest absolute value, or over a fraction of the largest gradient of
    all, for those that are 0 but for rounding.
    """
    if not os.path.exists(f"{path}.json"):
        return {}
    with open(f"{path}.json", encoding="utf-8") as file:
        index = json.load(file)
    changed = [name for name in gradients if index.get(name, [None])[0] != digests[name]]
    sizes = [_largest(gradient) for gradient in gradients.values() if changed and gradient is not None]
    least = LEAST_SCALE * max(sizes, default=0.0)
    whole = torch.from_file(path, size=os.path.getsize(path), dtype=torch.uint8) if changed else torch.empty(0)
    found: dict[str, float | None] = {}
    for name in changed:
        digest, place, text = index.get(name, (None, None, None))
        gradient = gradients[name]
        if digest is None or gradient is None or text != _text(gradient):
            found[name] = FAR
        elif place is None:
            found[name] = None
        else:
            other = whole[place : place + gradient.nbytes].view(gradient.dtype).view(gradient.shape)
            found[name] = _difference(_wide(gradient), _wide(other), least)
    return found


def _difference(one: torch.Tensor, other: torch.Tensor, least: float) -> float:
    scale = max(float(one.abs().max()), float(other.abs().max()), least)
    relative = float((one - other).abs().max()) / scale if scale else 0.0
    return relative if relative < FAR else FAR  # nan is no number
