"""Why a step fails, its recompute differs, or parameters get no gradient: how a forward changes and uses them."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch.utils.checkpoint
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointError, CheckpointFunction

from profiler.core import by_key
from profiler.core.errors import frames, is_ours, is_theirs
from profiler.core.units import few
from profiler.measuring.bench import Bench
from profiler.training import kept_state
from profiler.training.blocks import own_class
from profiler.training.called_blocks import CalledBlock
from profiler.training.observed_forward import TensorUses
from profiler.training.workload import Workload, loss_of, tensors

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
IN_RECOMPUTE = "in the recompute of "
WHERE = "raised in the backward, "  # prefix of the note that locates an error in the backward
NO_GRADIENT = "does not require grad and does not have a grad_fn"  # torch.autograd's message about a loss
NOTHING_TRAINS = "no parameter trains, and nothing else that the loss depends on needs a gradient"
CAUSE = "likely cause: "  # prefix of a cause, in a note that is added to an error and in a reason
SWITCH = "requires_grad of "
MOST_NAMED = 3
REENTRANT = (
    "in a reentrant checkpoint of which no input needs a gradient; use_reentrant=False gives them theirs, and so does "
    "requires_grad_() on an input"
)
OFF = "used only where gradients are off, as under torch.no_grad"
DETACHED = "used, but the loss does not depend on it: detached, or its result is not used"
UNUSED = "not used in the forward"
DEEPEST = 4  # levels of objects within objects that are read
BUFFER = "the buffer "
TURNED = (
    "changed since a checkpointed block ran in the forward, so the recompute saves other tensors: change it "
    "after the backward, or checkpoint other blocks (--blocks)"
)
DUAL = (
    "the blocks run within a level of forward-mode differentiation (torch.autograd.forward_ad), which is over when the "
    "backward recomputes them: checkpoint what contains the level, or leave such blocks out (--blocks)"
)
FILLED = (
    "is changed by the forward, as a cache is, and the recompute finds it changed: give each step a cache that its "
    "blocks only read, or none"
)
LENT = (
    "is called with tensors that stand in for its parameters, as torch.func.functional_call puts them there, and "
    "recomputed without them: mark the function that makes the call with gcprof.block"
)


@contextmanager
def explained(bench: Bench) -> Iterator[None]:
    """Add notes to an error: which recompute raised it, the likely cause, what it read, the model's own checkpoints."""
    try:
        yield
    except Exception as error:  # the user's model may raise anything; it is re-raised
        if where := _place(bench.at_work(), error):
            error.add_note(WHERE + where)
        try:
            cause = _cause(bench, error, in_recompute=(where or "").startswith(IN_RECOMPUTE))
        except Exception:  # noqa: BLE001  the search runs the user's model, whose first error is the one to report
            cause = None
        if cause:
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
    if isinstance(error, TypeError):
        try:
            inspect.signature(optimizer.step).bind()
        except TypeError:
            return True
    last = steps[-1][0]
    return last.f_code.co_name == "step" and last.f_locals.get("closure", "") is None and "closure" in lines[-1]


def _place(model: nn.Module | None, error: Exception) -> str | None:
    """Return in words which module a backward was running when it raised the error; None if it ran none."""
    if isinstance(error, CheckpointError):
        return None  # its own message describes the recompute
    steps = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    backwards = [index for index, step in enumerate(steps) if step.f_code.co_filename == torch.autograd.graph.__file__]
    backward = steps[backwards[-1] + 1 :] if backwards else []  # the innermost
    files = [frame.f_code.co_filename for frame in backward]
    if torch.utils.checkpoint.__file__ in files:
        below = [frame.f_locals.get("self") for frame in backward[files.index(torch.utils.checkpoint.__file__) :]]
        module = next((held for held in below if isinstance(held, nn.Module)), None)
        if module is None and files[-1] == torch.utils.checkpoint.__file__:
            return None  # raised by the checkpoint before it recomputed anything
        name = _name(model, module) if module is not None else "a checkpointed function"
        return f"{IN_RECOMPUTE}{name}, whose forward had succeeded"
    ran = [frame.f_locals["self"] for frame in backward if frame.f_code is nn.Module._call_impl.__code__]
    return f"where the model's own code runs {_name(model, ran[0])}" if ran else None


def _name(model: nn.Module | None, module: nn.Module) -> str:
    """Return a module's name in the model, in quotes, or the name of its class if the model does not hold it."""
    names = {id(held): name for name, held in model.named_modules()} if model is not None else {}
    name = module.name if isinstance(module, CalledBlock) else names.get(id(module))
    return f"'{name}'" if name else type(module).__name__


def _cause(bench: Bench, error: Exception, *, in_recompute: bool) -> str | None:
    """Return the likely cause; None if none is found."""
    if CAST in str(error):
        return CACHED_CAST
    is_unknown = UNKNOWN in str(error)
    in_users = any(is_theirs(frame.filename) for frame in traceback.extract_tb(error.__traceback__))
    is_leaf = NO_GRADIENT in str(error) and not in_users  # of the step's own backward, not one in the user's code
    if not isinstance(error, CheckpointError) and not is_unknown and not is_leaf and not in_recompute:
        return None
    if bench.group.mesh is not None:  # the other ranks have ended or wait, and no rank builds its model alone
        return None
    workload = bench.build_unwatched(bench.trial.case).workload
    if is_leaf:  # how trainable parameters are used, unless the forward freezes them
        names = trainable(workload.module)
        text = explanation(workload, names) if names else NOTHING_TRAINS
        left = trainable(workload.module)
        off = [name for name in names if name not in left]
        return f"the forward switches {SWITCH}{few(off, MOST_NAMED)} off" if off else text
    configs = [getattr(part, "config", None) for part in workload.module.modules()]  # of transformers
    if is_unknown and any(getattr(config, "use_cache", False) is True for config in configs):
        return FILLED_CACHE
    return what_moves(workload, bench.at_work())


def what_moves(workload: Workload, model: nn.Module | None) -> str | None:
    """Return in words what a forward changes that its recompute reads, if anything; `model` is the one that failed."""
    built, failed = _switches(workload.module), _switches(model) if model is not None else {}
    frozen = [name for name, is_on in built.items() if failed.get(name, is_on) != is_on]
    before, states = _image(workload), kept_state.random_states(workload, next(workload.module.parameters()).device)
    calls = _Calls(workload.module)
    with register_module_forward_pre_hook(calls.called):
        loss_of(workload)
    after = _image(workload)
    moved = list(kept_state.moved(before, after))
    are_switches = any(name.startswith(SWITCH) for name in moved)
    if calls.lent:
        return f"'{calls.lent}' {LENT}"
    if calls.is_dual:
        return DUAL
    if filled := calls.filled():
        return f"{few(filled, MOST_NAMED)} {FILLED}"
    if not are_switches and (turned := calls.turned()):
        return f"{few(turned, MOST_NAMED)} is {TURNED}"
    if frozen and not are_switches:
        return f"{few(frozen, MOST_NAMED)} is not as it was built, perhaps changed between a forward and its recompute"
    if moved:
        kinds = [{image.get(name, "").rpartition(" ")[0] for image in (before, after)} for name in moved]
        is_sure = not all(name.startswith(BUFFER) and len(kind) == 1 for name, kind in zip(moved, kinds, strict=True))
        unsure = "" if is_sure else ": perhaps the cause, if the code branches on its values"
        return f"the forward changes {few(moved, MOST_NAMED)}, which the recompute finds changed{unsure}"
    later = kept_state.random_states(workload, next(workload.module.parameters()).device)
    drawn = [name for name, state in states.items() if name != "torch" and not torch.equal(state, later[name])]
    return f"the recompute draws different numbers from {', '.join(drawn)}" if drawn else None


class _Calls:
    """Records the parameters of modules that are called under a checkpoint, with their requires_grad."""

    def __init__(self, module: nn.Module) -> None:
        self.lent: str | None = None  # the first module that was called with parameters not its own
        self.is_dual = False  # whether any was called within a level of forward-mode differentiation
        self._names = {id(child): name for name, child in module.named_modules()}
        self._own = {id(child): {id(parameter) for parameter in child.parameters()} for child in module.modules()}
        self._parameters = {id(parameter): (name, parameter) for name, parameter in module.named_parameters()}
        self._seen: dict[int, set[bool]] = {}
        self._containers: dict[int, tuple[str, Any, str | None]] = {}  # name, dict or list, text when called

    def called(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Record the parameters of a module that is about to be called."""
        under = (frame.f_code.co_filename == torch.utils.checkpoint.__file__ for frame in frames(sys._getframe()))
        if id(module) not in self._names or not any(under):
            return
        self.is_dual = self.is_dual or forward_ad._current_level >= 0
        keywords = sys._getframe(1).f_locals.get("kwargs") or {}  # of nn.Module._call_impl, which gives hooks none
        for argument in (*arguments, *keywords.values()):
            if isinstance(argument, (dict, list)) and id(argument) not in self._containers:
                name = f"a {type(argument).__name__} that '{self._names[id(module)]}' is called with"
                self._containers[id(argument)] = name, argument, kept_state.text(argument)
        for parameter in module.parameters():
            if id(parameter) in self._own[id(module)]:
                self._seen.setdefault(id(parameter), set()).add(parameter.requires_grad)
            else:
                self.lent = self.lent or self._names[id(module)]

    def filled(self) -> list[str]:
        """Return the dicts and lists that have changed since a module was called with them."""
        return [name for name, held, before in self._containers.values() if kept_state.text(held) != before]

    def turned(self) -> list[str]:
        """Return the requires_grad switches that have changed since a call, as text."""
        pairs = [(self._parameters[key], found) for key, found in self._seen.items()]
        return [f"{SWITCH}{name}" for (name, parameter), found in pairs if found != {parameter.requires_grad}]


def _switches(module: nn.Module) -> dict[str, str]:
    """Return requires_grad of each parameter, as text."""
    return {f"{SWITCH}{name}": str(parameter.requires_grad) for name, parameter in module.named_parameters()}


def _image(workload: Workload) -> kept_state.Image:
    """Return an image of what a forward may change: of parameters, buffers, inputs, objects and its files' globals."""
    module = workload.module
    held: dict[str, Any] = {}
    for name, buffer in module.named_buffers():
        owner = own_class(module.get_submodule(name.rpartition(".")[0]))
        is_plain = not owner.__module__.startswith("torch.nn.")  # of those, only shape and dtype decide what is saved
        held[f"{BUFFER}{name}"] = buffer if is_plain else [str(buffer.shape), str(buffer.dtype)]
    inputs, _ = pytree.tree_flatten_with_path(workload.batch)
    held |= {f"the input{pytree.keystr(path)}": leaf for path, leaf in inputs}
    kinds = (kind for submodule in module.modules() for kind in type(submodule).__mro__)  # FSDP2 subclasses theirs
    for home in map(sys.modules.get, dict.fromkeys(kind.__module__ for kind in kinds)):
        if home is not None and is_theirs(getattr(home, "__file__", None) or "<"):
            names = vars(home).items()
            held |= {f"{home.__name__}.{name}": value for name, value in names if not name.startswith("__")}
    image = {name: text for name, value in held.items() if (text := kept_state.text(value)) is not None}
    for path, submodule in module.named_modules():
        image |= dict(_objects(vars(submodule), f"{path}." if path else "", DEEPEST))
    return _switches(module) | kept_state.image(module) | image


def _objects(values: dict[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the plain attributes of objects that are neither modules nor plain values, by full name."""
    for name, value in list(values.items()):
        is_plain = value is None or isinstance(value, kept_state.KINDS)
        if name in kept_state.OF_TORCH or is_plain or isinstance(value, (nn.Module, type)) or not depth:
            continue
        own = getattr(value, "__dict__", {})
        for attribute, held in list(own.items()):
            if (text := kept_state.text(held)) is not None:
                yield f"{prefix}{name}.{attribute}", text
        yield from _objects(own, f"{prefix}{name}.", depth - 1)


def trainable(module: nn.Module) -> list[str]:
    """Return the names of the parameters that need a gradient."""
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def explanation(workload: Workload, names: Sequence[str]) -> str:
    """Return a sentence: how many parameters get no gradient, which, and why; one forward is run to find the causes."""
    parameters = dict(workload.module.named_parameters())
    uses: dict[int, set[str]] = {id(parameters[name]): set() for name in names}

    def use(tensor: torch.Tensor) -> None:
        if id(tensor) in uses:
            uses[id(tensor)].add(_way(sys._getframe(1)))

    with kept_state.kept(workload.module), TensorUses(use):
        workload.loss(workload.module, workload.batch)
    order = (DETACHED, REENTRANT, OFF)  # a use with gradients on means that the gradient was lost later
    seen = {name: uses[id(parameters[name])] for name in names}
    by_cause = by_key((next((cause for cause in order if cause in seen[name]), UNUSED), name) for name in names)
    count = f"{len(names)} of {len(trainable(workload.module))} trainable parameters get no gradient"
    return f"{count}: {'; '.join(f'{few(of_cause, MOST_NAMED)} ({cause})' for cause, of_cause in by_cause.items())}"


def _way(frame: FrameType | None) -> str:
    """Return why a parameter that is used in this frame would get no gradient."""
    if torch.is_grad_enabled():
        return DETACHED
    while frame is not None:
        if frame.f_code is CheckpointFunction.forward.__code__:
            inputs = tensors(frame.f_locals["args"])
            return DETACHED if any(tensor.requires_grad for tensor in inputs) else REENTRANT
        frame = frame.f_back
    return OFF
