"""Finds why a recompute or a backward failed, such as state that the forward changed, and in which module."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch.utils.checkpoint
from torch import nn
from torch.utils.checkpoint import CheckpointError

from profiler.core.units import few
from profiler.core.user_code import is_ours, is_theirs
from profiler.measuring.bench import Bench
from profiler.measuring.forward_changes import CAUSE, MOST_NAMED, SWITCH, what_moves
from profiler.training import missing_gradients
from profiler.training.checkpointing.call_routes import CalledBlock
from profiler.training.workload import Workload

CAST = "aten._to_copy.default encountered during backward"  # torch.utils.checkpoint's message, if selective
CACHED_CAST = (
    "autocast had already cast this weight and kept the result, so only the recompute casts it; "
    "torch.autocast(..., cache_enabled=False) casts it in both"
)
UNKNOWN = "encountered during backward but not found in storage"  # the same, for any operator
FILLED_CACHE = (
    "the layers fill a cache of keys (config.use_cache), which the recompute finds filled; use_cache=False runs the "
    "same operators in both"
)
CLOSURE = (
    "the training step calls the optimizer's step() without a closure, and this optimizer needs one (as LBFGS and SAM "
    "do), which is not supported: leave it off, or return an optimizer that takes none"
)
WHERE = "raised in the backward, "  # prefix of the note that locates an error in the backward
NO_GRADIENT = "does not require grad and does not have a grad_fn"  # torch.autograd's message about a loss
NOTHING_TRAINS = "no parameter trains, and nothing else that the loss depends on needs a gradient"


@contextmanager
def explained(bench: Bench) -> Iterator[None]:
    """Add notes to an error: which recompute raised it, the likely cause, what it read, the model's own checkpoints."""
    try:
        yield
    except Exception as error:  # the user's model may raise anything; it is re-raised
        if where := _place(bench.at_work(), error):
            error.add_note(WHERE + where)
        if cause := _found_cause(bench, error):
            error.add_note(CAUSE + cause)
        if bench.value_reads:  # perhaps the reason
            error.add_note(bench.value_reads)
        if note := bench.own_checkpoints():  # with them, a step may fit that does not fit without
            error.add_note(note.text)
        raise


def lacks_closure(error: Exception) -> bool:
    """Whether our call of an optimizer's step() failed for lack of a closure, by its signature or the failing line."""
    steps = list(traceback.walk_tb(error.__traceback__))
    lines = [step.line or "" for step in traceback.extract_tb(error.__traceback__)]
    ours = [at for at, (frame, _) in enumerate(steps) if is_ours(frame.f_code.co_filename) and "step(" in lines[at]]
    optimizer = steps[ours[-1]][0].f_locals.get("optimizer") if ours else None
    if optimizer is None:
        return False
    if isinstance(error, TypeError) and _needs_arguments(optimizer.step):
        return True
    last = steps[-1][0]
    return last.f_code.co_name == "step" and last.f_locals.get("closure", "") is None and "closure" in lines[-1]


def _needs_arguments(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    return False


def _place(model: nn.Module | None, error: Exception) -> str | None:
    """Return in words which module a backward was running when it raised the error; None if it ran none."""
    if isinstance(error, CheckpointError):
        return None  # its own message describes the recompute
    backward = _within_backward(error)
    files = [frame.f_code.co_filename for frame in backward]
    if torch.utils.checkpoint.__file__ in files:
        below = [frame.f_locals.get("self") for frame in backward[files.index(torch.utils.checkpoint.__file__) :]]
        module = next((held for held in below if isinstance(held, nn.Module)), None)
        if module is None and files[-1] == torch.utils.checkpoint.__file__:
            return None  # raised by the checkpoint before it recomputed anything
        name = _name(model, module) if module is not None else "a checkpointed function"
        return f"in the recompute of {name}, whose forward had succeeded"
    ran = [frame.f_locals["self"] for frame in backward if frame.f_code is nn.Module._call_impl.__code__]
    return f"where the model's own code runs {_name(model, ran[0])}" if ran else None


def _within_backward(error: Exception) -> list[FrameType]:
    """Return the frames of an error inside its innermost backward; empty if it was raised outside of one."""
    steps = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    backwards = [index for index, step in enumerate(steps) if step.f_code.co_filename == torch.autograd.graph.__file__]
    return steps[backwards[-1] + 1 :] if backwards else []


def _name(model: nn.Module | None, module: nn.Module) -> str:
    """Return a module's name in the model, in quotes, or the name of its class if the model does not hold it."""
    names = {id(held): name for name, held in model.named_modules()} if model is not None else {}
    name = module.name if isinstance(module, CalledBlock) else names.get(id(module))
    return f"'{name}'" if name else type(module).__name__


def _found_cause(bench: Bench, error: Exception) -> str | None:
    """Return the likely cause; None if none is found, or if the search, which runs the user's model, raises."""
    try:
        return _cause(bench, error)
    except Exception:  # noqa: BLE001  the model's first error is the one to report
        return None


def _cause(bench: Bench, error: Exception) -> str | None:
    if CAST in str(error):
        return CACHED_CAST
    is_unknown, is_leaf = UNKNOWN in str(error), _is_of_loss(error)
    if not isinstance(error, CheckpointError) and not is_unknown and not is_leaf and not _is_in_recompute(error):
        return None
    if bench.group.mesh is not None:  # the other ranks have ended or wait, and no rank builds its model alone
        return None
    workload = bench.build_unwatched(bench.trial.case).workload
    if is_leaf:
        return _lost_gradients(workload)
    if is_unknown and _caches_keys(workload.module):
        return FILLED_CACHE
    return what_moves(workload, bench.at_work())


def _is_of_loss(error: Exception) -> bool:
    """Whether the step's own backward, not one in the user's code, failed on a loss that requires no gradient."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return NO_GRADIENT in str(error) and not any(map(is_theirs, files))


def _lost_gradients(workload: Workload) -> str:
    """Return why the loss requires no gradient: how trainable parameters are used, or that the forward freezes them."""
    names = missing_gradients.trainable(workload.module)
    if not names:
        return NOTHING_TRAINS
    text = missing_gradients.explanation(workload, names)
    left = missing_gradients.trainable(workload.module)
    off = [name for name in names if name not in left]
    return f"the forward switches {SWITCH}{few(off, MOST_NAMED)} off" if off else text


def _caches_keys(module: nn.Module) -> bool:
    """Whether the model, one of transformers, caches keys and values (config.use_cache)."""
    return any(getattr(getattr(part, "config", None), "use_cache", False) is True for part in module.modules())


def _is_in_recompute(error: Exception) -> bool:
    """Whether code that PyTorch's checkpoint called in the backward raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [index for index, frame in enumerate(frames) if frame.filename == torch.utils.checkpoint.__file__]
    backward = [index for index, frame in enumerate(frames) if frame.filename == torch.autograd.graph.__file__]
    return bool(places and backward) and backward[0] < places[-1] < len(frames) - 1
