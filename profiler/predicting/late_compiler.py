"""PyTorch's compiler, imported where something of it is used: a process that only traces steps needs none of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
SOURCE = f"{COMPILER}.source"  # in compiled code, where values come from
OTHER_SOURCES = ("RandomValueSource", "CallMethodItemSource", "FloatTensorSource")  # that are looked up, and not made
CONFIGURATION = f"{COMPILER}.config"  # imports nothing else of the package
KERNELS = "triton.runtime.jit"


def install() -> None:
    """Put off the import of the compiler, which takes half as long as that of torch.

    PyTorch imports it wherever tensors are fake and wherever an optimizer steps, for a few things that do nothing
    outside of compiled code. Those are stood in for. Whatever else is asked of it imports it, into the same module
    object. Only for processes of gcprof's own. Without effect where it is imported already.
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
    setattr(sys.modules["torch"], "_dynamo", compiler)  # noqa: B010  as the import does
    sys.meta_path.insert(0, _Submodules())


def flop_formulas() -> Any:
    """PyTorch's formulas of FLOPs, by operator; their module is imported without triton where that is not there yet.

    Of triton it asks only for the type of the kernels that users write, and importing that takes 0.1 s.
    """
    is_late = KERNELS not in sys.modules and find_spec("triton") is not None
    if is_late:
        kernels = sys.modules[KERNELS] = ModuleType(KERNELS)
        vars(kernels).update(JITFunction=_LateKernel("JITFunction", (), {}))
    try:
        return import_module("torch.utils.flop_counter").flop_registry
    finally:
        if is_late:
            del sys.modules[KERNELS]


class _LateKernel(type):
    """The type of triton's kernels, wherever triton has been imported; else of nothing."""

    def __instancecheck__(cls, value: object) -> bool:
        real = getattr(sys.modules.get(KERNELS), "JITFunction", cls)
        return real is not cls and isinstance(value, real)


def is_late() -> bool:
    """Whether the compiler is still to be imported."""
    return type(sys.modules.get(COMPILER)) is LateModule


def import_now() -> None:
    """Import the compiler in place of its stand-ins."""
    compiler = sys.modules[COMPILER]
    for name in ("disable", "graph_break", "source"):
        del vars(compiler)[name]
    del sys.modules[SOURCE]
    compiler.__class__ = ModuleType
    assert compiler.__spec__ is not None
    assert compiler.__spec__.loader is not None
    compiler.__spec__.loader.exec_module(compiler)


class LateModule(ModuleType):
    """The compiler, or its module of sources, as long as nothing but its stand-ins is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if is_late():
            import_now()
        return getattr(import_module(self.__name__), name)


class _Submodules(MetaPathFinder):
    """Imports the compiler before any module of it but its configuration."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == CONFIGURATION or not name.startswith(f"{COMPILER}.") or not is_late():
            return None
        import_now()
        return ModuleSpec(name, _Imported(sys.modules[name])) if name in sys.modules else None


class _Imported(Loader):
    """Gives a module that came with its package."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Source:
    """A ConstantSource: made of a name, and given to nobody as long as there are no symbolic shapes."""

    def __init__(self, source_name: str) -> None:
        self.source_name = source_name


class _OtherSource:
    """A kind of source that no value has before the compiler makes one."""


def _disable(fn: Callable[..., Any] | None = None, recursive: bool = True, **keywords: Any) -> Any:
    """torch._dynamo.disable: the function itself as long as there is no compiler that could look into it."""
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
    """torch._dynamo.graph_break, which does nothing outside of compiled code."""
