"""Finds what tables name without importing it: entries, their options, and what they are about, from source code.

A room's table maps a name to "package.module:function". Everything else is read from that function's source: its
keyword-only parameters are the options, their annotations the kinds, its docstring's first line is the "about". So a
new model or strategy is one file and one line, and listing them never imports torch.

A function whose first parameter is `name` is a family: `torchvision:resnet18` calls torchvision's with name="resnet18".
The family `*` takes a name that is in no table but looks like code: `path/to/file.py:factory`,
`package.module:factory`; its options are the parameters of that function, which is the user's.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import msgspec

from profiler.core.case import Choice, as_word
from profiler.core.errors import UserError, nearest, nearest_or_all

Count = int  # annotation of an option that is a whole number from 1
KINDS = {
    "Count": "a whole number from 1 to 2147483647",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
    "value": "a value",
}
PLAIN = ("Count", "int", "float", "bool")  # kinds whose values are not words
FAMILY, USERS = "name", "*"
CODE = re.compile(r"(?:.*\.py|[A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_]\w*")
MOST_HOPS = 4  # aliases followed from a name to its function
KEYS = {"module", "batch"}  # required in a dict that a factory returns
SCRIPT = "main"  # the usual name of a function that does all the work, which a hint must not lead to
PARTS = range(2, 5)  # lengths of a tuple (module, batch[, loss[, optimizer]])


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option of a choice. `default` is None if the option is required."""

    name: str
    kind: str
    default: str | None = None
    words: tuple[str, ...] = ()  # the values that a Literal allows


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a table, with what is read from its function's source."""

    name: str
    target: str
    about: str
    parameters: dict[str, str | None]  # parameters that the room itself passes, with their defaults
    options: tuple[Option, ...]
    open: bool = False  # whether it also takes options of any name (`**`)
    member: str | None = None  # the name after the family's


def entries(table: Mapping[str, str], *, hidden: bool = False) -> list[Entry]:
    """Return all entries of a table in order, families as `family:NAME`; names that begin with `_` only if `hidden`."""
    listed = [(name, _entry(name, table[name])) for name in table if hidden or not name.startswith("_")]
    shown = {name: f"{name}:NAME" if FAMILY in entry.parameters else name for name, entry in listed}
    shown[USERS] = "path/to/file.py:FACTORY"
    return [msgspec.structs.replace(entry, name=shown[name]) for name, entry in listed]


def read(name: str, table: Mapping[str, str], *, what: str = "name") -> Entry:
    """Return the entry of a name. Raises UserError, with the nearest names, if there is none."""
    if entry := listed(name, table):
        return entry
    family, colon, member = name.partition(":")
    families = [known for known in table if member and FAMILY in _entry(known, table[known]).parameters]
    meant = nearest(family, families, after=f":{member}")
    if USERS in table and name.endswith(".py"):
        made = ", ".join(f"{name}:{maker}" for maker in _factories(_tree(f"{name}:")[1]))
        hint = f"name it: {made}" if made else made_by("module", name)
        raise UserError(f"which function of '{name}' makes the model?", hint=hint)
    entry = listed(family, table) if colon else None
    if is_code(name, table) and not ((meant or entry) and family.isidentifier() and _first_spec(family) is None):
        return _entry(name, name, adapter=table[USERS])
    if entry:
        keys = [option.name for option in entry.options]
        form = f"{family}:{keys[0]}=..., its keys are {', '.join(keys)}" if keys else f"'{family}' takes no options"
        raise UserError(f"'{name}' has an option that is not written as key=value", hint=form)
    names = [entry.name for entry in entries(table)]
    raise UserError(f"no {what} is called '{name}'", hint=meant or nearest_or_all(name, names))


def listed(name: str, table: Mapping[str, str]) -> Entry | None:
    """Return the entry of a name in the table, or of a member of a family in it; None for other names, and for `*`."""
    family, colon, member = name.partition(":")
    if family == USERS or family not in table:
        return None
    entry = _entry(family, table[family])
    if FAMILY not in entry.parameters:
        return None if colon else entry
    return msgspec.structs.replace(entry, name=name, member=member) if member else None


def is_code(name: str, table: Mapping[str, str]) -> bool:
    """Whether a name has the form of a user's function and is not in the table; reads no user file, imports nothing."""
    return USERS in table and not listed(name, table) and CODE.fullmatch(name) is not None


def resolve(choice: Choice, table: Mapping[str, str], *, what: str = "name") -> Choice:
    """Return the choice in canonical form: options checked, in declared order, defaults left out.

    Raises UserError for an unknown name or option, a value of the wrong kind, or a missing option.
    """
    entry = read(choice.name, table, what=what)
    given = choice.options
    declared = {option.name: option for option in entry.options}
    for key in given:
        if key not in declared and not entry.open:
            around = {"before": f"{choice.name}:", "after": f"={given[key]}"}
            hint = nearest_or_all(key, declared, **around) if declared else f"'{choice.name}' takes no options"
            if key == "batch_size":
                hint = f"--batch-size {given[key]}"
            raise UserError(f"'{choice}': {what} '{choice.name}' has no option '{key}'", hint=hint)
    for option in entry.options:
        if option.default is None and option.name not in given:
            kind = KINDS.get(option.kind, option.kind)
            message = f"'{choice}' needs {option.name}"
            raise UserError(message, hint=f"write {choice.name}:{option.name}=... with {kind}")
    values = _values(choice, declared)
    ordered = [*(key for key in declared if key in given), *sorted(given.keys() - declared.keys())]
    canonical = {key: as_word(values[key]) for key in ordered}
    kept = {key: text for key, text in canonical.items() if key not in declared or text != declared[key].default}
    return Choice.of(choice.name, kept)


def load(choice: Choice, table: Mapping[str, str]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Import the function of a choice; return it, and the options as keyword arguments of the right type."""
    entry = read(choice.name, table)
    module, _, attribute = entry.target.partition(":")
    keywords = _values(choice, {option.name: option for option in entry.options})
    function = getattr(importlib.import_module(module), attribute)
    if entry.member is None:
        return function, keywords
    if FAMILY in entry.parameters:
        return function, keywords | {FAMILY: entry.member}
    return partial(function, entry.member), keywords  # positional: the user's options may have any name


def _entry(name: str, target: str, *, adapter: str | None = None) -> Entry:
    """Return the entry of a function: of ours, keyword-only parameters are the options; `adapter` calls a user's.

    Of a user's function all parameters but batch_size are options.
    """
    function = read_function(target)
    every = _arguments(function)
    keywords = {argument.arg for argument in function.args.kwonlyargs}
    own = [key for key in every if (key == "batch_size" if adapter else key not in keywords)]
    options = []
    for key in (key for key in every if key not in own):
        annotation, default = every[key][0].annotation, _text(every[key][1])
        if isinstance(annotation, ast.Subscript) and not adapter:  # Literal["torch", "balanced"]
            words = tuple(str(word) for word in ast.literal_eval(annotation.slice))
            options.append(Option(name=key, kind=" or ".join(words), default=default, words=words))
            continue
        kind = ast.unparse(annotation) if annotation else ""
        assert adapter or kind in KINDS, f"option {key} is annotated '{kind}': take one of {', '.join(KINDS)}"
        options.append(Option(name=key, kind=kind if kind in KINDS else "value", default=default))
    return Entry(
        name=name,
        target=adapter or target,
        about=(ast.get_docstring(function) or "").partition("\n")[0],
        parameters={key: _text(every[key][1]) for key in own},
        options=tuple(options),
        open=function.args.kwarg is not None,
        member=name if adapter else None,
    )


def _text(default: ast.expr | None) -> str | None:
    """Return a default as users would write it, or as source code if it is not a literal; None if there is none."""
    if default is None:
        return None
    try:
        value = ast.literal_eval(default)
    except ValueError:
        return ast.unparse(default)
    return as_word(value)


def _values(choice: Choice, declared: Mapping[str, Option]) -> dict[str, Any]:
    """Return the options of a choice, converted to their kinds; undeclared ones as literals. Raises UserError."""
    values = {}
    for key, text in choice.options.items():
        option = declared.get(key) or Option(name=key, kind="value")
        kind = KINDS.get(option.kind, option.kind)
        try:
            values[key] = value = READ.get(option.kind, str)(text)
            is_allowed = not option.words or value in option.words
            if option.kind == "Count":
                is_allowed = 1 <= value < 2**31
            elif option.kind == "float":
                is_allowed = math.isfinite(value)
        except (ValueError, KeyError):
            is_allowed = False
        if not is_allowed:
            raise UserError(f"'{choice}': {key}={text} is not {kind}", hint=f"{key} is {kind}")
    return values


def literal(text: str) -> Any:
    """Return the text as a boolean (`true`, `false`) or a Python literal; the text itself if it is neither."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


READ: dict[str, Callable[[str], Any]] = {
    "Count": int,
    "int": int,
    "float": float,
    "bool": {"true": True, "false": False}.__getitem__,
    "value": literal,
}


def _first_spec(name: str) -> ModuleSpec | None:
    """Return a top-level module's spec; the current folder comes first, as where the module is imported."""
    here = PathFinder.find_spec(name, [str(Path.cwd())])
    with suppress(ValueError):  # of `__main__`
        return here if here and here.origin else importlib.util.find_spec(name)
    return None


@cache
def read_function(target: str, hops: int = MOST_HOPS) -> ast.FunctionDef:
    """Return the syntax tree of "package.module:function" or "path/to/file.py:function". Raises UserError if none."""
    name, _, attribute = target.rpartition(":")
    path, tree = _tree(target)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if attribute in functions:
        return functions[attribute]
    if hops and (elsewhere := _bound_to(attribute, tree, path)):
        return read_function(elsewhere, hops - 1)
    if any(isinstance(node, ast.ClassDef) and node.name == attribute for node in tree.body):
        made = ", ".join(f"{name}:{maker}" for maker in _factories(tree, complete=True))
        hint = f"name the function that makes it with its batch: {made}" if made else made_by(f"{attribute}(...)", path)
        raise UserError(f"'{attribute}' in '{path}' is a class", hint=hint)
    makers = _factories(tree)
    raise UserError(
        f"'{path}' has no function '{attribute}'",
        hint=nearest_or_all(attribute, makers) if makers else made_by("module", path),
    )


def made_by(module: str, path: str | Path) -> str:
    """Return what to do with a file without a function that makes a model."""
    here = Path(path).resolve()
    path = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else path
    wanted = f"write a function that returns ({module}, batch[, loss])"
    return f"gcprof rehearse -- python {path} runs it as it is; or {wanted}"


def classes(module: str) -> list[str]:
    """Return the capitalized names of what a module defines as classes or imports by name, sorted."""
    tree = _tree(f"{module}:")[1]
    imported = (name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names)
    defined = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return sorted(name for name in {*(name.asname or name.name for name in imported), *defined} if name[:1].isupper())


_parsed = cache(ast.parse)  # of a file's bytes: a dozen strategies are functions of one file


def _tree(target: str) -> tuple[Path, ast.Module]:
    """Return the path and syntax tree of the file of a target, as for `place`. Raises UserError if unreadable."""
    path = place(target)
    try:
        return path, _parsed(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}", hint="write path/to/file.py:factory") from None
    except (SyntaxError, ValueError) as error:
        where = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError(f"{path}{where}: {error.args[0]}", hint="Python cannot read this file") from None


def _bound_to(name: str, tree: ast.Module, path: Path) -> str | None:
    """Return what a name is an alias of, by `name = other` or `from module import other as name`; None if of none."""
    for node in reversed(tree.body):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if name in targets and node.value.id != name:
                return f"{path}:{node.value.id}"
        elif isinstance(node, ast.ImportFrom) and node.module and node.level <= 1:
            original = next((alias.name for alias in node.names if (alias.asname or alias.name) == name), None)
            module = path.parent.joinpath(*node.module.split("."))  # beside the file alone; no import
            for file in (module.with_suffix(".py"), module / "__init__.py"):
                if original and file.is_file():
                    return f"{file}:{original}"
    return None


def place(target: str) -> Path:
    """Return the file of "package.module:function" or "path/to/file.py:function", found without importing anything.

    `importlib.util.find_spec` of a module would import, and so run, the packages that contain it. Raises UserError if
    there is none.
    """
    name = target.rpartition(":")[0]
    if name.endswith(".py"):
        return Path(name)
    first, *inner = name.split(".")
    spec = _first_spec(first)
    folders = [Path(folder, *inner) for folder in (spec.submodule_search_locations if spec else None) or ()]
    files = [file for folder in folders for file in (folder / "__init__.py", folder.with_suffix(".py"))]
    if spec and spec.origin and not inner:
        files.append(Path(spec.origin))
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise UserError(f"there is no module '{name}'", hint="write package.module:factory, or path/to/file.py:factory")
    return found


def _arguments(function: ast.FunctionDef) -> dict[str, tuple[ast.arg, ast.expr | None]]:
    """Return the parameters of a function by name, the keyword-only ones last, each with its default if it has one."""
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = [None] * (len(positional) - len(function.args.defaults)) + function.args.defaults
    every = zip([*positional, *function.args.kwonlyargs], [*defaults, *function.args.kw_defaults], strict=True)
    return {argument.arg: (argument, default) for argument, default in every}


def _factories(tree: ast.Module, *, complete: bool = False) -> list[str]:
    """Return the public functions that visibly return a model and a batch; if there are none, those that might.

    Those that the file runs as a script are not among them: to call one to see what it returns may take hours. Nor are
    those that a loop calls: they make batches alone.
    """
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    looped = {name.id for node in loops for name in ast.walk(node) if isinstance(name, ast.Name)}
    returned = {
        node.name: [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value]
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in (SCRIPT, *looped)
        if {name for name, (_, default) in _arguments(node).items() if default is None} <= {"batch_size"}
    }
    called = [node for node in tree.body if isinstance(node, ast.If | ast.Expr)]
    run = {name.id for node in called for name in ast.walk(node) if isinstance(name, ast.Name)}
    made = [name for name, values in returned.items() if any(map(_is_model, values))]
    return made if made or complete else [name for name, values in returned.items() if values and name not in run]


def _is_model(value: ast.expr) -> bool:
    """Whether a returned expression has the form (module, batch[, loss[, optimizer]]), or is a dict with these keys."""
    if isinstance(value, ast.Tuple):
        return len(value.elts) in PARTS
    if isinstance(value, ast.Dict):
        return {key.value for key in value.keys if isinstance(key, ast.Constant)} >= KEYS
    return ast.unparse(value).startswith("dict(") and {one.arg for one in getattr(value, "keywords", ())} >= KEYS
