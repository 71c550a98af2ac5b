"""Finds a model's blocks in its structure.

A block is what checkpointing works on: a layer of a transformer, a bottleneck of a ResNet, a module of a Sequential.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase

from torch import nn

from profiler.core.errors import Unsupported
from profiler.training.checkpointing.routed_block import own_class
from profiler.training.workload import num_parameters

LEAST = 2  # a list of fewer children is no stack
SHARE = 0.2  # of the parameters of all lists: a shorter one with less is no second stack
MANY = 3  # modules of one class that hold Sequentials are blocks, and their Sequentials branches within
OF_PARAMETERS = (nn.ParameterList, nn.ParameterDict)  # which never run
HEADS = {"classifier", "head", "heads", "fc"}  # what follows the trunk, and seldom takes its output as it is

Named = tuple[str, nn.Module]


def find_blocks(module: nn.Module, pattern: str | None = None) -> tuple[str, ...]:
    """The names of a module's blocks, in the order of its structure.

    The ModuleLists of like children where there are any (several stacks: encoder and decoder), else what the outermost
    Sequentials hold, flattened, without heads and stems; else the children. `pattern` chooses by name instead,
    `model.layers.*`; a `*` does not go past a dot, and several with commas between are taken in their order,
    `enc1,enc2,mid`. Raises Unsupported where nothing matches one, and for a block within another. A module without
    children has no blocks.
    """
    if pattern is not None:
        return tuple(_named(module, pattern))
    return tuple(_stacks(module) or _flattened(module) or _children(module))


def _named(module: nn.Module, patterns: str) -> list[str]:
    """What patterns with commas between match, each name once; a comma in brackets is one of the characters there."""
    names: dict[str, None] = {}
    for pattern in re.split(r",(?![^\[]*\])", patterns):
        matching = _matching(module, pattern)
        if not matching:
            raise Unsupported(f"no blocks match '{pattern}'{_instead(module)}")
        names |= dict.fromkeys(matching)
    for name in names:
        if outer := next((other for other in names if name.startswith(f"{other}.")), None):
            raise Unsupported(f"block '{name}' is within block '{outer}': name one of them")
    return list(names)


def _instead(module: nn.Module) -> str:
    """The blocks that are found where none are named, the first and the last."""
    found = find_blocks(module)
    return f"; where none are named they are {' to '.join(dict.fromkeys((found[0], found[-1])))}" if found else ""


def offered_blocks(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """The blocks that a module could be cut into, coarse and fine, by their pattern; those that are found have none.

    Modules at places that differ by numbers alone go together (`layers.*.attention`), and so do all children of such
    modules (`layers.*.*`). Single operators of torch.nn are offered with their siblings alone.
    """
    modules = {name: child for name, child in module.named_modules() if name and _is_called(child)}
    alike = {re.sub(r"\d+", "*", name): None for name, child in modules.items() if not _is_operator(child)}
    siblings = {f"{pattern}.*": None for pattern in alike}
    patterns = sorted((*alike, *siblings, "*"), key=lambda pattern: (pattern.count("."), pattern))
    offered: dict[tuple[str, ...], str] = {find_blocks(module): ""}
    for pattern in patterns:
        names = tuple(_matching(module, pattern))
        if names and all(name in modules for name in names):
            offered.setdefault(names, pattern)
    return {pattern: names for names, pattern in offered.items() if names}


def _is_called(module: nn.Module) -> bool:
    """Whether it has a forward, as lists and dicts of modules have not."""
    return type(module).forward is not nn.Module.forward


def _is_operator(module: nn.Module) -> bool:
    """Whether it is a single module of PyTorch, such as Linear, which saves little besides its input."""
    return type(module).__module__.startswith("torch.nn") and next(module.children(), None) is None


def refuse_none(blocks: tuple[str, ...]) -> None:
    """Raises Unsupported where there are no blocks, for what works on them."""
    if not blocks:
        raise Unsupported(
            "no blocks were found; name them with --blocks, or mark the function that the forward calls in a loop with"
            " profiler.block"
        )


def _matching(module: nn.Module, pattern: str) -> list[str]:
    """Returns the names of which every part matches the pattern's part."""
    parts = pattern.split(".")
    names = [name for name, _ in module.named_modules() if name]
    return [
        name
        for name in names
        if name.count(".") == len(parts) - 1
        and all(fnmatchcase(part, pattern_part) for part, pattern_part in zip(name.split("."), parts, strict=True))
    ]


def _stacks(module: nn.Module) -> list[str]:
    """The children of all outermost lists of like children; of those in a list, none, since they are inside a block."""
    lists = [
        (name, child)
        for name, child in _outermost(module, nn.ModuleList)
        if len(list(child.children())) >= LEAST and len({type(block) for block in child.children()}) == 1
    ]
    longest = max((len(list(child.children())) for _, child in lists), default=0)
    whole = sum(num_parameters(child) for _, child in lists)
    chosen = [
        (name, child)
        for name, child in lists
        if num_parameters(child) and (len(list(child.children())) == longest or num_parameters(child) >= SHARE * whole)
    ]
    chosen_size = sum(num_parameters(child) for _, child in chosen)
    if chosen_size < _size_of_sequentials(module):  # the lists are beside the trunk
        return []
    return [f"{name}.{key}" for name, child in chosen for key, _ in child.named_children()]


def _size_of_sequentials(module: nn.Module) -> int:
    """Returns the parameters of Sequentials that are in no ModuleList."""
    if isinstance(module, nn.ModuleList):
        return 0
    if isinstance(module, nn.Sequential):
        return num_parameters(module)
    return sum(_size_of_sequentials(child) for child in module.children())


def _flattened(module: nn.Module) -> list[str]:
    """What the outermost Sequentials hold, Sequentials within them opened.

    Those within modules of a class that is there several times are branches of blocks, not the trunk. Where some hold
    blocks, those that hold single operators alone are stem and head; else heads go by their name.
    """
    outermost = list(_outermost(module, nn.Sequential))
    parents = {name: module.get_submodule(name.rpartition(".")[0]) for name, _ in outermost}
    kinds = Counter(type(parent) for parent in dict.fromkeys(parents.values()))
    sequentials = [(name, child) for name, child in outermost if kinds[type(parents[name])] < MANY]
    blocks = [(name, child) for name, child in sequentials if _is_composite(child)]
    trunk = [(name, child) for name, child in sequentials if name.rpartition(".")[2] not in HEADS]
    return [block for name, child in blocks or trunk or sequentials for block in _open(name, child)]


def _open(name: str, module: nn.Module) -> Iterator[str]:
    """The module's own children where it only strings them together, else itself.

    A subclass of Sequential that holds single operators alone (convolution, norm, activation) is one block.
    """
    kind = own_class(module)
    is_sequential = issubclass(kind, nn.Sequential) and kind.forward is nn.Sequential.forward
    if is_sequential and (kind is nn.Sequential or not name or _is_composite(module)):
        for key, child in module.named_children():
            yield from _open(f"{name}.{key}" if name else key, child)
    else:
        yield name


def _children(module: nn.Module) -> list[str]:
    """The children without auxiliary classifiers and without the head: what follows the last one with parameters."""
    children = [
        (name, child)
        for name, child in module.named_children()
        if name not in HEADS and not name.lower().startswith("aux") and not isinstance(child, OF_PARAMETERS)
    ]
    while children and not num_parameters(children[-1][1]):
        children.pop()
    return [name for name, _ in children]


def _outermost(module: nn.Module, kind: type[nn.Module], prefix: str = "") -> Iterator[Named]:
    """All modules of a kind that are in no other of that kind, with their names."""
    if isinstance(module, kind):
        yield prefix, module
        return
    for name, child in module.named_children():
        yield from _outermost(child, kind, f"{prefix}.{name}" if prefix else name)


def _is_composite(module: nn.Module) -> bool:
    """Whether it holds modules that hold modules."""
    return any(next(child.children(), None) is not None for child in module.children())
