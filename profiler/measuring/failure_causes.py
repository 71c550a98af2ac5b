"""Why a recompute failed: what the forward had changed, or what autocast had kept."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.checkpoint
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointError

from profiler.core.user_code import is_theirs
from profiler.measuring.bench import Bench
from profiler.training import plain_state, random_sources
from profiler.training.workload import Workload, loss_of

CAUSE = "likely cause: "  # what the note begins with that an error is given
CAST = "aten._to_copy.default encountered during backward"  # torch.utils.checkpoint, of a selective one
CACHED_CAST = (
    "autocast had cast this weight before, and kept the result, so that only the recompute casts it; "
    "torch.autocast(..., cache_enabled=False) casts it in both"
)
UNKNOWN = "encountered during backward but not found in storage"  # the same, of any operator
FILLED_CACHE = (
    "the layers fill a cache of keys (config.use_cache), which the recompute finds filled; use_cache=False runs the "
    "same operators in both"
)
MOST_NAMED = 3
DEEPEST = 4  # objects within objects


@contextmanager
def explained(bench: Bench) -> Iterator[None]:
    """Add to an error that a recompute raises what is likely to have caused it; and the model's own checkpoints."""
    try:
        yield
    except Exception as error:  # the user's model may raise anything; it goes on from here
        if cause := _cause(bench, error):
            error.add_note(CAUSE + cause)
        if note := bench.own_checkpoints():  # which may fit where the step without them does not
            error.add_note(note.text)
        raise


def _cause(bench: Bench, error: Exception) -> str | None:
    if CAST in str(error):
        return CACHED_CAST
    is_unknown = UNKNOWN in str(error)
    if not isinstance(error, CheckpointError) and not is_unknown and not _is_in_recompute(error):
        return None
    if bench.group.mesh is not None:  # the other ranks have ended or wait, and none builds a model alone
        return None
    workload = bench.build_unwatched(bench.trial.case).workload
    if is_unknown and _caches_keys(workload.module):
        return FILLED_CACHE
    before, states = _image(workload), random_sources.states(workload, next(workload.module.parameters()).device)
    loss_of(workload)
    moved = list(plain_state.moved(before, _image(workload)))
    if moved:
        names = ", ".join(moved[:MOST_NAMED]) + (f" and {len(moved) - MOST_NAMED} more" if moved[MOST_NAMED:] else "")
        return f"the forward changes {names}, which the recompute finds changed"
    later = random_sources.states(workload, next(workload.module.parameters()).device)
    drawn = [name for name, state in states.items() if name != "torch" and not torch.equal(state, later[name])]
    return f"the recompute draws other numbers from {', '.join(drawn)}" if drawn else None


def _caches_keys(module: nn.Module) -> bool:
    """Whether it is a model of transformers that keeps keys and values for the next token."""
    return any(getattr(getattr(part, "config", None), "use_cache", False) is True for part in module.modules())


def _is_in_recompute(error: Exception) -> bool:
    """Whether the user's code raised it below PyTorch's checkpoint, in the backward."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [index for index, frame in enumerate(frames) if frame.filename == torch.utils.checkpoint.__file__]
    backward = [index for index, frame in enumerate(frames) if frame.filename == torch.autograd.graph.__file__]
    return bool(places and backward) and backward[0] < places[-1] < len(frames) - 1


def _image(workload: Workload) -> plain_state.Image:
    """What a forward may change: buffers, inputs, plain attributes, objects of the model, names of its files."""
    module = workload.module
    held = {f"the buffer {name}": buffer for name, buffer in module.named_buffers()}
    inputs, _ = pytree.tree_flatten_with_path(workload.batch)
    held |= {f"the input{pytree.keystr(path)}": leaf for path, leaf in inputs}
    held |= {f"{home}.{name}": value for home, names in _files(module) for name, value in names.items()}
    image = {name: text for name, value in held.items() if (text := plain_state.text(value)) is not None}
    for path, submodule in module.named_modules():
        image |= dict(_objects(vars(submodule), f"{path}." if path else "", DEEPEST))
    return plain_state.image(module) | image


def _objects(values: dict[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """What the attributes of objects hold that are neither modules nor plain, by their full names."""
    for name, value in list(values.items()):
        is_plain = value is None or isinstance(value, plain_state.KINDS)
        if name in plain_state.OF_TORCH or is_plain or isinstance(value, (nn.Module, type)) or not depth:
            continue
        own = getattr(value, "__dict__", {})
        for attribute, held in list(own.items()):
            if (text := plain_state.text(held)) is not None:
                yield f"{prefix}{name}.{attribute}", text
        yield from _objects(own, f"{prefix}{name}.", depth - 1)


def _files(module: nn.Module) -> list[tuple[str, dict[str, Any]]]:
    """The names of the user's files that the classes of the modules are of."""
    names = dict.fromkeys(type(submodule).__module__ for submodule in module.modules())
    homes = [sys.modules[name] for name in names if name in sys.modules]
    return [
        (home.__name__, {name: value for name, value in vars(home).items() if not name.startswith("__")})
        for home in homes
        if is_theirs(getattr(home, "__file__", None) or "<")
    ]
