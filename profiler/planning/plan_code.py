"""Turns a plan file into Python code that runs without gcprof."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from textwrap import wrap

from profiler import __version__
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile, Segment, every, names, operators, words
from profiler.planning import plan_code_templates as templates

WIDTH = 100
DRAWING = {"native_dropout", "bernoulli", "rand_like", "randn_like", "randint_like", "normal", "uniform", "multinomial",
           "rrelu_with_noise", "poisson", "exponential", "rand", "randn", "randint", "randperm"}  # fmt: skip


def emit(file: PlanFile, kind: str, *, repair_batchnorm: bool = False) -> str:
    """Return Python code whose `apply_plan(model)` applies the plan: in plain torch, for Hugging Face, or for FSDP.

    With `repair_batchnorm` it also holds the statistics of BatchNorm, as `--repair-batchnorm` does. Raises UserError
    for another kind, for a block that is a call and no module, and for a segment that hf or fsdp cannot express: both
    take only single blocks, and hf takes no save options.
    """
    if kind not in KINDS:
        raise UserError(f"--emit: '{kind}' is not known", hint=f"choose from {', '.join(KINDS)}")
    head = f"The plan {' '.join(words(file).split())} of gcprof {__version__}, which this does not need."
    lines = [*wrap(head, WIDTH - 2), "Call apply_plan(model) once, before the first step."]
    return "".join(f"# {line}\n" for line in lines) + body(file, kind, repair_batchnorm=repair_batchnorm)


def body(file: PlanFile, kind: str, *, repair_batchnorm: bool = False, least: int = 0) -> str:
    """Return the code without its head; inputs of fewer than `least` bytes do not wait in host memory.

    Raises UserError as `emit` does, but for another kind.
    """
    if called := [name for name in file.fingerprint if "#" in name]:
        hint = "gcprof.apply(module, Path('plan.json'), example=batch) knows them"
        raise UserError(f"--emit: '{called[0]}' is a call, not a module, for which there is no code", hint=hint)
    make = partial(_python, least=least) if kind == "python" else KINDS[kind]
    code = make(file, templates.REPAIRING if repair_batchnorm else "").rstrip("\n") + "\n"
    if _draws(operators(save) for save in _saves(file)):
        code = _drawing(code)
    return code + (templates.REPAIR if repair_batchnorm else "")


def _python(file: PlanFile, first: str, *, least: int = 0) -> str:
    saves, fetched = _saves(file), {names(one)[0]: one.fetched_at for one in file.segments if one.fetched_at}
    parts = templates.SAVING if saves else templates.PLAIN
    if fetched and not saves:
        parts = {**parts, "imports": f"import torch\n{parts['imports']}"}
    kept = _kept(saves)
    if fetched:
        entries = [[f"{_quoted(name)}: {_quoted(after)},"] for name, after in fetched.items()]
        kept += "# The input of a block waits in host memory until the gradient of the other one's output arrives.\n"
        kept += _filled("FETCHED_AT = {", entries, "}")
    if all(len(segment.blocks) == 1 and isinstance(segment.blocks[0], str) for segment in file.segments):
        code = _of_blocks(file, parts, kept, first, fetches=bool(fetched))
    else:
        note = "# A tuple is such a list, and what is kept of it.\n" if saves else ""
        plan = note + kept + _filled("PLAN = [", [_run(segment) for segment in file.segments], "]")
        around = "self.checkpointed"
        if fetched:
            around = "_around(model, _names(run)[0]), self.checkpointed"
        code = templates.RUNS.substitute(parts, plan=plan, first=first, around=around)
    return code + templates.OFFLOADED.substitute(least=least) if fetched else code


def _of_blocks(file: PlanFile, parts: dict[str, str], kept: str, first: str, *, fetches: bool) -> str:
    """Return the code of a plan whose segments are single blocks."""
    blocks = [(str(segment.blocks[0]), segment.save) for segment in file.segments]
    if _saves(file):
        entries = [[f"{_quoted(name)}: {_quoted(save) if save else None},"] for name, save in blocks]
        plan = _filled("BLOCKS = {  # and what is kept of them", entries, "}")
    else:
        plan = _filled("BLOCKS = [", [[f"{_quoted(name)}," for name, _ in blocks]] if blocks else [], "]")
    if fetches or _saves(file):
        call = "_around(model, name), under" if fetches else "under"
        forward = f"        under = {parts['under']}\n        block.forward = partial({call}, block.forward)"
    else:
        forward = "        block.forward = partial(checkpoint, block.forward, use_reentrant=False)"
    code = templates.BLOCKS.substitute(parts, plan=kept + plan, first=first, forward=forward)
    return code + templates.OVERLOADS if _saves(file) else code


def _hugging_face(file: PlanFile, first: str) -> str:
    layers = [_single(segment, "hf") for segment in file.segments]
    for segment in file.segments:
        if segment.save:
            raise _no_words("hf", segment, f"keeps the results of {segment.save}; its layers keep nothing")
    plan = _filled("LAYERS = [", [[f"{_quoted(layer)},"] for layer in layers], "]")
    return templates.HUGGING_FACE.substitute(plan=plan, first=first)


def _fsdp(file: PlanFile, first: str) -> str:
    saves = {_single(segment, "fsdp"): segment.save for segment in file.segments}
    if not _saves(file):
        plan = _filled("MODULES = [", [[f"{_quoted(name)},"] for name in saves], "]")
        return templates.FSDP.substitute(plan=plan, first=first)
    entries = [[f"{_quoted(name)}: {_quoted(save) if save else None},"] for name, save in saves.items()]
    plan = _kept(_saves(file)) + _filled("MODULES = {  # and what is kept of them", entries, "}")
    return templates.FSDP_SAVING.substitute(plan=plan, first=first)


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


def _draws(kept: Iterable[tuple[str, ...]]) -> bool:
    """Whether any of the operators may draw random numbers, as attention with dropout does."""
    return any("attention" in name or name.strip("_") in DRAWING for several in kept for name in several)


def _drawing(code: str) -> str:
    """Return the code of a plan with save options, such that the backward draws what the forward drew."""
    imported = "from torch.utils._python_dispatch import TorchDispatchMode\n"
    code = code.replace("partial(create_selective_checkpoint_contexts, _overloads(KEPT[save]))",
                        "partial(_keeping, KEPT[save])")  # fmt: skip
    code = code.replace("from torch.utils.checkpoint import", f"{imported}from torch.utils.checkpoint import", 1)
    return code + templates.DRAWS


def _kept(saves: Iterable[str]) -> str:
    """Return the code that lists the operators of each save option; empty if there are none."""
    entries = [(_quoted(save), _list([f"{_quoted(name)}," for name in operators(save)])) for save in saves]
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
