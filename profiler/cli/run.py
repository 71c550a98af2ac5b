"""`gcprof run`: the words of a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import completion
from profiler.cli.carry import start
from profiler.cli.output import one_of, say_failure
from profiler.cli.placement import Where
from profiler.cli.resume import resume as go_on
from profiler.cli.signals import Interrupted, heeded
from profiler.core.errors import UserError

LONGEST = 1_000_000  # seconds of a stage: eleven days


def run(
    model: Annotated[
        str | None,
        typer.Option(
            help="Models, as NAME:option=value,...; `gcprof models` lists them.", autocompletion=completion.models
        ),
    ] = None,
    segments: Annotated[str | None, typer.Option(help="Numbers of segments: 1,2,4 or 1..32 or 1..32:x2.")] = None,
    strategies: Annotated[
        str | None,
        typer.Option(help="Other strategies; `gcprof strategies` lists them.", autocompletion=completion.strategies),
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam or adamw. [default: sgd]")] = None,
    batch_size: Annotated[str | None, typer.Option(help="Samples a micro-batch. [default: the model's]")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16, fp16, amp-bf16, amp-fp16; several make an axis. [default: fp32]")
    ] = None,
    accumulate: Annotated[str | None, typer.Option(help="Micro-batches a step: 4 or 1,2,4. [default: 1]")] = None,
    parallel: Annotated[
        str | None, typer.Option(help="How the ranks train together: ddp or fsdp2. [default: ddp]")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Processes that train together, each with a batch and a device. [default: 1]")
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(help="The blocks by name, as 'model.layers.*'; `gcprof blocks` shows those found.")
    ] = None,
    repair_batchnorm: Annotated[
        bool | None, typer.Option("--repair-batchnorm", help="Set BatchNorm's momentum so that its statistics agree.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N. [default: auto]")] = None,
    gpus: Annotated[
        str | None, typer.Option(help="Kinds of GPU, each a device: a100,h100. For engines that have them: ray.")
    ] = None,
    predict: Annotated[
        bool | None, typer.Option("--predict", help="Predict every case besides, and show the error.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder with the MNIST IDX files; without it the batch is synthetic.")
    ] = None,
    verify: Annotated[
        str | None, typer.Option(help="Equality of gradients: auto, off, or strict (to the bit). [default: auto]")
    ] = None,
    keep_grads: Annotated[
        bool | None, typer.Option("--keep-grads", help="Zero gradients in place: they persist between steps.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds over all cases, each in fresh processes. [default: 3]")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Timed steps a round, exactly. [default: 5 or more, until the median is sure]")
    ] = None,
    precision_target: Annotated[
        str | None, typer.Option(help="How sure each round's median shall be: its 95 % interval. [default: 2%]")
    ] = None,
    max_samples: Annotated[int | None, typer.Option(help="Timed steps a round at most. [default: 100]")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Seconds of timed steps a round, after 5 of them. [default: 2]")
    ] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps before them, after a first one. [default: 1]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights and batch. [default: 0]")] = None,
    config: Annotated[Path | None, typer.Option(help="A sweep file (TOML); options given here win over it.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The run folder; it must not exist yet.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on with this interrupted run: a folder, a name, or last.")
    ] = None,
    new_run: Annotated[
        bool, typer.Option("--new-run", help="With --resume: measure that run anew, in a folder of its own.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="Where the trials run: local, or ENGINE:option=value; the docs' page on clusters.")
    ] = "local",
    devices: Annotated[
        str | None, typer.Option(help="GPUs to run on at once, one trial on each: all, or 0,1. [default: one]")
    ] = None,
    allow_parallel: Annotated[
        bool, typer.Option("--allow-parallel", help="With --devices: a GPU that is named twice runs two at once.")
    ] = False,
    shard: Annotated[
        str | None, typer.Option(help="Only this part of the sweep: 2/8. `gcprof merge` makes one run of the parts.")
    ] = None,
    stage_limit: Annotated[float, typer.Option(help="Seconds that a stage of a trial may take.")] = 600.0,
    exclusive: Annotated[
        str, typer.Option(help="Where others use the device: warn, or error (end with 3; --resume goes on).")
    ] = "warn",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the trials and what they cost, and run nothing.")
    ] = False,
) -> None:
    """Measure memory and time of a model's training step under checkpointing strategies.

    Without a strategy or segments: segments 1,2,4,8,16,32 beside `none`. Without a model: mnist-cnn.

    Example: gcprof run --model mlp,mnist-cnn --segments 1..8
    """
    from profiler.request.spec import Request

    words = Request(
        model=model, segments=segments, strategies=strategies, optimizer=optimizer, batch_size=batch_size,
        device=device, gpus=gpus, data=data, verify=verify, keep_grads=keep_grads, rounds=rounds, samples=samples,
        warmup=warmup, seed=seed, precision=precision, accumulate=accumulate, parallel=parallel, ranks=ranks,
        blocks=blocks, repair_batchnorm=repair_batchnorm, predict=predict, precision_target=precision_target,
        max_samples=max_samples, max_seconds=max_seconds,
    )  # fmt: skip
    if not 0 < stage_limit <= LONGEST:
        raise UserError(f"--stage-limit cannot be {stage_limit:g}", hint=f"seconds, more than 0, up to {LONGEST:,}")
    is_exclusive = one_of(exclusive, ("warn", "error"), flag="--exclusive") == "error"
    if dry_run and is_exclusive:
        raise UserError("--exclusive has no effect with --dry-run", hint="it measures nothing; leave one of them out")
    if dry_run and json:
        raise UserError("--json has no effect with --dry-run", hint="it measures nothing; leave one of them out")
    if resume and ((output and not new_run) or dry_run or shard):
        flag = "--dry-run" if dry_run else "--shard" if shard else "--output"
        raise UserError(f"{flag} has no effect with --resume", hint="a run goes on in its own folder, by its own plan")
    if new_run and not resume:
        raise UserError("--new-run has no effect without --resume", hint="without it, every run is a new one")
    where = Where(engine=engine, devices=devices, allow_parallel=allow_parallel, shard=shard)
    where.check(device=device)
    try:
        with heeded():
            code = (
                go_on(
                    resume, words, config=config, output=output, limit=stage_limit, json=json, anew=new_run,
                    exclusive=is_exclusive, where=where,
                )
                if resume
                else start(
                    words, config=config, output=output, limit=stage_limit, json=json, dry_run=dry_run,
                    exclusive=is_exclusive, where=where,
                )
            )  # fmt: skip
    except Interrupted as interrupted:
        code = interrupted.exit_code  # before there was anything to keep
        if json:
            say_failure(code)
    raise typer.Exit(code)
