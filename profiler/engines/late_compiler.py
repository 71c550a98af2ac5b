"""Defers imports that take seconds until they are used: of PyTorch's compiler, and of scipy's optimizers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
SOURCE = f"{COMPILER}.source"  # describes where the values in compiled code come from
OTHER_SOURCES = ("RandomValueSource", "CallMethodItemSource", "FloatTensorSource")  # looked up, never instantiated
CONFIGURATION = f"{COMPILER}.config"  # imports nothing else of the package
USED_LATE = {  # functions and classes that model libraries import, and seldom call, by module
    f"{COMPILER}.utils": ("is_compile_supported",),  # torchvision.ops
    f"{COMPILER}._trace_wrapped_higher_order_op": ("TransformGetItemToIndex",),  # transformers.masking_utils
    "scipy.optimize": ("linear_sum_assignment",),  # transformers.loss
}


def install() -> None:
    """Defer the import of the compiler, which takes half as long as that of torch.

    PyTorch imports it for fake tensors and for optimizer steps, to use a few functions that do nothing outside of
    compiled code. Stand-ins replace those; any other attribute imports the compiler, into the same module object. Model
    libraries import a few names more (USED_LATE), whose stand-ins import the real ones when they are called. Only for
    gcprof's own processes. Has no effect if the compiler is imported already.
    """
    if COMPILER in sys.modules:
        return
    spec = find_spec(COMPILER)
    assert spec is not None
    compiler, source = module_from_spec(spec), ModuleType(SOURCE)
    vars(compiler).update(disable=_disable, graph_break=_graph_break, source=source)
    vars(source).update(dict.fromkeys(OTHER_SOURCES, _OtherSource), ConstantSource=_Source)
    compiler.__class__ = source.__class__ = LateModule
    sys.modules |= {COMPILER: compiler, SOURCE: source}
    setattr(sys.modules["torch"], "_dynamo", compiler)  # noqa: B010  the import sets it, too
    sys.meta_path.insert(0, _Late())


def is_late() -> bool:
    """Whether the import of the compiler is deferred and has not happened yet."""
    return type(sys.modules.get(COMPILER)) is LateModule


def import_now() -> None:
    """Replace the stand-ins by the compiler, imported into the same module object."""
    compiler = sys.modules[COMPILER]
    for name in ("disable", "graph_break", "source"):
        del vars(compiler)[name]
    del sys.modules[SOURCE]
    stand_ins = {name: sys.modules.pop(name) for name in USED_LATE if name.startswith(COMPILER) and _is_stand_in(name)}
    compiler.__class__ = ModuleType
    assert compiler.__spec__ is not None
    assert compiler.__spec__.loader is not None
    compiler.__spec__.loader.exec_module(compiler)
    for name, stand_in in stand_ins.items():
        _replace(name, stand_in)


def _import(name: str) -> ModuleType:
    """Import a module instead of its stand-in, if it has one."""
    if name.startswith(COMPILER):
        if is_late():
            import_now()
    elif _is_stand_in(name):
        _replace(name, sys.modules.pop(name))
    return import_module(name)


def _is_stand_in(name: str) -> bool:
    return type(sys.modules.get(name)) is LateModule


def _replace(name: str, stand_in: ModuleType) -> None:
    """Give the real functions and classes to all modules that have imported those of a stand-in."""
    _real.add(name)
    real = import_module(name)
    for holder in list(sys.modules.values()):
        names = getattr(holder, "__dict__", {})
        for late in USED_LATE[name]:
            if names.get(late) is vars(stand_in)[late]:
                names[late] = getattr(real, late)


_real: set[str] = set()  # modules of USED_LATE that were needed


class LateModule(ModuleType):
    """Stands in for a module until an attribute is used that it does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if is_late() and f"{self.__name__}.{name}" == CONFIGURATION:
            return import_module(CONFIGURATION)  # torch.utils.checkpoint reads it at every call since torch 2.15
        return getattr(_import(self.__name__), name)


class _Late(MetaPathFinder):
    """Import finder of the stand-ins: imports what one stands in for before any submodule of it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = name.rpartition(".")[0]
        if name in USED_LATE and name not in _real and (is_late() or not name.startswith(COMPILER)):
            return ModuleSpec(name, _StandIns(), is_package=True)
        if name == CONFIGURATION or not (_is_stand_in(package) or (name.startswith(f"{COMPILER}.") and is_late())):
            return None
        real = _import(package)
        return (
            ModuleSpec(name, _Imported(sys.modules[name]))
            if name in sys.modules
            else PathFinder.find_spec(name, real.__path__)
        )


class _StandIns(Loader):
    """Loader of a stand-in for a module of USED_LATE."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return LateModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({name: partial(_call, module.__name__, name) for name in USED_LATE[module.__name__]})


def _call(module: str, name: str, /, *arguments: Any, **named: Any) -> Any:
    """Call the real function, or make an instance of the real class."""
    return getattr(_import(module), name)(*arguments, **named)


class _Imported(Loader):
    """Loader that returns a module that was imported with its package."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Source:
    """Stand-in for ConstantSource: holds a name, and is never read as long as there are no symbolic shapes."""

    def __init__(self, source_name: str) -> None:
        self.source_name = source_name


class _OtherSource:
    """Stand-in for source types of which no instance exists before the compiler makes one."""


def _disable(fn: Callable[..., Any] | None = None, recursive: bool = True, **keywords: Any) -> Any:
    """Stand-in for torch._dynamo.disable: calls the function itself until the compiler is imported."""
    compiler: Any = sys.modules[COMPILER]
    if fn is None or not recursive:
        import_now()
        return compiler.disable(fn, recursive, **keywords)
    disabled: list[Callable[..., Any]] = []

    @wraps(fn)
    def call(*arguments: Any, **named: Any) -> Any:
        if is_late():
            return fn(*arguments, **named)
        if not disabled:
            disabled.append(compiler.disable(fn, recursive, **keywords))
        return disabled[0](*arguments, **named)

    return call


def _graph_break(msg: str = "") -> None:
    """Stand-in for torch._dynamo.graph_break, which does nothing outside of compiled code."""
