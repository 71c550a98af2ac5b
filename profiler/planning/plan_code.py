"""Turns a plan file into Python code that runs without gcprof."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from textwrap import wrap

from profiler import __version__
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile, Segment, every, names, operators, words
from profiler.planning import code_templates as templates

WIDTH = 100
IMPORT = re.compile(r"(?:from (\S+) )?import ([\w., ]+)")
STANDARD = ("from collections", "from functools", "from typing")  # how imports of the standard library begin here
TRAINING = Path(__file__).parents[1] / "training"
TOOLS = re.compile(r"  # (?:type: ignore|noqa|fmt: skip).*")  # comments for type checkers and linters
DRAWING = {"native_dropout", "bernoulli", "rand_like", "randn_like", "randint_like", "normal", "uniform", "multinomial",
           "rrelu_with_noise", "poisson", "exponential", "rand", "randn", "randint", "randperm"}  # fmt: skip


def emit(file: PlanFile, kind: str, *, repair_batchnorm: bool = False) -> str:
    """Return Python code whose `apply_plan(model)` applies the plan: in plain torch, for Hugging Face, or for FSDP.

    With `repair_batchnorm` it also holds the statistics of BatchNorm, as `--repair-batchnorm` does. Raises UserError
    for a block that is a call and no module, and for a segment that hf or fsdp cannot express: both take only single
    blocks, and hf takes no save options.
    """
    head = f"The plan {' '.join(words(file).split())} of gcprof {__version__}, which this does not need."
    lines = [*wrap(head, WIDTH - 2), "Call apply_plan(model) once, before the first step."]
    return "".join(f"# {line}\n" for line in lines) + body(file, kind, repair_batchnorm=repair_batchnorm)


def body(file: PlanFile, kind: str, *, repair_batchnorm: bool = False, least: int = 0) -> str:
    """Return the code without its head; inputs of fewer than `least` bytes do not wait in host memory.

    Raises UserError as `emit` does.
    """
    if called := [name for name in file.fingerprint if "#" in name]:
        hint = "gcprof.apply(module, Path('plan.json'), example=batch) knows them"
        raise UserError(f"--emit: '{called[0]}' is a call, not a module, for which there is no code", hint=hint)
    make = partial(_python, least=least) if kind == "python" else KINDS[kind]
    code = make(file, templates.REPAIRING if repair_batchnorm else "")
    if saves := _saves(file):
        draws = any("attention" in name or name.strip("_") in DRAWING for save in saves for name in operators(save))
        keeping = "_keeping, KEPT[save]" if draws else "create_selective_checkpoint_contexts, _overloads(KEPT[save])"
        code += "\n" + templates.SAVES.substitute(keeping=keeping) + (templates.DRAWS if draws else "")
    if repair_batchnorm:
        code += templates.REPAIR + measured("block_segments.py", "_hold", "_release")
    return imported(code)


def imported(code: str) -> str:
    """Return the code with its imports at the top, each name once."""
    imports: dict[str, set[str]] = {}
    rest = []
    for line in code.split("\n"):
        if found := IMPORT.fullmatch(line):
            imports.setdefault(found[1] or "", set()).update(found[2].split(", "))
        else:
            rest.append(line)
    lines = [f"import {name}" for name in sorted(imports.pop("", ()))]
    for module in sorted(imports):
        together = f"from {module} import {', '.join(names := sorted(imports[module]))}"
        inside = "".join(f"    {name},\n" for name in names)
        lines.append(together if len(together) <= WIDTH else f"from {module} import (\n{inside})")
    own = [line for line in lines if line.startswith(STANDARD)]
    top = "\n\n".join("\n".join(lines) for lines in (own, [line for line in lines if line not in own]) if lines)
    return re.sub(r"\n{4,}", "\n\n\n", f"{top}\n\n\n" + "\n".join(rest).strip("\n") + "\n").lstrip("\n")


def measured(file: str, *names: str) -> str:
    """Return these definitions of a file of training/, and those of it that they use, with their imports.

    They are plain PyTorch: what is emitted is what was measured.
    """
    text = (TRAINING / file).read_text("utf-8")
    imports: dict[str, str] = {}
    defined: dict[str, ast.stmt] = {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            of = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
            imports |= {one.asname or one.name: f"{of}import {ast.unparse(one)}" for one in node.names}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            defined[node.name] = node
        elif isinstance(node, ast.Assign):
            defined |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    used, due = set[str](), list(names)
    while due:
        if (name := due.pop()) not in used:
            used.add(name)
            inner = ast.walk(defined[name]) if name in defined else ()
            due += [node.id for node in inner if isinstance(node, ast.Name)]
    taken = [TOOLS.sub("", ast.get_source_segment(text, node) or "") for name, node in defined.items() if name in used]
    constants = [code + "\n" for code in taken if not code.startswith(("class ", "def "))]
    lines = [f"{line}\n" for name, line in imports.items() if name in used]
    parts = [code + "\n" for code in taken if code.startswith(("class ", "def "))]
    return "\n" + "".join(lines) + "\n" + "".join(constants) + "\n\n" + "\n\n".join(parts)


def _python(file: PlanFile, first: str, *, least: int = 0) -> str:
    fetched = {names(one)[0]: one.fetched_at for one in file.segments if one.fetched_at}
    kept = _kept(file)
    if fetched:
        entries = [[f"{_quoted(name)}: {_quoted(after)},"] for name, after in fetched.items()]
        kept += "# The input of a block waits in host memory until the gradient of the other one's output arrives.\n"
        kept += _filled("FETCHED_AT = {", entries, "}")
    options = ", **_options(save)" if _saves(file) else ""
    if all(len(segment.blocks) == 1 and isinstance(segment.blocks[0], str) for segment in file.segments):
        plan, each = _single_blocks("BLOCKS", file, {str(one.blocks[0]): one.save for one in file.segments})
        around = "_around(model, name), " if fetched else ""
        code = templates.BLOCKS.substitute(plan=kept + plan, first=first, each=each, around=around, options=options)
    else:
        note = "# A tuple is such a list, and what is kept of it.\n" if options else ""
        plan = note + kept + _filled("PLAN = [", [_run(segment) for segment in file.segments], "]")
        around = "_around(model, _names(run)[0]), " if fetched else ""
        code = templates.RUNS.substitute(plan=plan, first=first, around=around, options=options)
    waiting = measured("memory_levers.py", "OffloadedInput") + templates.AROUND.substitute(least=least)
    return code + waiting if fetched else code


def _hugging_face(file: PlanFile, first: str) -> str:
    layers = [_single(segment, "hf") for segment in file.segments]
    for segment in file.segments:
        if segment.save:
            raise _no_words("hf", segment, f"keeps the results of {segment.save}; its layers keep nothing")
    plan = _filled("LAYERS = [", [[f"{_quoted(layer)},"] for layer in layers], "]")
    return templates.HUGGING_FACE.substitute(plan=plan, first=first)


def _fsdp(file: PlanFile, first: str) -> str:
    plan, each = _single_blocks("MODULES", file, {_single(one, "fsdp"): one.save for one in file.segments})
    options = "_options(save)" if _saves(file) else "{}"
    return templates.FSDP.substitute(plan=_kept(file) + plan, first=first, each=each, options=options)


def _single_blocks(word: str, file: PlanFile, saves: dict[str, str | None]) -> tuple[str, str]:
    """Return a plan of single blocks, with what is kept of each if anything is, and what loops over it."""
    if _saves(file):
        entries = [[f"{_quoted(name)}: {_quoted(save) if save else None},"] for name, save in saves.items()]
        return _filled(f"{word} = {{  # and what is kept of them", entries, "}"), f"name, save in {word}.items()"
    together = [[f"{_quoted(name)}," for name in saves]] if saves else []
    return _filled(f"{word} = [", together, "]"), f"name in {word}"


KINDS: dict[str, Callable[[PlanFile, str], str]] = {"python": _python, "hf": _hugging_face, "fsdp": _fsdp}


def _single(segment: Segment, kind: str) -> str:
    """Return the only block of a segment. Raises UserError if it has more."""
    first, *others = segment.blocks
    if segment.fetched_at:
        raise _no_words(kind, segment, "has its input in host memory")
    if others:
        raise _no_words(kind, segment, f"computes {len(names(segment))} blocks together")
    if isinstance(first, Segment):
        raise _no_words(kind, segment, "holds another segment")
    return first


def _no_words(kind: str, segment: Segment, reason: str) -> UserError:
    first, *others = names(segment)
    span = f"'{first}' to '{others[-1]}'" if others else f"'{first}'"
    hint = "--emit python can express every plan; or plan blocks one by one"
    return UserError(f"--emit {kind}: the segment {span} {reason}", hint=hint)


def _saves(file: PlanFile) -> list[str]:
    """Return the save options of a plan, each once."""
    return list(dict.fromkeys(segment.save for segment in every(file.segments) if segment.save))


def _kept(file: PlanFile) -> str:
    """Return the code that lists the operators of each save option of a plan; empty if there are none."""
    entries = [(_quoted(save), _list([f"{_quoted(name)}," for name in operators(save)])) for save in _saves(file)]
    runs = [[f"{save}: {first}", *others] for save, (first, *others) in entries]
    return _filled("KEPT = {  # operators of aten", runs, "}") if runs else ""


def _run(segment: Segment) -> list[str]:
    """Return a segment as a Python literal and a comma, in pieces between which a line may end."""
    inside = [_run(item) if isinstance(item, Segment) else [f"{_quoted(item)},"] for item in segment.blocks]
    first, *others = _list([piece for pieces in inside for piece in pieces])
    return [f"({first}", *others, f"{_quoted(segment.save)}),"] if segment.save else [first, *others]


def _list(pieces: list[str]) -> list[str]:
    """Return the pieces in brackets; each piece ends in a comma."""
    *others, last = pieces
    first, *rest = [*others, f"{last[:-1]}],"]
    return [f"[{first}", *rest]


def _filled(head: str, entries: Iterable[list[str]], tail: str) -> str:
    """Return the entries between head and tail: each begins a new line and is wrapped at the width."""
    lines = [head]
    for pieces in entries:
        lines.append("   ")
        for piece in pieces:
            if len(f"{lines[-1]} {piece}") > WIDTH and lines[-1].strip():
                lines.append("    ")
            lines[-1] += f" {piece}"
    return "\n".join([*lines, tail, ""])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
