"""Finds a model's blocks in its structure, and redirects their calls.

A block is what checkpointing works on: a layer of a transformer, a bottleneck of a ResNet, a module of a Sequential.
The class of a routed block becomes a subclass whose __call__ is outside of the block's hooks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import wraps
from types import MethodType
from typing import Any

from torch import nn

from profiler.core.errors import Unsupported
from profiler.training.workload import num_parameters

LEAST = 2  # children: a shorter list is no stack
SHARE = 0.2  # of the parameters of all lists: one that is shorter than the longest and has less is no second stack
MANY = 3  # of so many modules of one class that hold Sequentials, each is a block and its Sequentials are branches
OF_PARAMETERS = (nn.ParameterList, nn.ParameterDict)  # containers, which never run
HEADS = {"classifier", "head", "heads", "fc"}  # names of what follows the trunk; heads seldom take its output unchanged


def find_blocks(module: nn.Module, pattern: str | None = None) -> tuple[str, ...]:
    """Return the names of a module's blocks, in the order of its structure.

    These are the children of the ModuleLists whose children are of one class (encoder and decoder may be two stacks),
    of all ModuleLists where the others hold more, and of ModuleDicts whose keys differ only in numbers; else what the
    outermost Sequentials hold, flattened, without heads and stems; else the module's children. `pattern` selects by
    name instead, as in `model.layers.*`: a `*` does not match a dot, and several patterns, `enc1,enc2,mid`, are taken
    in their order; those alike up to a `*`, as `h.*.attn,h.*.mlp`, together in that of the structure. Raises
    Unsupported if a pattern matches nothing, or a block is within another. A module without children has no blocks.
    """
    if pattern is None:
        return tuple(_stacks(module) or _flattened(module) or _children(module))
    names: dict[str, str] = {}
    for one in re.split(r",(?![^\[]*\])", pattern):  # a comma inside brackets does not separate
        matching = _matching(module, one)
        if not matching:
            found = find_blocks(module)
            ends = " to ".join(dict.fromkeys((found[0], found[-1]))) if found else ""
            instead = f"; where none are named they are {ends}" if found else ""
            raise Unsupported(f"no blocks match '{one}'{instead}")
        names |= dict.fromkeys(matching, one.partition("*")[0] if "*" in one else one)
    groups, structure = list(dict.fromkeys(names.values())), [name for name, _ in module.named_modules()]
    names = dict(sorted(names.items(), key=lambda item: (groups.index(item[1]), structure.index(item[0]))))
    for name in names:
        if outer := next((other for other in names if name.startswith(f"{other}.")), None):
            raise Unsupported(f"block '{name}' is within block '{outer}': name one of them")
    return tuple(names)


def offered_blocks(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the sets of blocks that a module could be cut into, by pattern, coarse first; the default set has none.

    Modules whose names differ only in numbers form one set (`layers.*.attention`), and so do all children of such
    modules (`layers.*.*`). Single operators of torch.nn are offered only together with their siblings.
    """
    modules = {name: child for name, child in module.named_modules() if name and _is_called(child)}
    operators = {  # single modules of PyTorch's, such as Linear, which save little besides their input
        name
        for name, child in modules.items()
        if type(child).__module__.startswith("torch.nn") and next(child.children(), None) is None
    }
    alike = {re.sub(r"\d+", "*", name): None for name in modules if name not in operators}
    siblings = {f"{pattern}.*": None for pattern in alike}
    patterns = sorted((*alike, *siblings, "*"), key=lambda pattern: (pattern.count("."), pattern))
    offered: dict[tuple[str, ...], str] = {find_blocks(module): ""}
    for pattern in patterns:
        names = tuple(_matching(module, pattern))
        if names and all(name in modules for name in names):
            offered.setdefault(names, pattern)
    return {pattern: names for names, pattern in offered.items() if names}


def refuse_none(blocks: tuple[str, ...]) -> None:
    """Raise Unsupported if there are no blocks."""
    if not blocks:
        how = "name them with --blocks, or mark the function that the forward calls in a loop with gcprof.block"
        raise Unsupported(f"no blocks were found; {how}")


def _matching(module: nn.Module, pattern: str) -> list[str]:
    """Return the names whose dotted parts each match the part of the pattern."""
    parts = pattern.split(".")
    names = [name for name, _ in module.named_modules() if name and name.count(".") == len(parts) - 1]
    return [name for name in names if all(map(fnmatchcase, name.split("."), parts))]


def _stacks(module: nn.Module) -> list[str]:
    """Return the children of the outermost lists of like children; lists inside these are parts of a block."""
    several = [(name, child) for name, child in outermost(module, _is_list) if len(list(child.children())) >= LEAST]
    lists = [(name, child) for name, child in several if len({_forward(block) for block in child.children()}) == 1]
    whole, of_several = (sum(num_parameters(child) for _, child in some) for some in (lists, several))
    if 0 < 2 * whole < of_several:  # as in a UNet with attention in some of its levels: its middle is a list, too
        lists, whole = several, of_several
    longest = max((len(list(child.children())) for _, child in lists), default=0)
    chosen = [
        (name, child)
        for name, child in lists
        if num_parameters(child) and (len(list(child.children())) == longest or num_parameters(child) >= SHARE * whole)
    ]
    chosen_size = sum(num_parameters(child) for _, child in chosen)
    rest = outermost(module, lambda part: _is_list(part) or isinstance(part, nn.Sequential))
    in_sequentials = sum(num_parameters(part) for _, part in rest if isinstance(part, nn.Sequential))
    if chosen_size < in_sequentials:  # the lists are not the trunk
        return []
    blocks = [(f"{name}.{key}", block) for name, child in chosen for key, block in child.named_children()]
    return [part for name, block in blocks for part in _opened(name, block)]


def _is_list(module: nn.Module) -> bool:
    """Whether it is a ModuleList, or a ModuleDict that is used as one: its keys differ only in numbers."""
    if not isinstance(module, nn.ModuleDict) or _is_called(module):
        return isinstance(module, nn.ModuleList)
    return len(module) >= LEAST and len({re.sub(r"\d+", "*", name) for name in module}) == 1


def _flattened(module: nn.Module) -> list[str]:
    """Return what the outermost Sequentials hold, with Sequentials inside them flattened.

    Sequentials inside modules of a class that occurs several times (MANY) are branches of blocks, not the trunk. If
    some hold composite modules, those that hold only single operators are stem and head; else heads are known by name.
    """
    every = list(outermost(module, lambda part: isinstance(part, nn.Sequential)))
    parents = {name: module.get_submodule(name.rpartition(".")[0]) for name, _ in every}
    kinds = Counter(type(parent) for parent in dict.fromkeys(parents.values()))
    sequentials = [(name, child) for name, child in every if kinds[type(parents[name])] < MANY]
    blocks = [(name, child) for name, child in sequentials if _is_composite(child)]
    trunk = [(name, child) for name, child in sequentials if name.rpartition(".")[2] not in HEADS]
    return [block for name, child in blocks or trunk or sequentials for block in _open(name, child)]


def _open(name: str, module: nn.Module) -> Iterator[str]:
    """Yield the module's children, recursively, if it only runs them in sequence; else the module itself."""
    kind = own_class(module)
    is_sequential = issubclass(kind, nn.Sequential) and kind.forward is nn.Sequential.forward
    # a subclass that holds only single operators (convolution, norm, activation) is one block
    if is_sequential and (kind is nn.Sequential or not name or _is_composite(module)):
        for key, child in module.named_children():
            yield from _open(f"{name}.{key}" if name else key, child)
    else:
        yield name


def _children(module: nn.Module) -> list[str]:
    """Return the children without heads, auxiliary classifiers and anything after the last one with parameters."""
    children = [
        (name, child)
        for name, child in module.named_children()
        if name not in HEADS and not name.lower().startswith("aux") and not isinstance(child, OF_PARAMETERS)
    ]
    while children and not num_parameters(children[-1][1]):
        children.pop()
    return [part for name, child in children for part in _opened(name, child)]


def _opened(name: str, module: nn.Module) -> list[str]:
    """Return the module's name; of a container that is never called those of its children."""
    return [name] if _is_called(module) else [f"{name}.{inner}" for inner in _children(module)]


def outermost(
    module: nn.Module, is_one: Callable[[nn.Module], bool], prefix: str = ""
) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules that are one and inside no other that is, with their names."""
    if is_one(module):
        yield prefix, module
        return
    for name, child in module.named_children():
        yield from outermost(child, is_one, f"{prefix}.{name}" if prefix else name)


def _is_called(module: nn.Module) -> bool:
    """Whether a module has a forward: ModuleList and ModuleDict have none."""
    return _forward(module) is not nn.Module.forward


def _forward(module: nn.Module) -> Any:
    return getattr(type(module), "forward", None)  # a scripted module's cannot be read


def _is_composite(module: nn.Module) -> bool:
    """Whether a module holds modules that hold modules."""
    return any(next(child.children(), None) is not None for child in module.children())


class Route:
    """Receiver of the calls of a block. While `inside` is true, the block runs its own forward."""

    inside = False

    def called(self, block: nn.Module, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        """Return what a call of the block returns; `own` is the block, or its `forward` if that was called directly."""
        return self.run(own, arguments, keywords)

    def run(self, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        """Run the block itself; where its `forward` was called directly, past its hooks."""
        before, self.inside = self.inside, True
        try:
            return own(*arguments, **keywords)
        finally:
            self.inside = before


class RoutedBlock(nn.Module):
    """Base of the classes of routed blocks.

    Its __call__ is outside of the block's hooks, as `checkpoint(block, x)` is: they run when the block itself runs, in
    the forward and in the recompute, not when the module's forward calls it.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Skip the block's own __init_subclass__, which may register its subclasses."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        to = self.__dict__.get("_route")  # None in instances that Python makes of this class: slices of a Sequential
        if to is None or to.inside:
            return super().__call__(*arguments, **keywords)
        return to.called(self, self, arguments, keywords)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as an instance of the block's own class, since pickle cannot find this one by name."""
        reduced: Any = super().__reduce_ex__(protocol)
        function, arguments, *state = reduced
        own = tuple(_own(argument) if argument is type(self) else argument for argument in arguments)
        return _rebuilt, (function, own), *state


def route(block: nn.Module, to: Route) -> None:
    """Change the block's class so that its calls go to the route.

    Parameters, names, `repr`, `isinstance` and signatures stay as they are. Nothing is a closure over the block, so
    that a deep copy of the module runs the copied blocks.
    """
    block.__dict__["_route"] = to
    if not isinstance(block, RoutedBlock):  # several names may refer to one block
        block.__class__ = _routed(type(block))


def unroute(block: nn.Module) -> None:
    """Give the block its own class back, unless FSDP2 or a parametrization made another class of the routed one."""
    block.__dict__.pop("_route", None)  # without it a routed class does as the block's own
    if RoutedBlock in type(block).__bases__:
        block.__class__ = _own(type(block))


def _routed(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the routed subclass of a class, the same for all its blocks, so that compiled code is reused."""
    bases = (RoutedBlock, kind)
    there = next((subclass for subclass in type.__subclasses__(kind) if subclass.__bases__ == bases), None)
    if there is not None:
        return there

    @wraps(kind.forward)
    def forward(self: nn.Module, *arguments: Any, **keywords: Any) -> Any:  # for models that call it directly
        to, own = self.__dict__.get("_route"), MethodType(kind.forward, self)
        if to is None or to.inside:
            return own(*arguments, **keywords)
        return to.called(self, own, arguments, keywords)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    make: Any = type(kind)
    subclass: type[nn.Module] = make(kind.__name__, bases, {**names, "forward": forward})
    return subclass


def own_class(module: nn.Module) -> type[nn.Module]:
    """Return the class that a module had before it was routed."""
    return _own(type(module))


def _own(kind: type) -> type[nn.Module]:
    return next(base for base in kind.__mro__ if not issubclass(base, RoutedBlock) and issubclass(base, nn.Module))


def _rebuilt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    block = function(*arguments)
    block.__class__ = _routed(type(block))
    return block
