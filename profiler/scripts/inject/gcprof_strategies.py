"""Finds the model that a script trains, has a strategy applied to it, and names the script's own checkpoints.

Imported by `gcprof_watch` beside it; torch and the standard library alone, so that `none` needs nothing else. Other
strategies are gcprof's, which is found behind all else that the script's Python has: `profiler/scripts/applying.py`.

A model is the outermost module that has parameters of an optimizer, called with gradients enabled; the wrappers of DDP,
and of DataParallel on one GPU, are looked through. It is changed at that first call, before its forward is looked up,
by that call's own arguments.
"""

from __future__ import annotations

import gc
import inspect
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial, wraps
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any, cast

import torch
import torch.utils.checkpoint as checkpoints
from torch.optim import optimizer as optimizers
from torch.utils.weak import WeakIdKeyDictionary

lines: Any = import_module("gcprof_history")  # beside this file
STRATEGY = os.environ.get("GCPROF_STRATEGY", "none")
CHAIN_STEP = os.environ.get("GCPROF_CHAIN")  # the step, from 0, whose stages are costed for a plan
PATTERN = os.environ.get("GCPROF_MODULE")  # of the modules that are changed
TORCH = os.path.dirname(torch.__file__) + os.sep
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
INNERMOST = "_checkpoint_impl" if hasattr(checkpoints, "_checkpoint_impl") else "checkpoint"  # before torch 2.13
original: Any = getattr(checkpoints, INNERMOST)  # PyTorch's function that all forms of checkpoint call
Module = torch.nn.Module


def begin(watch: Any, write: Callable[[dict[str, Any]], None]) -> None:
    """Begin to look for models and for checkpoints of the script's own; `write` writes a line of the watch."""
    models = _Models(watch, write)
    own = _OwnCheckpoints(models)

    checkpoint: Any = lambda *arguments, **keywords: own.call(arguments, keywords)  # noqa: E731
    setattr(checkpoints, INNERMOST, wraps(original)(checkpoint))
    if STRATEGY == "none" and not CHAIN_STEP:
        return
    sys.meta_path.append(cast("Any", _Finder()))
    try:
        import_module("profiler.core.catalogue")
        models.applying = import_module("profiler.scripts.applying")
        costing: Any = import_module("profiler.scripts.costing") if CHAIN_STEP else None
    except (ImportError, SyntaxError, AttributeError) as error:  # the latter where this Python is older
        here = f"Python {sys.version_info.major}.{sys.version_info.minor} ({sys.executable})"
        why = f"strategies need gcprof in the script's own {here}: {error}; install gcprof, or msgspec, there"
        write({"kind": "applied", "strategy": STRATEGY, "needs": why})
        print(f"gcprof: {why}", file=sys.stderr, flush=True)
        os._exit(2)  # a wrong use
    models.begin()
    models.applying.begin_levers(STRATEGY)
    if CHAIN_STEP:
        watch.costing = models.costing = costing.Costing(int(CHAIN_STEP), write, models.look_for_costs)


class _Finder:
    """Finds gcprof, and what it needs, behind all else: the script's own Python comes first."""

    places = os.environ.get("GCPROF_PACKAGES", "").split(os.pathsep)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return PathFinder.find_spec(name, self.places) if name in ("profiler", "msgspec") else None


class _Models:
    """The models that optimizers train, and what became of each."""

    def __init__(self, watch: Any, write: Callable[[dict[str, Any]], None]) -> None:
        self.watch, self.write = watch, write
        self.due: Any = WeakIdKeyDictionary()  # parameters of optimizers whose model has not been called
        self.known: Any = WeakIdKeyDictionary()  # parameters of models that have
        self.chosen: Any = WeakIdKeyDictionary()  # submodules that --module chooses
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.evaluated: Any = WeakIdKeyDictionary()  # modules that were called without gradients
        self.changed: Any = WeakIdKeyDictionary()  # all modules of models that a strategy has changed
        self.is_busy = self.is_due = False
        self.costing: Any = None  # traces a step for a plan, where that is asked for
        self.applying: Any = None  # the module, where a strategy is
        self.plain: Any = Module.__call__

    def begin(self) -> None:
        """Note parameters of optimizers; while some are due, calls of modules are looked at."""
        optimizer: Any = optimizers.Optimizer
        add, models = optimizer.add_param_group, self

        def add_param_group(self: Any, group: Any) -> None:
            add(self, group)
            models.optimizers.add(self)
            new = [parameter for parameter in self.param_groups[-1]["params"] if parameter not in models.known]
            models.due.update(dict.fromkeys(new, True))
            models.look()

        optimizer.add_param_group = add_param_group

    def look(self) -> None:
        """Begin or end to look at calls of modules, as something is due."""
        models, plain = self, self.plain

        def __call__(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if torch.compiler.is_compiling() or models.is_busy:
                return plain(self, *arguments, **keywords)
            again = type(self).__call__ is Module.__call__
            met = models.met if torch.is_grad_enabled() else models.met_in_evaluation
            is_changed = met(self, arguments, keywords)
            return (self if is_changed and again else plain.__get__(self))(*arguments, **keywords)

        is_on, on = Module.__call__ is not plain, bool(self.is_due or self.due or self.chosen)
        if on and not is_on:
            Module.__call__ = __call__  # type: ignore[method-assign]
        elif is_on and not on:
            dynamo: Any = sys.modules.get("torch._dynamo.utils")
            if dynamo and getattr(dynamo, "unpatched_nn_module_call", None) is Module.__call__:
                dynamo.unpatched_nn_module_call = plain
            Module.__call__ = plain  # type: ignore[method-assign]

    def look_for_costs(self, is_due: bool) -> None:
        """Begin or end to look for the call of a model whose step is to be traced."""
        self.is_due = is_due
        self.look()

    def met(self, module: Any, arguments: Any, keywords: Any) -> bool:
        """Look at a module that is being called; return whether it was changed."""
        is_changed = self._met(module, arguments, keywords)
        if self.is_due and self.costing.is_of(module):
            with self._busy():
                self.costing.begin(arguments, keywords)
            return True  # so that the tracer sees this call
        return is_changed

    def met_in_evaluation(self, module: Any, arguments: Any, keywords: Any) -> bool:
        """Apply a lever that holds in evaluations too to a model that is evaluated before it is trained."""
        is_inner = self.watch.depth or module in self.evaluated or _is_around(module)
        if is_inner or all(parameter not in self.due for parameter in module.parameters()):
            return False
        self.evaluated.update(dict.fromkeys(module.modules(), True))
        with self._busy():
            return bool(self.applying.apply_in_evaluation(module, arguments, keywords))

    def _met(self, module: Any, arguments: Any, keywords: Any) -> bool:
        if module in self.chosen:
            del self.chosen[module]
            self.look()
            return self._apply(module, module, arguments, keywords)
        if _is_around(module) or all(parameter not in self.due for parameter in module.parameters()):
            return False
        for parameter in module.parameters():
            self.known[parameter] = True
            self.due.pop(parameter, None)
        compiled = getattr(module, "_orig_mod", None)
        model = module if compiled is None else compiled
        is_changed = False
        if PATTERN is None or _matches(model, PATTERN):
            is_changed = self._apply(module, model, arguments, keywords)
        elif within := list(_within(model, PATTERN)):
            self.chosen.update(dict.fromkeys(within, True))
        else:
            self._tell(model, why=f"--module {PATTERN} is neither it nor one of its modules")
        self.look()
        return is_changed

    def _apply(self, module: Any, model: Any, arguments: Any, keywords: Any) -> bool:
        with self._busy():
            own = set(map(id, model.parameters()))
            groups = ((one, group["params"]) for one in self.optimizers for group in one.param_groups)
            mine = dict.fromkeys(one for one, parameters in groups if own & set(map(id, parameters)))
            change = self.costing.prepare if self.costing else partial(self.applying.apply, label=STRATEGY)
            made = change(model, arguments, keywords, is_compiled=module is not model, optimizers=tuple(mine))
        self._tell(model, **made)
        if made["why"] is None:
            self.changed.update(dict.fromkeys(model.modules(), True))
        return made["why"] is None

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Have what runs within be neither watched nor looked at."""
        self.is_busy, depth = True, self.watch.depth
        self.watch.held += 1
        try:
            yield
        finally:
            self.is_busy, self.watch.depth = False, depth
            self.watch.held -= 1

    def _tell(self, model: Any, **more: Any) -> None:
        row = {"kind": "applied", "strategy": STRATEGY, "module": name_of(model), "num_blocks": 0, "split": None}
        self.write({**row, "why": None, **more})


def model_of(part: Any, optimizer: Any) -> Any:
    """Return the smallest module that has all that the part's optimizer trains; the part itself if there is none.

    A model of which only methods are called, such as `agent.get_value(x)`, calls its parts.
    """
    own, trained = set(_ids(part)), {id(one) for group in optimizer.param_groups for one in group["params"]}
    if own.isdisjoint(trained) or trained <= own:
        return part
    around = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module) and trained <= set(_ids(one))]
    return min(around, key=lambda one: sum(1 for _ in one.modules()), default=part)


def _ids(module: Any) -> Iterator[int]:
    return map(id, () if module is None else module.parameters())


def has_optimizer(model: Any) -> bool:
    """Whether there is an optimizer that has parameters: of this model, where one is given."""
    found = [one for one in gc.get_objects() if issubclass(type(one), optimizers.Optimizer)]
    ours = None if model is None else set(_ids(model))
    groups = (group for optimizer in found for group in getattr(optimizer, "param_groups", ()))
    return any(ours is None or id(parameter) in ours for group in groups for parameter in group["params"])


def _is_around(module: Any) -> bool:
    """Whether it is a wrapper that calls the model itself: the model is met within."""
    on_one = isinstance(module, torch.nn.DataParallel) and len(module.device_ids) <= 1  # which copies no model
    return on_one or isinstance(module, torch.nn.parallel.DistributedDataParallel)


def name_of(module: Any) -> str:
    """Return the name of the class of a model, or of the one within a wrapper."""
    inner = _inner(module)
    return _name(module) if inner is None else name_of(inner)


def _name(module: Any) -> str:
    """Return the name of a module's class as it is written, not that of gcprof's or FSDP2's subclass."""
    kinds = (
        kind for kind in type(module).__mro__ if not kind.__module__.startswith(("profiler.", "torch.distributed"))
    )
    kind = next(kind for kind in kinds if not any(base.__name__ == "FSDPModule" for base in kind.__bases__))
    return (type(module) if kind is Module else kind).__name__  # FSDP1's wrapper is a class of torch.distributed


def _matches(model: Any, pattern: str) -> bool:
    """Whether a pattern is that of the module's class (`GPT`, `nanogpt.GPT`), or of its variable in the main script."""
    main = vars(sys.modules["__main__"])
    variables = [name for name, value in list(main.items()) if value is model or _inner(value) is model]
    kind = type(model)
    names = (_name(model), f"{kind.__module__}.{kind.__qualname__}", *variables)
    return any(fnmatchcase(name, pattern) for name in names)


def _inner(value: Any) -> Any:
    """Return the model in a wrapper."""
    if not isinstance(value, Module):
        return None
    parts = value._modules
    return parts.get("_orig_mod") or (parts.get("module") if _is_around(value) else None)


def _within(model: Any, pattern: str) -> Iterator[Any]:
    """Yield the outermost submodules that a pattern chooses, by their class or their dotted name."""
    taken: list[str] = []
    for name, module in model.named_modules():
        is_inner = any(name.startswith(f"{outer}.") for outer in taken)
        if name and not is_inner and (fnmatchcase(name, pattern) or _matches(module, pattern)):
            taken.append(name)
            yield module


# ---- the script's own checkpoints


class _OwnCheckpoints:
    """The script's own calls of torch.utils.checkpoint: named, and plain calls in models that a strategy changed."""

    def __init__(self, models: _Models) -> None:
        self.models = models
        self.names: dict[str, dict[str, None]] = {}  # by the class of the model

    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        function = arguments[0] if arguments else keywords.get("function")
        frame: Any = sys._getframe(1)  # the first one beside torch tells who calls
        while frame is not None and frame.f_code.co_filename.startswith((TORCH, HERE)):
            frame = frame.f_back
        is_gcprofs = frame is not None and frame.f_globals.get("__name__", "").startswith("profiler.training.")
        if function is None or is_gcprofs:  # None: a decorator is made, whose calls come here later
            return original(*arguments, **keywords)
        inner: Any = function
        given: tuple[Any, ...] = ()
        while isinstance(inner, partial):
            inner, given = inner.func, (*inner.args, *given)
        candidates = (inner, getattr(inner, "__self__", None), *given[:1])  # `partial(forward, layer)` as well
        module = next((one for one in candidates if isinstance(one, Module)), None)  # that it runs, if it can be told
        root = self.models.watch.root()
        paths = [path for path, one in root.named_modules() if one is module] if None not in (root, module) else []
        name = paths[0] if paths else getattr(function, "__qualname__", type(function).__name__)
        name = re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", lines.without_wrappers(name.removeprefix("module.")))
        kind = self.models.watch.module or "no model"
        names = self.names.setdefault(kind, {})
        if name not in names:  # in which numbers of modules are `*`
            names[name] = None
            self.models.write({"kind": "own checkpoints", "module": kind, "names": list(names)})
        is_kept = re.split("[:+]", STRATEGY)[0] in ("none", "hf") and not CHAIN_STEP
        if is_kept or (root if module is None else module) not in self.models.changed:
            return original(*arguments, **keywords)
        if INNERMOST == "_checkpoint_impl":  # (function, args, kwargs, *, options)
            return function(*arguments[1], **arguments[2])
        options = {*inspect.signature(original).parameters, "preserve_rng_state"}
        return function(*arguments[1:], **{name: given for name, given in keywords.items() if name not in options})
