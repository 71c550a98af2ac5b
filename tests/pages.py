"""What is made from the package in pages: `python -m tests.pages` writes three of docs/ and ARCHITECTURE.md's table."""

import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer.main

from profiler.cli import COMMANDS, application, command
from profiler.cli.options import RUNS, examples
from profiler.core.record import Record
from profiler.runs.store import Manifest
from tests import rooms

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SHARED = 4  # so many commands with the same option: it is explained once
IN_NAVIGATION = re.compile(r": ([\w-]+\.md)$", re.MULTILINE)
NOTE = re.compile(r"^(## GCP(\d{3}):)", re.MULTILINE)
TABLE = re.compile(r"(?<=## Rooms\n\n)(?:\|.*\n)+")
FIELDS = "<!-- fields -->\n"


def pages() -> dict[Path, str]:
    """Every page that holds generated text, whole."""
    architecture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    written, _, _ = (DOCS / "format.md").read_text(encoding="utf-8").partition(FIELDS)
    notes = (ROOT / "profiler" / "views" / "notes.md").read_text(encoding="utf-8")
    return {
        DOCS / "notes.md": NOTE.sub(r'<a id="gcp\2"></a>\n\n\1', notes),
        DOCS / "commands.md": "\n".join(_commands()) + "\n",
        DOCS / "format.md": written + FIELDS + "\n" + "\n".join(_structs()) + "\n",
        ROOT / "ARCHITECTURE.md": TABLE.sub(lambda _: rooms.table(), architecture),
    }


def words() -> dict[str, int]:
    """The number of words of every page in the navigation, as `wc -w` counts them."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return {name: len((DOCS / name).read_text(encoding="utf-8").split()) for name in IN_NAVIGATION.findall(navigation)}


def _commands() -> Iterator[str]:
    items = {name: _options(name) for name in COMMANDS}
    counts = Counter(item for each in items.values() for item in each)
    shared = {named: about for (named, about), count in reversed(counts.most_common()) if count >= SHARED}
    yield "# Commands\n\n`gcprof COMMAND --help` shows the same.\n\n## Options of several commands\n"
    yield from (f"- {named}: {about}" for named, about in sorted(shared.items()))
    for name in COMMANDS:
        function = command(name)
        about = (inspect.getdoc(function) or "").partition("\n\n")[0]
        yield f"\n## gcprof {'runs ' * (name in RUNS['Runs'])}{name}\n\n{' '.join(about.split())}"
        yield "\n".join(["\n```", *examples(name, function.__doc__), "```", ""])
        own = [(named, about) for named, about in items[name] if shared.get(named) != about]
        yield from (f"- {named}: {about}" for named, about in own)
        if also := [max(named.split(", "), key=len) for named, about in items[name] if shared.get(named) == about]:
            yield f"- and {', '.join(also)}"


def _options(name: str) -> list[tuple[str, str]]:
    group: Any = typer.main.get_command(application([name]))
    items = []
    for one in group.commands[name].params:
        if getattr(one, "hidden", False):  # a former name
            continue
        is_option = one.param_type_name == "option"
        names = (*one.opts, *one.secondary_opts) if is_option else (one.name.upper(),)
        items.append((", ".join(f"`{word}`" for word in names), " ".join((one.help or "").split())))
    return items


def _structs() -> Iterator[str]:
    """The structs of a run folder, in the order in which they hold each other."""
    kinds = "".join(repr(msgspec.inspect.type_info(struct)) for struct in (Manifest, Record))
    for module, name in dict.fromkeys(re.findall(r"StructType\(cls=<class '([\w.]+)\.(\w+)'>", kinds)):
        struct = getattr(sys.modules[module], name)
        source, _ = inspect.getsourcelines(struct)
        yield f"## {struct.__name__}\n\n{' '.join((inspect.getdoc(struct) or '').split())}\n"
        (found,) = ast.parse("".join(source)).body
        assert isinstance(found, ast.ClassDef)
        for one in found.body:
            if isinstance(one, ast.AnnAssign):
                line = source[(one.end_lineno or one.lineno) - 1]
                named = f"`{ast.unparse(one.target)}` `{_plain(one.annotation)}`"
                about = " ".join(line.partition("  # ")[2].split())
                yield f"- {named}: {about}" if about else f"- {named}"
        yield ""


def _plain(annotation: ast.expr) -> str:
    """A type without what is noted beside it; `?` where a value may be null or left out."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        annotation = annotation.slice.elts[0]
    text = ast.unparse(annotation)
    plain = text.replace(" | None", "").replace(" | UnsetType", "")
    return plain if plain == text else f"{plain}?"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    counts = words()
    print(f"{len(counts)} pages, {sum(counts.values()):,} words")
