"""Why a recompute or a backward failed: what the forward had changed, what autocast had kept; and in which module."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch.utils.checkpoint
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointError

from profiler.core.units import few
from profiler.core.user_code import is_theirs
from profiler.measuring.bench import Bench
from profiler.training import missing_gradients, plain_state, random_sources
from profiler.training.checkpointing.call_routes import CalledBlock
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
WHERE = "raised in the backward, "  # what the note begins with that an error of a recompute is given
NO_GRADIENT = "does not require grad and does not have a grad_fn"  # torch.autograd, of a loss
NOTHING_TRAINS = "no parameter trains, nor does anything else that the loss is made of need a gradient"
SWITCH = "requires_grad of "
MOST_NAMED = 3
DEEPEST = 4  # objects within objects


@contextmanager
def explained(bench: Bench) -> Iterator[None]:
    """Add to an error which recompute raised it, what is likely to have caused it, and the model's own checkpoints."""
    try:
        yield
    except Exception as error:  # the user's model may raise anything; it goes on from here
        if where := _place(bench.at_work(), error):
            error.add_note(WHERE + where)
        if cause := _found_cause(bench, error):
            error.add_note(CAUSE + cause)
        if note := bench.own_checkpoints():  # which may fit where the step without them does not
            error.add_note(note.text)
        raise


def _place(model: nn.Module | None, error: Exception) -> str | None:
    """Which module was computed again when an error was raised within a backward; None where none was."""
    if isinstance(error, CheckpointError):
        return None  # which tells of a recompute itself
    backward = _within_backward(error)
    files = [frame.f_code.co_filename for frame in backward]
    if torch.utils.checkpoint.__file__ in files:
        below = [frame.f_locals.get("self") for frame in backward[files.index(torch.utils.checkpoint.__file__) :]]
        module = next((held for held in below if isinstance(held, nn.Module)), None)
        if module is None and files[-1] == torch.utils.checkpoint.__file__:
            return None  # before anything was computed
        name = _name(model, module) if module is not None else "a checkpointed function"
        return f"in the recompute of {name}, whose forward had passed"
    ran = [frame.f_locals["self"] for frame in backward if frame.f_code is nn.Module._call_impl.__code__]
    return f"where the model's own code runs {_name(model, ran[0])}" if ran else None


def _within_backward(error: Exception) -> list[FrameType]:
    """The frames of an error that are below its innermost backward; none where there is none."""
    steps = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    backwards = [index for index, step in enumerate(steps) if step.f_code.co_filename == torch.autograd.graph.__file__]
    return steps[backwards[-1] + 1 :] if backwards else []


def _name(model: nn.Module | None, module: nn.Module) -> str:
    """A module's name in the model, in quotes; that of its class where the model does not hold it."""
    names = {id(held): name for name, held in model.named_modules()} if model is not None else {}
    name = module.name if isinstance(module, CalledBlock) else names.get(id(module))
    return f"'{name}'" if name else type(module).__name__


def _found_cause(bench: Bench, error: Exception) -> str | None:
    """The likely cause; None where it is not found, and where looking for it raises, as it runs the user's model."""
    try:
        return _cause(bench, error)
    except Exception:  # noqa: BLE001  what the user's model raised first is told
        return None


def _cause(bench: Bench, error: Exception) -> str | None:
    if CAST in str(error):
        return CACHED_CAST
    is_unknown, is_leaf = UNKNOWN in str(error), _is_of_loss(error)
    if not isinstance(error, CheckpointError) and not is_unknown and not is_leaf and not _is_in_recompute(error):
        return None
    if bench.group.mesh is not None:  # the other ranks have ended or wait, and none builds a model alone
        return None
    workload = bench.build_unwatched(bench.trial.case).workload
    if is_leaf:
        return _lost_gradients(workload)
    if is_unknown and _caches_keys(workload.module):
        return FILLED_CACHE
    return _what_moves(workload, bench.at_work())


def _is_of_loss(error: Exception) -> bool:
    """Whether the step's own backward found a loss that needs no gradient, not one within the user's code."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return NO_GRADIENT in str(error) and not any(map(is_theirs, files))


def _lost_gradients(workload: Workload) -> str:
    """Why the loss needs no gradient: how the parameters that train are used, or that the forward freezes them."""
    names = missing_gradients.trainable(workload.module)
    if not names:
        return NOTHING_TRAINS
    text = missing_gradients.explanation(workload, names)
    left = missing_gradients.trainable(workload.module)
    off = [name for name in names if name not in left]
    return f"the forward switches {SWITCH}{few(off, MOST_NAMED)} off" if off else text


def _what_moves(workload: Workload, model: nn.Module | None) -> str | None:
    """What a forward changes of what its recompute reads; `model` is the one that failed."""
    frozen = _other_switches(workload.module, model) if model is not None else []
    before, states = _image(workload), random_sources.states(workload, next(workload.module.parameters()).device)
    loss_of(workload)
    moved = list(plain_state.moved(before, _image(workload)))
    if frozen and not any(name.startswith(SWITCH) for name in moved):
        return f"{few(frozen, MOST_NAMED)} is no longer as built, perhaps changed between a forward and its recompute"
    if moved:
        return f"the forward changes {few(moved, MOST_NAMED)}, which the recompute finds changed"
    later = random_sources.states(workload, next(workload.module.parameters()).device)
    drawn = [name for name, state in states.items() if name != "torch" and not torch.equal(state, later[name])]
    return f"the recompute draws other numbers from {', '.join(drawn)}" if drawn else None


def _other_switches(fresh: nn.Module, model: nn.Module) -> list[str]:
    """The switches for gradients of parameters that are not as in a model that was just built."""
    before, now = _switches(fresh), _switches(model)
    return [name for name, is_on in before.items() if now.get(name, is_on) != is_on]


def _switches(module: nn.Module) -> dict[str, str]:
    """By parameter, whether it needs a gradient."""
    return {f"{SWITCH}{name}": str(parameter.requires_grad) for name, parameter in module.named_parameters()}


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
    """What a forward may change.

    requires_grad of parameters, buffers, inputs, plain attributes, objects of the model, names of its files.
    """
    module = workload.module
    held = {f"the buffer {name}": buffer for name, buffer in module.named_buffers()}
    inputs, _ = pytree.tree_flatten_with_path(workload.batch)
    held |= {f"the input{pytree.keystr(path)}": leaf for path, leaf in inputs}
    held |= {f"{home}.{name}": value for home, names in _files(module) for name, value in names.items()}
    image = {name: text for name, value in held.items() if (text := plain_state.text(value)) is not None}
    for path, submodule in module.named_modules():
        image |= dict(_objects(vars(submodule), f"{path}." if path else "", DEEPEST))
    return _switches(module) | plain_state.image(module) | image


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
