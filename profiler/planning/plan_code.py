"""Turns a plan file, or a strategy with levers, into code or a trainer's settings that run without gcprof."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

import msgspec

from profiler import __version__
from profiler.core import by_key
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.plan_file import OFFLOADING, PlanFile, Segment, every, names, operators, words
from profiler.planning import code_templates as templates

WIDTH = 100
IMPORT = re.compile(r"(?:from (\S+) )?import ([\w., ]+)")
STANDARD = ("from collections", "from contextlib", "from functools", "from typing")  # how its imports begin here
TRAINING = Path(__file__).parents[1] / "training"
TOOLS = re.compile(r"  # (?:type: ignore|noqa|fmt: skip).*")  # comments for type checkers and linters
DRAWING = {"native_dropout", "bernoulli", "rand_like", "randn_like", "randint_like", "normal", "uniform", "multinomial",
           "rrelu_with_noise", "poisson", "exponential", "rand", "randn", "randint", "randperm"}  # fmt: skip

PYTHON = "python"
OWN = "with the arguments of your own"
OFFLOADED_LEAST = 1 << 20  # default of an option of offload-inputs
ALLOCATOR = "Start it with PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.9, PYTORCH_CUDA_ALLOC_CONF)."
OF_OPTIMIZER = {  # by lever, in the order in which they are applied: the code that changes the optimizer
    "fused": "optimizer = like(optimizer, fused=True, foreach=None)",
    "no-foreach": "optimizer = like(optimizer, foreach=False)",
    "8bit": "optimizer = in_8_bits(optimizer, {library})",
    "bf16-state": "with_bf16_state(optimizer)",
    "in-backward": "step_in_backward(optimizer)",
}
IN_BUCKETS = {"bf16-state": "with_bf16_state", "in-backward": "step_in_backward"}  # several optimizers
LIBRARIES = {"torchao": "torchao.optim", "bitsandbytes": "bitsandbytes.optim"}  # whichever is installed


APPLY = '''

def apply_levers(model, optimizer):
    """Change the model in place; return the optimizer to use instead."""
'''


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
        keeping = "keeping, {}.__contains__" if draws else "create_selective_checkpoint_contexts, {}"
        code += "\n" + templates.SAVES.substitute(keeping=keeping.format("_overloads(KEPT[save])"))
        code += measured("strategies.py", "keeping") if draws else ""
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


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A step to write code for: its levers, the plan of its checkpoints, and the heads that are put off."""

    label: str  # as users write it
    levers: tuple[Choice, ...] = ()
    plan: PlanFile | None = None
    heads: dict[str, str] = {}  # weights of heads whose loss is computed in parts: the module that they are of, or ""
    has_loss: bool = False  # whether the model's own forward computes the loss, if it does, as that of a script
    module: str | None = None  # the class of a script's model
    optimizer: str | None = None  # its class; None: the model brings its own
    has_batchnorm: bool = False  # whether a block has one, whose statistics a recompute must leave alone
    batch_size: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(lever.name for lever in self.levers)

    def options(self, lever: str) -> dict[str, str]:
        """Return the options of a lever, those that it has."""
        return next((one.options for one in self.levers if one.name == lever), {})

    @property
    def parts(self) -> int:
        """The number of micro-batches."""
        return int(self.options("micro-batches").get("n", 1))


def emit_way(way: Way, kind: str) -> str:
    """Return the code of a way, of one of WAY_KINDS. Raises UserError for what that cannot express."""
    if "offload-inputs" in way.names and way.plan:  # each input waits until the block after its segment runs backward
        after = dict(pairwise(way.plan.fingerprint))
        segments = tuple(
            msgspec.structs.replace(one, fetched_at=after.get(names(one)[-1])) for one in way.plan.segments
        )
        plan_file = msgspec.structs.replace(way.plan, schema=OFFLOADING, segments=segments)
        way = msgspec.structs.replace(way, plan=plan_file)
    said, code = WAY_KINDS[kind](way)
    plan = f", {' '.join(words(way.plan).split())}" if way.plan and way.plan.segments else ""
    head = f"{way.label}{plan}: written by gcprof {__version__}, which this does not need."
    said += [f"Here `model` is the {way.module} that is trained, not what holds it."] if way.module else []
    said += [ALLOCATOR] if "expandable-segments" in way.names else []
    return "".join(f"# {line}\n" for text in (head, *said) for line in wrap(text, WIDTH - 2)) + code


def _python_of_levers(way: Way) -> tuple[list[str], str]:
    said = ["Call optimizer = apply_levers(model, optimizer) once, before a scheduler is made and the first step."]
    if way.parts > 1:
        said.append("Each step calls backward(model, batch, loss) instead of loss(model, batch).backward().")
    parts = templates.MICRO_BATCHES.substitute(n=way.parts) if way.parts > 1 else ""
    return said, imported(_functions(way) + parts)


def _functions(way: Way) -> str:
    """Return `apply_levers`, and all that it calls."""
    chosen = [name for name in OF_OPTIMIZER if name in way.names]
    library = LIBRARIES[next((name for name in LIBRARIES if find_spec(name)), "torchao")]
    calls = [OF_OPTIMIZER[name].format(library=library) for name in chosen]
    parts = [f"\nimport {library}\n"] if "8bit" in chosen else []
    used = ["like"] if {"fused", "no-foreach"} & {*chosen} else []
    used += ["in_8_bits"] if "8bit" in chosen else []
    if alone := [name for name in chosen if name in IN_BUCKETS]:
        mib = way.options("in-backward").get("mib") if "in-backward" in alone else None
        calls.insert(chosen.index(alone[0]), f"optimizer = Buckets(optimizer{f', {mib} << 20' if mib else ''})")
        used += ["Buckets", *(IN_BUCKETS[name] for name in alone)]
    if "in-backward" in chosen:  # gcprof's own loops, and its lever for scripts, see that otherwise
        calls.append("follow_zeros(torch.nn.Module, optimizer.freed)")
        used.append("follow_zeros")
    parts += [measured("optimizers.py", *used)] if used else []
    plan = ""
    if "chunk-loss" in way.names:
        parts.append(_chunk_loss(way))
        calls.insert(0, "chunk_loss(model)")
    if way.plan and way.plan.segments:
        least = int(way.options("offload-inputs").get("least", OFFLOADED_LEAST)) if "offload-inputs" in way.names else 0
        plan = body(way.plan, PYTHON, repair_batchnorm=way.has_batchnorm, least=least)
        calls.insert(0, "apply_plan(model)")
    lines = "".join(f"    {call}\n" for call in (*calls, "return optimizer"))
    return f"{plan}{APPLY}{lines}{''.join(parts)}"


def _chunk_loss(way: Way) -> str:
    """Return the code of the loss in parts."""
    options = way.options("chunk-loss")
    by, rows = "by_torch" if options.get("by") == "torch" else "by_parts", options.get("rows")
    more = ", has_loss=True" if way.has_loss else ""
    weights = by_key((module, name.removeprefix(f"{module}.")) for name, module in way.heads.items())
    calls = [
        f"    put_off({f'model.get_submodule({json.dumps(module)})' if module else 'model'}, {json.dumps(names)}, "
        f"Heads({f'partial({by}, rows={rows})' if rows else by}){more})"
        for module, names in weights.items()
    ]
    code = templates.CHUNK_LOSS.substitute(
        parts=f"{rows} rows at a time" if rows else "in parts", calls="\n".join(calls)
    )
    return code + measured("chunked_loss.py", "put_off", by)


def _trainer(way: Way) -> tuple[list[str], str]:
    """Return TrainingArguments in the words of the installed transformers, and code for what it has no words for."""
    said, before, arguments = [], "", ['output_dir="out"']
    if "in-backward" in way.names:
        raise UserError("--emit hf: a Trainer clips gradients before it steps, so that in-backward is not possible",
                        hint="--emit python")  # fmt: skip
    spec = find_spec("transformers")
    source = Path(spec.origin).with_name("training_args.py").read_text("utf-8") if spec and spec.origin else ""
    calls = []
    if way.plan and way.plan.segments:
        if _is_every_block(way.plan):
            known = re.findall(r"^    (\w+): ", source, re.MULTILINE)  # fields of TrainingArguments
            word = "activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"
            arguments += [f"{word}=True", f'{word}_kwargs={{"use_reentrant": False}}']
        else:
            before = "\n\n" + body(way.plan, "hf", repair_batchnorm=way.has_batchnorm)
            calls.append("apply_plan(model)")
    code = ""
    if "chunk-loss" in way.names:
        code = _chunk_loss(way)
        calls.append("chunk_loss(model)")
    if calls:
        said.append(f"Call {' and '.join(calls)} before Trainer(model, arguments, ...).")
    chosen = {"fused": "adamw_torch_fused", "8bit": f"adamw_{'torch' if find_spec('torchao') else 'bnb'}_8bit"}
    for lever in OF_OPTIMIZER:
        if lever in way.names and lever in chosen and way.optimizer == "AdamW":
            arguments.append(f'optim="{chosen[lever]}"')
        elif lever in way.names:
            said.append(f"{lever} has no word in TrainingArguments: Trainer(..., optimizers=(optimizer, None)) takes "
                        f"one that --emit python changes.")  # fmt: skip
    if way.parts > 1:
        arguments += _accumulated(way, "hf", "per_device_train_batch_size={}", "gradient_accumulation_steps={}")
    lines = "".join(f"    {argument},\n" for argument in arguments)
    made = f"from transformers import TrainingArguments\n\narguments = TrainingArguments(  # {OWN}\n{lines})\n"
    return said, imported(f"{made}{before}{code}")


def _accelerate(way: Way) -> tuple[list[str], str]:
    """Return the code of python, with accelerate's own accumulation for micro-batches."""
    said, made = ["Call `optimizer = apply_levers(model, optimizer)` before accelerator.prepare."], ""
    if way.parts > 1:
        (steps,) = _accumulated(way, "accelerate", "", "gradient_accumulation_steps={}")
        made = f"from accelerate import Accelerator\n\naccelerator = Accelerator({steps})  # {OWN}\n\n\n"
        size = f"of {way.batch_size // way.parts}" if way.batch_size else f"1/{way.parts} as large"
        said.append("In each step call accelerator.backward(loss) within accelerator.accumulate(model).")
        said.append(f"The loader's batches are {size}; where labels are padded, weight each loss by its targets.")
    own = msgspec.structs.replace(way, levers=tuple(one for one in way.levers if one.name != "micro-batches"))
    return said, imported(made + _functions(own))


def _torchtitan(way: Way) -> tuple[list[str], str]:
    """Return sections of a TOML file; what it has no words for is said."""
    said = ["A file of torchtitan 0.2; later ones have these names in Python."]
    sections: dict[str, list[str]] = {}
    if way.plan and way.plan.segments:
        sections["activation_checkpoint"] = _titan_checkpoints(way.plan)
    words = {"fused": 'implementation = "fused"', "no-foreach": 'implementation = "for-loop"',
             "in-backward": "early_step_in_backward = true"}  # fmt: skip
    for lever in way.names:
        if lever in words:
            sections.setdefault("optimizer", []).append(words[lever])
        elif lever in ("chunk-loss", "8bit", "bf16-state"):
            said.append(f"{lever} has no word in torchtitan: --emit python has the code.")
    if way.parts > 1:
        given = _accumulated(way, "torchtitan", "local_batch_size = {}", "")
        sections["training"] = [*given, *([f"global_batch_size = {way.batch_size}"] if way.batch_size else [])]
    return said, "\n".join(f"[{name}]\n" + "".join(f"{line}\n" for line in lines) for name, lines in sections.items())


def _titan_checkpoints(plan: PlanFile) -> list[str]:
    """Return the section of checkpoints. Raises UserError unless the plan is of every block, or every so many."""
    if _is_every_block(plan):
        return ['mode = "full"']
    blocks = list(plan.fingerprint)
    places = [blocks.index(names(segment)[0]) + 1 for segment in plan.segments]
    is_plain = all(len(names(segment)) == 1 and not (segment.save or segment.fetched_at) for segment in plan.segments)
    if is_plain and places == list(range(places[0], len(blocks) + 1, places[0])):
        return ['mode = "selective"', f'selective_ac_option = "{places[0]}"']
    raise UserError(f"--emit torchtitan: it checkpoints every block, or every so many, not {words(plan)}",
                    hint="--emit python can express every plan")  # fmt: skip


def _is_every_block(plan: PlanFile) -> bool:
    """Whether each block is checkpointed by itself."""
    segments = {segment.blocks for segment in plan.segments if not (segment.save or segment.fetched_at)}
    return segments == {(name,) for name in plan.fingerprint} and len(segments) == len(plan.segments)


def _accumulated(way: Way, kind: str, size: str, steps: str) -> list[str]:
    """Return the settings of micro-batches. Raises UserError if the batch is not so many equal parts."""
    if way.batch_size and way.batch_size % way.parts:
        raise UserError(f"--emit {kind}: a batch of {way.batch_size} is not {way.parts} equal parts",
                        hint="--emit python has parts of any size")  # fmt: skip
    sizes = [size.format(way.batch_size // way.parts)] if size and way.batch_size else []
    return [*sizes, *([steps.format(way.parts)] if steps else [])]


WAY_KINDS: dict[str, Callable[[Way], tuple[list[str], str]]] = {
    PYTHON: _python_of_levers, "hf": _trainer, "accelerate": _accelerate, "torchtitan": _torchtitan,
}  # fmt: skip
