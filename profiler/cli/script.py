"""gcprof rehearse -- COMMAND: the user's own training command on GPUs that are not here."""

from __future__ import annotations

import sys
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from profiler.cli import options
from profiler.cli.output import COLOR, SCRIPT, aside, paper, say_json
from profiler.core.errors import UserError

if TYPE_CHECKING:
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
    for gpu, values in product(gpus, _values(axes or [], words)):
        asked = launch.Asked(
            words=tuple(_filled(word, values) for word in words), gpus=gpu, steps=steps, batches=batches,
            limit_seconds=limit, allow_writes=allow_writes,
        )  # fmt: skip
        live = view.Live(aside if not quiet else lambda text: None)
        end = launch.run(asked, on_line=live, stdout=2 if json else None)
        variant = Variant.of(end, gpu=gpu, values=values, is_cut=bool(steps or batches))
        if variant.outcome == "out_of_memory" and not end.interrupted:
            if not quiet:
                aside("out of memory: once more without a limit of memory, to see what it needs")
            whole = launch.run(launch.unlimited(asked), on_line=lambda line: None, stdout=2)
            variant = variant.with_need(whole)
            end = whole if whole.interrupted else end
        for torch in end.unverified:
            aside(f"gcprof: unverified on torch {torch}")
        variants.append(variant)
        ends.append(end)
        if not json:
            view.write(variant, file=sys.stdout, width=paper().width, color=COLOR.get())
        if end.interrupted or end.timed_out:
            break
    code = _exit_code(ends, variants)
    if json:
        say_json(_document(variants, code))
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


def _values(axes: list[str], words: list[str]) -> list[dict[str, str]]:
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


def _filled(word: str, values: dict[str, str]) -> str:
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
        return last.exit_code
    return int(any(variant.outcome not in ("ok", "out_of_memory") for variant in variants))


def _document(variants: list[Variant], code: int) -> dict[str, Any]:
    is_whole = all(variant.outcome in ("ok", "out_of_memory") for variant in variants)
    status = "complete" if is_whole and code not in (TIMED_OUT, 130, 143) else "partial" if variants else "failed"
    return {"schema": SCHEMA, "run": None, "status": status, "exit_code": code, "variants": variants}
