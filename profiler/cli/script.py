"""gcprof rehearse -- COMMAND and gcprof run -- COMMAND: the user's own training command, and the run folder of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from profiler.cli import options
from profiler.cli.output import SCRIPT, aside, next_command, say, say_json
from profiler.core.errors import UserError, one_of

if TYPE_CHECKING:
    from profiler.core.gpu_specs import Device
    from profiler.runs.store import Run
    from profiler.scripts.launch import Session
    from profiler.scripts.records import Side
    from profiler.scripts.report import Asked, Ended, Variant

NO_GPU = 3
DEVICES = ("auto", "cpu", "cuda")
ASSUMED = ("zeros", "none", "all", "balanced")  # values that are not known
BOUNDS = ("none", "all")  # of the peak, where sizes depend on them
CONTEXT = "600MiB"
NO_SUCH_GPU = "invalid device ordinal"  # of CUDA's error
BARE = re.compile(r"(?:[^={}]*=)?\{([A-Za-z_]\w*)\}")  # a word of the command that is a name to be filled in
MOST = re.compile(r"max(?::([1-9]\d*))?")  # in place of values: the largest that fits, a multiple of what follows

Axes = Annotated[
    list[str] | None,
    typer.Option(
        "-L", "--list", help="Run it for each value: 'batch 16,32' fills in {batch}; 'batch max': the most that fits."
    ),
]
Module = Annotated[
    str | None, typer.Option(help="Which model or part of it: a class, a variable, a name in it; * matches all.")
]
Batches = Annotated[int | None, typer.Option(min=1, help="End every DataLoader after so many batches.")]
Values = Annotated[
    str | None, typer.Option(help="What is assumed of values that are not known: zeros, none, all or balanced.")
]
FailOn = Annotated[
    str | None, typer.Option(help="Exit with 5 over a limit: 'peak:>10GiB,reserved:>90%,out-of-memory'.")
]

A_PLAN_ALONE = "a command has a plan alone: -o plan.json"


def rehearse(
    device: Annotated[
        str, typer.Option(help="GPUs to run it on, one kind after the other: t4, h100:8 (eight), a100-40,t4.")
    ] = "h100",
    axes: Axes = None,
    strategies: Annotated[
        str | None,
        typer.Option(help="Run it for each: applied to the model that it trains; none is the script as it is."),
    ] = None,
    module: Module = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each GPU, instead of its own: 11GiB.")] = None,
    context: Annotated[
        str | None, typer.Option(help="What CUDA's context and libraries take of it. [default: 600MiB]")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="End after so many optimizer steps.")] = None,
    batches: Batches = None,
    values: Values = None,
    limit: Annotated[float | None, typer.Option(min=0.1, help="End after so many seconds.")] = None,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Keep what it writes to files: saved values are garbage.")
    ] = False,
    fail_on: FailOn = None,
    output: options.RunFolder = None,
    json: options.JsonOrTable = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a training command as it is, by PyTorch's own CUDA code, on GPUs that are not here: its memory by phase.

    A word FILE.py without a colon begins the command too: gcprof rehearse train.py --batch-size 64

    Example: gcprof rehearse --device t4 -- python train.py --batch-size 64
    """
    import msgspec

    from profiler.scripts.report import Asked
    from profiler.views.tables import script as view

    one_of(values, ASSUMED, flag="--values")
    gpus, names = gpus_of(device, memory=memory, context=context), strategies_of(strategies)
    _refuse_module(module, has_strategies=bool(strategies))
    conclusion = Conclusion(output, fail_on, json=json)
    asked = Asked(
        words=SCRIPT.get(), steps=steps, batches=batches, limit_seconds=limit, module=module, values=values,
        allow_writes=allow_writes,
    )  # fmt: skip
    fillings = filled(axes or [], asked.words)
    if _sought(*fillings[0]) and not (steps or batches or quiet):
        aside("each number runs the whole command: --steps 3 ends it after three optimizer steps")
    variants: list[Variant] = []
    ends: list[Ended] = []
    for gpu, (filling, words), strategy in product(gpus, fillings, names):
        one = msgspec.structs.replace(asked, words=words, gpus=gpu, strategy=strategy)
        end, variant, found = _variant(one, filling, is_json=json, quiet=quiet)
        variants.append(variant)
        ends.append(end)
        _say_variant(variant, found, is_json=json)
        if end.is_stopped:
            break
    if len(variants) > 1 and not json:
        say(view.summary(variants))
    conclusion.end(variants, _exit_code(ends, variants), is_ended=ends[-1].is_stopped)


def _say_variant(variant: Variant, found: str, *, is_json: bool) -> None:
    """Print the tables of a variant, and what was found of a largest number; a document has the former."""
    from profiler.views.tables import Table
    from profiler.views.tables import script as view

    if not is_json:
        say(*view.tables([variant]), *([Table(below=(found,))] if found else []))
    elif found:
        aside(found)


def _refuse_module(module: str | None, *, has_strategies: bool) -> None:
    if module is not None and not has_strategies:
        raise UserError("--module has no effect without --strategies", hint="--strategies none,all --module 'GPT*'")


def _rehearsed(asked: Asked, values: dict[str, str], *, stdout: int | None, quiet: bool) -> tuple[Ended, Variant]:
    """Run one variant, and once more without a limit of memory where it had too little.

    Where sizes depend on values that are assumed, it is run with these assumed otherwise, too. Raises UserError.
    """
    import msgspec

    from profiler.scripts import launch
    from profiler.scripts.report import Variant
    from profiler.views.tables.script import Live

    tell = aside if not quiet else lambda text: None
    has_end = any((asked.steps, asked.batches, asked.limit_seconds))
    end = launch.run(asked, on_line=Live(tell, has_end=has_end), stdout=stdout)
    variant = Variant.of(end, asked, values)
    gpu, words = asked.gpus, " ".join(asked.words)
    assert gpu
    # where processes asked for a GPU that is not there, how many to ask for, by the command's words if any
    num = sum(row["kind"] == "raised" and NO_SUCH_GPU in row["text"] for row in end.rows)
    if num:
        said = re.search(r"--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus)[= ](\d+)", words)
        count = int(said[1]) if said and int(said[1]) > gpu.count else gpu.count + num
        aside(f"hint: a process asked for a GPU that is not there: --device {gpu.name}:{count} has {count}")
    if variant.outcome == "out_of_memory" and not end.interrupted:
        tell("out of memory: once more without a limit of memory, to see what it needs")
        whole = launch.run(launch.unlimited(asked), stdout=stdout or 2)
        variant = variant.with_need(whole)
        end = whole if whole.interrupted else end
    for bound in BOUNDS if variant.sized_at and variant.outcome == "ok" and asked.values is None else ():
        tell(f"sizes depend on values that are assumed: once more with --values {bound}")
        other = launch.run(msgspec.structs.replace(asked, values=bound), stdout=stdout or 2)
        if other.interrupted:
            end = other
            break
        variant = variant.with_bound(bound, other)
    for torch in end.unverified:
        aside(f"gcprof: unverified on torch {torch}")
    return end, variant


def _variant(asked: Asked, values: dict[str, str], *, is_json: bool, quiet: bool) -> tuple[Ended, Variant, str]:
    """Run one variant; of a largest value, that which is found, with a sentence on it."""
    import msgspec

    from profiler.workflows.largest_number import largest

    if not (name := _sought(values, asked.words)):
        return *_rehearsed(asked, values, stdout=2 if is_json else None, quiet=quiet), ""

    def run(number: int) -> tuple[Ended, Variant]:
        one = msgspec.structs.replace(asked, words=_with_value(asked.words, name, str(number)))
        return _rehearsed(one, {**values, name: str(number)}, stdout=DEVNULL, quiet=True)

    unit = int(values[name].partition(":")[2] or 1)
    assert asked.gpus
    return largest(run, name, asked.gpus, unit=unit, say=(lambda text: None) if quiet else aside)


def _sought(values: dict[str, str], words: Sequence[str]) -> str | None:
    """Return the name whose largest value is looked for; it was not filled in."""
    left = (name for name in values if any(f"{{{name}}}" in word for word in words))
    return next((name for name in left if MOST.fullmatch(values[name])), None)


def _with_value(words: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    return tuple(word.replace(f"{{{name}}}", value) for word in words)


def gpus_of(text: str, *, memory: str | None, context: str | None) -> list[Device]:
    """Return the GPUs that `t4,h100:8` asks for, each once. Raises UserError."""
    from profiler.core.case import Choice, split_choices
    from profiler.core.gpu_specs import rehearsed

    found = []
    for word in split_choices(text):
        usual = None if "context" in Choice(word).options else CONTEXT
        found.append(rehearsed(word, memory=memory, context=context or usual))
    return list(dict.fromkeys(found))


def strategies_of(text: str | None) -> list[str | None]:
    """Return the strategies in canonical form, each once; None alone where none are asked for. Raises UserError."""
    from profiler.core import plan_file
    from profiler.core.case import Choice, split_choices
    from profiler.training import refuse_in_scripts, resolved_label

    if text is None:
        return [None]
    labels = [resolved_label(choice) for choice in split_choices(text)]
    named = []
    for label in labels:
        strategy, *chosen = label.parts
        if strategy == "own":
            raise UserError("--strategies own is none: a script is run with its own checkpoints", hint="leave it out")
        if strategy == "plan":
            strategy = Choice.of("plan", {"file": plan_file.USUAL})
        if strategy.name == "plan":
            plan_file.read(Path(strategy.options["file"]))
        refuse_in_scripts(label)
        named.append("+".join([strategy, *chosen]))
    return [*dict.fromkeys(named)]


def filled(axes: list[str], words: Sequence[str]) -> list[tuple[dict[str, str], tuple[str, ...]]]:
    """Return the values of each variant by name, the product of all lists, and the command with them filled in.

    Raises UserError.
    """
    lists: dict[str, list[str]] = {}
    for axis in axes:
        name, values = axis.partition(" ")[0], axis.partition(" ")[2].strip()
        if not values or not name.isidentifier():
            raise UserError(f"-L '{axis}' is not a name and values", hint="-L 'batch 16,32,64', and {batch} in COMMAND")
        if not any(f"{{{name}}}" in word for word in words):
            raise UserError(f"-L {name}: the command has no {{{name}}}", hint=f"for example --batch-size {{{name}}}")
        if name in lists:
            raise UserError(f"-L {name} is given twice", hint=f"-L '{name} 16,32' has several values")
        if values.startswith("max:") and "," not in values and not MOST.fullmatch(values):
            raise UserError(f"-L '{axis}': max:N tries multiples of N, from 1", hint=f"-L '{name} max:8'")
        lists[name] = list(dict.fromkeys(values.split(",")))
    bare = next((found[1] for word in words if (found := BARE.fullmatch(word)) and found[1] not in lists), None)
    if bare:
        hint = f"-L '{bare} 16,32' fills it in, once for each value; -L '{bare} {{{bare}}}' leaves it as it is"
        raise UserError(f"the command has {{{bare}}}, and nothing says what it is", hint=hint)
    sought = [name for name, values in lists.items() if len(values) == 1 and MOST.fullmatch(values[0])]
    if len(sought) > 1:
        raise UserError("-L: the largest of one name can be found, not of several", hint="give the others values")
    made = []
    for combination in product(*lists.values()):
        chosen = dict(zip(lists, combination, strict=True))
        typed = tuple(words)
        for name, value in chosen.items():
            if name not in sought:
                typed = _with_value(typed, name, value)
        made.append((chosen, typed))
    return made


def _exit_code(ends: list[Ended], variants: list[Variant]) -> int:
    """Return the command's own code of a single variant; of several 1 if one failed other than by lack of memory."""
    last = ends[-1]
    for end, variant in zip(ends, variants, strict=True):
        if end.lost and variant.outcome != "ok":
            aside(f"gcprof: before that, rank {end.lost} ended without a word; it had used no GPU")
    if last.is_stopped and not variants[-1].processes:
        where = "".join(f"; {text}" for text in last.stopped)
        aside(f"gcprof: it was ended before any process had used a GPU: there is no table{where}")
    if last.stopped_code:
        return last.stopped_code
    for end, variant in zip(ends, variants, strict=True):
        if not (variant.processes or end.exit_code or end.lost):
            why = f": {end.no_device[0]}" if end.no_device else ""
            aside(f"gcprof: no process of this command used a GPU{why}, so nothing is known of its memory")
            return NO_GPU
    if len(ends) == 1:
        is_ours = any(process.outcome == "skipped" for process in variants[0].processes)  # it ended the script
        return 0 if is_ours else last.exit_code or int(variants[0].outcome not in ("ok", "skipped"))
    return int(any(variant.outcome not in ("ok", "out_of_memory", "skipped") for variant in variants))


def run(
    device: Annotated[str, typer.Option(help="auto, cpu (no GPU is seen), or cuda.")] = "auto",
    axes: Axes = None,
    strategies: Annotated[
        str | None, typer.Option(help="Run it for each, beside none, which is the script as it is.")
    ] = None,
    module: Module = None,
    steps: Annotated[int, typer.Option(min=2, help="End after so many optimizer steps.")] = 20,
    rounds: Annotated[
        int, typer.Option(min=0, help="Rounds over all strategies for their time, each in fresh processes.")
    ] = 3,
    batches: Batches = None,
    limit: Annotated[float | None, typer.Option(min=0.1, help="End each run after so many seconds.")] = None,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Keep what it writes to files: that of the last run.")
    ] = False,
    fail_on: FailOn = None,
    output: options.RunFolder = None,
    json: options.JsonOrTable = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a training command as it is, on the device that is here: memory by phase, time and gradients by strategy.

    A word FILE.py without a colon begins the command too: gcprof run train.py --batch-size 64

    Example: gcprof run --strategies none,all -- python train.py --batch-size 64
    """
    import msgspec

    from profiler.scripts.launch import measure
    from profiler.scripts.report import Asked
    from profiler.views.tables.script import Live, tables

    hidden = {"CUDA_VISIBLE_DEVICES": ""} if one_of(device, DEVICES, flag="--device") == "cpu" else {}
    names = tuple(dict.fromkeys(("none", *(name for name in strategies_of(strategies) if name))))
    _refuse_module(module, has_strategies=names != ("none",))
    conclusion = Conclusion(output, fail_on, json=json)
    asked = Asked(
        words=SCRIPT.get(), steps=steps, batches=batches, limit_seconds=limit, module=module, variables=hidden,
        allow_writes=allow_writes,
    )  # fmt: skip
    tell = aside if not quiet else lambda text: None
    sessions: list[Session] = []
    for values, words in filled(axes or [], asked.words):
        if _sought(values, words):
            raise UserError("-L NAME max is found by a rehearsal", hint="gcprof rehearse -L 'batch max' -- COMMAND")
        asked = msgspec.structs.replace(asked, words=words)
        first = {"on_line": Live(tell, has_end=True), "stdout": 2 if json else None}
        sessions.append(measure(asked, names, rounds=rounds, values=values, say=tell, **first))
        if not json:
            say(*tables(sessions[-1].variants))
        if sessions[-1].last.is_stopped:
            break
    variants = [variant for session in sessions for variant in session.variants]
    code = _measured_code(sessions, variants, wants_gpu=device == "cuda")
    conclusion.end(variants, code, is_ended=sessions[-1].last.is_stopped)


def _measured_code(sessions: list[Session], variants: list[Variant], *, wants_gpu: bool) -> int:
    """Return the command's own code of a single variant; of several 1 if one failed, or has other gradients."""
    if code := sessions[-1].last.stopped_code:
        return code
    untold = ""
    if any(not variant.processes for variant in variants):
        untold = "no process of this command trained or called a module of torch"
    elif wants_gpu and any(variant.gpu_bytes is None for variant in variants):
        untold = "no process of this command used a GPU"
    if untold and not any(session.exit_code for session in sessions):
        aside(f"gcprof: {untold}, so nothing is known of its memory")
        return NO_GPU
    if len(variants) == 1 and variants[0].words["strategy"] == "none":
        return sessions[0].exit_code
    wrong = [variant for variant in variants if variant.outcome not in ("ok", "out_of_memory", "skipped")]
    return int(bool(wrong) or any(one.equality is not None and one.equality.verdict == "differ" for one in variants))


TRIPPED = 5
SCHEMA = 1
ON_SCRIPT = "on a script's run"


class Conclusion:
    """What is made of a command's variants: a run folder, the verdict of --fail-on, a document, the next command.

    Raises UserError for a folder that is there and for limits that cannot be read, before the command runs.
    """

    def __init__(self, output: Path | None, fail_on: str | None, *, json: bool) -> None:
        from profiler.runs import RESULTS, store
        from profiler.scripts import records

        store.refuse_existing(output or RESULTS / "new")
        self._output, self._json, self._started = output, json, datetime.now(UTC)
        self._limits = records.parse_limits(fail_on) if fail_on is not None else ()

    def end(self, variants: Sequence[Variant], code: int, *, is_ended: bool) -> NoReturn:
        """Write, print and end the command. There is no folder if no process of it used a GPU. Raises UserError."""
        from profiler.scripts import records

        used = [bool(variant.processes) for variant in variants]
        folder = keep(variants, output=self._output, started=self._started) if any(used) else None
        texts = records.exceeded(variants, self._limits)
        for text in texts:
            aside(f"gate: {text}")
        if self._limits and not texts and all(used):
            aside("gate: nothing is over the limits")
        code = TRIPPED if texts else code
        if self._json:
            status = "failed" if not any(used) else "partial" if is_ended or not all(used) else "complete"
            name = folder.name if folder else None
            say_json({"schema": SCHEMA, "run": name, "status": status, "exit_code": code, "variants": variants})
        if folder:
            aside(f"wrote {folder / 'trials.jsonl'}")
            next_command("gcprof", "explain", str(folder))
        raise typer.Exit(code)


def keep(variants: Sequence[Variant], *, output: Path | None, started: datetime) -> Path:
    """Write the run folder of a command's variants; return it. Raises UserError."""
    from profiler.core.case import encode
    from profiler.runs import RESULTS, store
    from profiler.scripts import records
    from profiler.workflows.spec import command_line

    lines = records.records(variants, started=started.isoformat(timespec="seconds"))
    manifest = store.Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command_line(),
        plan=records.plan(lines),
        environment=records.environment(variants[0]),
        sources={name: text for variant in variants for name, text in records.sources(variant.command).items()},
    )
    folder = output or store.new_folder(RESULTS, [records.command_name(variants[0].command).partition(".")[0]])
    store.save(folder, manifest=encode(manifest), trials=b"".join(encode(line) + b"\n" for line in lines))
    return folder


def variants_of(run: Run) -> tuple[Variant, ...] | None:
    """Return the variants of a script's run; None if it is a run of models. Raises UserError (4) if it is both."""
    from profiler.scripts import records

    scripts = [record for record in run.records if records.is_script(record)]
    if not scripts:
        if any(trial.case.command for trial in run.manifest.plan):
            hint = "run the command again"
            raise UserError(f"'{run.folder}' is of a script, and has no records", hint=hint, exit_code=4)
        return None
    if len(scripts) < len(run.records):
        hint = "show each of the runs that it was merged from"
        raise UserError(f"'{run.folder}' holds records of scripts and of models", hint=hint, exit_code=4)
    return records.variants(scripts)


def named_script(target: str | None) -> tuple[Run, tuple[Variant, ...]] | None:
    """Return a script's run by its name, for verbs that take a model or a run; None if it is no such run."""
    from profiler.runs import is_run, run_folder
    from profiler.runs.store import load

    if target is None or not is_run(target):
        return None
    run = load(run_folder(target))
    variants = variants_of(run)
    if variants is None:
        return None
    for warning in run.warnings:
        aside(f"warning: {warning}")
    return run, variants


def compared_scripts(loaded: Sequence[tuple[str, Run]]) -> tuple[Side, ...]:
    """Return the sides of a comparison of scripts; none if the runs are of models. Raises UserError (4) for both."""
    from profiler.scripts.records import Side

    read = [(word, run, variants_of(run)) for word, run in loaded]
    of_models = [word for word, _, variants in read if variants is None]
    sides = [
        Side(name=word, variants=found, sources=run.manifest.sources) for word, run, found in read if found is not None
    ]
    if sides and of_models:
        message = f"'{of_models[0]}' is of models, and '{sides[0].name}' of a script"
        raise UserError(message, hint="compare a script's run with another one of it", exit_code=4)
    return tuple(sides)


def under(variants: Sequence[Variant], strategies: str | None) -> tuple[Variant, ...]:
    """Return the variants under these strategies, all without any. Raises UserError for one that the run lacks."""
    from profiler.core.case import split_choices

    if strategies is None:
        return tuple(variants)
    named = [str(choice) for choice in split_choices(strategies)]
    there = list(dict.fromkeys(variant.words.get("strategy", "none") for variant in variants))
    for name in named:
        if name not in there:
            raise UserError(f"'{name}' is not in this run", hint=f"it has {', '.join(there)}")
    return tuple(variant for variant in variants if variant.words.get("strategy", "none") in named)
