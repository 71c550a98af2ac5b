"""Turns a plan file into Python code that runs without gcprof."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
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
    if called := [name for name in file.fingerprint if "#" in name]:
        hint = "gcprof.apply(module, Path('plan.json'), example=batch) knows them"
        raise UserError(f"--emit: '{called[0]}' is a call, not a module, for which there is no code", hint=hint)
    head = f"The plan {' '.join(words(file).split())} of gcprof {__version__}, which this does not need."
    lines = [*wrap(head, WIDTH - 2), "Call apply_plan(model) once, before the first step."]
    code = KINDS[kind](file, templates.REPAIRING if repair_batchnorm else "").rstrip("\n") + "\n"
    if _draws(operators(save) for save in _saves(file)):
        code = _drawing(code)
    return "".join(f"# {line}\n" for line in lines) + code + (templates.REPAIR if repair_batchnorm else "")


def _python(file: PlanFile, first: str) -> str:
    saves = _saves(file)
    note = "# A tuple is such a list, and what is kept of it.\n" if saves else ""
    plan = _filled("PLAN = [", [_run(segment) for segment in file.segments], "]")
    parts = templates.SAVING if saves else templates.PLAIN
    code = templates.PYTHON.substitute(parts, plan=note + _kept(saves) + plan, first=first)
    return _offloading(code, file) if any(segment.fetched_at for segment in file.segments) else code


def _offloading(code: str, file: PlanFile) -> str:
    """Return the code with inputs in host memory: by the classes that carry a plan out, which are plain PyTorch."""
    own = Path(__file__).parents[1].joinpath("training", "checkpointing", "host_memory.py").read_text("utf-8")
    _, _, classes = own.partition("from __future__ import annotations\n\n")
    fetched = [(names(segment)[0], segment.fetched_at) for segment in file.segments if segment.fetched_at]
    entries = [[f"{_quoted(first)}: {_quoted(after)},"] for first, after in fetched]
    waiting = "# The input of the run that begins at one block waits in host memory until the backward is at another.\n"
    waiting += _filled("FETCHED_AT = {", entries, "}") + "MEMORY = HostMemory()\n"
    for before, after in templates.OFFLOADING.items():
        assert before in code
        code = code.replace(before, after)
    return f"{classes}\n\n{waiting}\n{code}"


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
