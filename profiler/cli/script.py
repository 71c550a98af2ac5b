"""gcprof rehearse -- COMMAND: the user's own training command on GPUs that are not here."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from profiler.cli import options
from profiler.cli.output import COLOR, SCRIPT, aside, paper, say_json
from profiler.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.core.rehearsed_gpu import RehearsedGpu
    from profiler.scripts.launch import Ended
    from profiler.scripts.report import Variant

NO_GPU, TIMED_OUT = 3, 124
SCHEMA = 1


def rehearse(
    device: Annotated[
        str, typer.Option(help="GPUs to run it on, one kind after the other: t4, h100:8 (eight), a100-40,t4")
    ] = "h100",
    axes: Annotated[
        list[str] | None, typer.Option("-L", "--list", help="Run it for each value: 'batch 16,32' fills in {batch}.")
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="Run it for each: applied to the model that it trains; none is the script as it is.",
            autocompletion=options.propose_strategies,
        ),
    ] = None,
    module: Annotated[
        str | None, typer.Option(help="Which model or part of it: a class, a variable, a name in it; * matches all.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each GPU, instead of its own: 11GiB.")] = None,
    context: Annotated[str, typer.Option(help="What CUDA's context and libraries take of it.")] = "600MiB",
    steps: Annotated[int | None, typer.Option(min=1, help="End after so many optimizer steps.")] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="End every DataLoader after so many batches.")] = None,
    limit: Annotated[float | None, typer.Option(min=0.1, help="End after so many seconds.")] = None,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Keep what it writes to files: saved values are garbage.")
    ] = False,
    json: options.JsonOrTable = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a training command as it is, by PyTorch's own CUDA code, on GPUs that are not here: its memory by phase.

    A word FILE.py without a colon begins the command too: gcprof rehearse train.py --batch-size 64

    Example: gcprof rehearse --device t4 -- python train.py --batch-size 64
    """
    from profiler.scripts import launch
    from profiler.scripts.report import Variant
    from profiler.views.tables import script as view

    words = [*SCRIPT.get()]
    gpus = [_gpus(word, memory=memory, context=context) for word in device.split(",")]
    variants: list[Variant] = []
    ends: list[Ended] = []
    if module is not None and not strategies:
        raise UserError("--module has no effect without --strategies", hint="--strategies none,all --module 'GPT*'")
    for gpu, values, strategy in product(gpus, values_of(axes or [], words), strategies_of(strategies)):
        asked = launch.Asked(
            words=tuple(filled(word, values) for word in words), gpus=gpu, steps=steps, batches=batches,
            limit_seconds=limit, allow_writes=allow_writes, strategy=strategy, module=module,
        )  # fmt: skip
        live = view.Live(aside if not quiet else lambda text: None)
        end = launch.run(asked, on_line=live, stdout=2 if json else None)
        if end.needs:
            raise UserError(end.needs, hint="`none` needs nothing there")
        variant = Variant.of(end, gpu=gpu, values=values, is_cut=bool(steps or batches), strategy=strategy)
        if variant.outcome == "out_of_memory" and not end.interrupted:
            if not quiet:
                aside("out of memory: once more without a limit of memory, to see what it needs")
            whole = launch.run(launch.unlimited(asked), on_line=lambda line: None, stdout=2)
            variant = variant.with_need(whole)
            end = whole if whole.interrupted else end
        variants.append(variant)
        ends.append(end)
        if not json:
            view.write(variant, file=sys.stdout, width=paper().width, color=COLOR.get())
        if end.interrupted or end.timed_out:
            break
    if len(variants) > 1 and not json:
        view.write_summary(variants, file=sys.stdout, width=paper().width, color=COLOR.get())
    code = _exit_code(ends, variants)
    if json:
        say_json(document(variants, code))
    raise typer.Exit(code)


def _gpus(word: str, *, memory: str | None, context: str) -> RehearsedGpu:
    """Return the GPUs that `h100:8` asks for. Raises UserError."""
    from profiler.core import rehearsed_gpu
    from profiler.core.case import Choice
    from profiler.core.gpu_kinds import REHEARSE

    name, _, count = word.partition(":")
    if count and not (count.isdecimal() and 1 <= int(count) <= 16):
        raise UserError(f"--device: '{word}' asks for {count} GPUs", hint="1 to 16: h100:8")
    is_none = context.rstrip("BGIKMTbgikmt") == "0"  # 0, 0MiB
    sizes = {"memory": memory, "context": None if is_none else context}
    asked = Choice.of(REHEARSE + name, {size: text for size, text in sizes.items() if text is not None})
    one = rehearsed_gpu.of_device(rehearsed_gpu.resolve(asked))
    return msgspec.structs.replace(one, count=int(count or 1))


def strategies_of(text: str | None) -> list[str | None]:
    """Return the strategies in canonical form, each once; None alone where none are asked for. Raises UserError."""
    from profiler.core import catalogue, plan_file
    from profiler.core.case import Choice, split_choices
    from profiler.training.strategies import TABLE

    if text is None:
        return [None]
    choices = [catalogue.resolve(choice, TABLE, what="strategy") for choice in split_choices(text)]
    if "own" in choices:
        raise UserError("--strategies own is none: a script is run with its own checkpoints", hint="leave it out")
    named = [Choice.of("plan", {"file": "plan.json"}) if choice == "plan" else choice for choice in choices]
    for choice in named:
        if choice.name == "plan":
            plan_file.read(Path(choice.options["file"]))
    return [str(choice) for choice in dict.fromkeys(named)]


def values_of(axes: list[str], words: list[str]) -> list[dict[str, str]]:
    """Return the values of each variant by name: the product of all lists. Raises UserError."""
    lists: dict[str, list[str]] = {}
    for axis in axes:
        name, _, values = axis.partition(" ")
        if not values or not name.isidentifier():
            raise UserError(f"-L '{axis}' is not a name and values", hint="-L 'batch 16,32,64', and {batch} in COMMAND")
        if not any(f"{{{name}}}" in word for word in words):
            raise UserError(f"-L {name}: the command has no {{{name}}}", hint=f"for example --batch-size {{{name}}}")
        lists[name] = values.split(",")
    return [dict(zip(lists, combination, strict=True)) for combination in product(*lists.values())]


def filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _exit_code(ends: list[Ended], variants: list[Variant]) -> int:
    """Return the command's own code of a single variant; of several 1 if one failed other than by lack of memory."""
    last = ends[-1]
    if (last.interrupted or last.timed_out) and not last.processes:
        aside("gcprof: it was ended before any process had used a GPU: there is no table")
    if last.interrupted:
        return 128 + last.interrupted
    if last.timed_out:
        return TIMED_OUT
    for end, variant in zip(ends, variants, strict=True):
        if not variant.processes and not end.exit_code:
            why = f": {end.no_device[0]}" if end.no_device else ""
            aside(f"gcprof: no process of this command used a GPU{why}, so nothing is known of its memory")
            return NO_GPU
    if len(ends) == 1:
        is_ours = any(process.outcome == "skipped" for process in variants[0].processes)  # it ended the script
        return 0 if is_ours else last.exit_code or int(variants[0].outcome not in ("ok", "skipped"))
    return int(any(variant.outcome not in ("ok", "out_of_memory", "skipped") for variant in variants))


def document(variants: Sequence[Variant], code: int) -> dict[str, Any]:
    is_whole = all(variant.outcome in ("ok", "out_of_memory", "skipped") for variant in variants)
    status = "complete" if is_whole and code not in (TIMED_OUT, 130, 143) else "partial" if variants else "failed"
    return {"schema": SCHEMA, "run": None, "status": status, "exit_code": code, "variants": variants}
