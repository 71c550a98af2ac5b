"""gcprof run, rehearse, predict and reproduce: a table of strategies, measured, rehearsed, estimated or published."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from profiler.cli import options
from profiler.cli.output import (
    Terminal,
    aside,
    folded,
    interruptible,
    next_command,
    say,
    say_bytes,
    say_json,
    shard_text,
)
from profiler.core.errors import UserError, one_of, refuse_idle
from profiler.core.units import count_text, parse_bytes, parse_memory
from profiler.workflows.spec import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from profiler.analysis.rows import Row
    from profiler.core.record import Record
    from profiler.runs.store import Run
    from profiler.workflows.reproduce import Reproduced, System
    from profiler.workflows.run import Ran
    from profiler.workflows.spec import CheckedRequest

OWN_OPTIMIZER = "GCP009"  # the note that the model brings its own optimizer
SMALLER = 0.8  # of the peak: what the next command is to fit, where checkpointing did not lower it
TOLD = ("batch_size", "optimizer", "device", "parallel", "ranks")  # in every line of a dry run


def run(
    words: Annotated[Request, options.Words(options.RUN, model=options.Models)] = Request(),
    config: Annotated[Path | None, typer.Option(help="A sweep file (TOML); options given here win over it.")] = None,
    output: options.RunFolder = None,
    resume: Annotated[
        str | None, typer.Option(help="Continue this interrupted run: a folder, a name, or last.")
    ] = None,
    new_run: Annotated[
        bool, typer.Option("--new-run", help="With --resume: measure that run anew, with these options.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="Where trials run: local, or ENGINE:option=value; see the docs on clusters.")
    ] = "local",
    devices: Annotated[
        str | None, typer.Option(help="GPUs to run on at once, one trial on each: all, or 0,1. [default: one]")
    ] = None,
    allow_parallel: Annotated[
        bool,
        typer.Option("--allow-parallel", help="With --devices: a GPU that is named twice runs two trials at once."),
    ] = False,
    shard: Annotated[
        str | None, typer.Option(help="Only this shard of the sweep: 2/8. `gcprof merge` merges the shards.")
    ] = None,
    exclusive: Annotated[
        str, typer.Option(help="If others use the device; error: exit code 3, --resume continues.")
    ] = "warn",
    json: options.JsonOrTable = False,
    quiet: options.Quiet = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the trials and what they cost, and run nothing.")
    ] = False,
) -> None:
    """Measure memory and time of a training step by strategy.

    Without strategies or segments, beside `none`: segments 1,2,4,8,16,32 of a chain of modules (mlp, mnist-cnn,
    cifar-resnet, dense-chain), else sqrt, all and selective. Without a model: mnist-cnn.

    Example: gcprof run mlp,mnist-cnn --segments 1..8
    """
    from profiler.workflows.resume import resume as resume_run
    from profiler.workflows.run import RunRequest
    from profiler.workflows.run import run as start_run

    request = RunRequest(
        words=words, config=config, output=output, resume=resume, anew=new_run,
        exclusive=one_of(exclusive, ("warn", "error"), flag="--exclusive") == "error",
        engine=engine, devices=devices, allow_parallel=allow_parallel, shard=shard,
    )  # fmt: skip
    request.check()
    if dry_run:
        idle = {"--exclusive": request.exclusive, "--json": json, "--resume": resume}
        refuse_idle(idle, "with --dry-run", hint="it measures nothing; leave one of them out")
    with interruptible(json=json):
        if dry_run:
            from profiler.workflows.run import dry_run as dry

            for line in dry(request, Terminal(), show=_print_trials):
                aside(line)
            return
        ran = (resume_run if resume else start_run)(request, Terminal(is_quiet=quiet))
        raise typer.Exit(print_run(ran, json=json))


def _print_trials(checked: CheckedRequest) -> None:
    """Print one line per trial."""
    from profiler.views.sanitize import plain
    from profiler.views.tables.columns import device_word
    from profiler.views.tables.progress import settings, varying

    more = [field for field in varying([trial.case for trial in checked.trials]) if field not in TOLD]
    encoding = sys.stdout.encoding or "utf-8"
    for trial in checked.trials:
        case = trial.case
        device = f"{'rehearsed on ' if case.is_rehearsed else ''}{device_word(case.device)}"
        words = [
            f"round {trial.round}", str(case.model), str(case.label), f"batch {case.batch_size}",
            str(case.optimizer), *settings(case, (*more, "parallel", "ranks")), device, "+".join(trial.passes),
            *(["only where the model calls checkpoints itself"] if trial.if_own else []),
        ]  # fmt: skip
        print(folded("  ".join(plain(word, encoding=encoding) for word in words), file=sys.stdout))


def print_run(ran: Ran, *, json: bool, is_kept: bool = True, is_look: bool = False) -> int:
    """Show a run, write its derived files and print the next command; return the exit code.

    The table is printed before any file is written; the JSON document, which holds the exit code, after them. Of a run
    that is not kept nothing is written; of a look whose model failed the folder is removed.
    """
    from msgspec import UNSET

    from profiler.analysis import progress, rows
    from profiler.runs import store
    from profiler.views.export import document
    from profiler.views.tables.columns import main
    from profiler.workflows.run import derive

    if ran.run is None:
        if json:
            say_bytes(document(None, [], status="complete", exit_code=ran.exit_code))
        return ran.exit_code
    run = ran.run
    is_over = progress.status(run.manifest.plan, run.records) == "complete"
    is_refused = is_over and all(progress.is_refusal(record) for record in run.records)
    if not json and not is_refused:
        say(*main(rows.rows(run.records)))
    failed, lines = derive(run) if is_kept and not is_refused else (0, [])
    code = failed or ran.exit_code
    if json:
        name = run.folder.name if is_kept and not (is_refused and is_look) else None
        say_bytes(document(name, run.records, status=run.status, exit_code=code))
    if is_refused:
        _say_refused(run)
        if is_look:
            store.remove(run.folder)
        elif is_kept:
            aside(f"wrote {run.folder / 'trials.jsonl'}")
        return code
    for line in lines:
        aside(line)
    if run.manifest.words is not UNSET and "optimizer" not in run.manifest.words:
        say_assumed(run.records)
    if is_kept:
        _say_next(ran, run)
    else:
        next_command("gcprof", "explain", str(run.manifest.plan[0].case.model))
    return code


def say_assumed(records: Iterable[Record | Row]) -> None:
    """Print that SGD was assumed, where no optimizer was named and the model brings none."""
    from profiler.workflows.spec import assumed_text

    for record in records:
        static = record.readings.static_bytes or {}
        if static.get("gradients") and not any(note.code == OWN_OPTIMIZER for note in record.notes):
            aside(f"note: {assumed_text(static['gradients'])}")
            return


def _say_refused(run: Run) -> None:
    """Print why there is no table: no model completed its step without checkpointing."""
    from profiler.analysis import progress

    cases = {*progress.rows_of(run.manifest.plan, run.records)} - {record.case for record in run.records}
    rest = f"; {count_text(len(cases), 'other row')} not run" if cases else ""
    why = "the step failed without checkpointing"
    if all(record.outcome == "skipped" for record in run.records):
        details = "; ".join(dict.fromkeys(record.detail for record in run.records if record.detail))
        why = f"not even the step without checkpointing can be run as requested ({details})"
    aside(f"{why}, so there is nothing to compare{rest}")


def _say_next(ran: Ran, run: Run) -> None:
    from profiler.analysis import progress, rows
    from profiler.views.tables.details import has_plane
    from profiler.workflows.resume import resume_words

    lost = sum(record.outcome in progress.LOST for record in rows.latest(run.records))
    again = resume_words(run, engine=ran.engine, data=ran.data_directory)
    if lost:
        aside(f"note: {count_text(lost, 'trial')} crashed or timed out; {shlex.join(again)} measures such trials again")
    if progress.status(run.manifest.plan, run.records) == "partial":
        next_command(*again)
    elif run.manifest.shard:
        aside(shard_text(run))
    elif all(record.readings.peak_bytes is None for record in run.records):
        next_command("gcprof", "show", str(run.folder))
    elif has_plane(rows.rows(run.records)) or run.manifest.plan[0].case.ranks:
        kind = "memory" if run.manifest.plan[0].case.ranks else "heat"
        next_command("gcprof", "plot", str(run.folder), "--kind", kind, "-o", f"{kind}.png")
    else:
        next_command("gcprof", *_after(run))


def _after(run: Run) -> list[str]:
    """Return `explain` of the row with the lowest peak, or `fit` of the model where no row is below `none`."""
    from msgspec import UNSET

    from profiler.core.case import Choice
    from profiler.core.gpu_specs import parse
    from profiler.core.plan_file import strategy_label
    from profiler.core.units import KIB
    from profiler.workflows.resume import needs_naming
    from profiler.workflows.spec import flag

    peaks = {record.case.label: record.readings.peak_bytes for record in run.records if record.readings.peak_bytes}
    case, whole = run.manifest.plan[0].case.baseline, peaks.pop(Choice("none"), None)
    best = min(peaks, key=lambda label: peaks[label] or 0, default=Choice("none"))
    has_fallen = whole is None or (peaks.get(best) or 0) < whole
    typed = {} if run.manifest.words is UNSET else run.manifest.words
    kept = [name for name in options.STEP if name in typed]
    kept = [name for name in kept if name != "accumulate" or has_fallen]  # fit makes its own micro-batches
    words = [str(case.model), *(part for name in kept for part in (flag(name), str(typed[name]).partition(",")[0]))]
    words += ["--device", parse(case.device).name] if case.is_rehearsed else []
    if has_fallen and not needs_naming(run):
        words = [str(run.folder)]
    if has_fallen or whole is None:
        is_traced = best in peaks and best.name != "compile-budget"  # it makes its own kernels
        return ["explain", *words, *(["--strategies", strategy_label(best)] if is_traced else [])]
    return ["fit", *words, "--memory", f"{whole * SMALLER / KIB:.0f}KiB", "--context", "0"]


def predict(
    words: Annotated[
        Request, options.Words((*options.SWEEP, "routing", "calibrate"), model=options.Models)
    ] = Request(),
    device: Annotated[str, typer.Option(help="GPUs: t4, a100-80, rtx-4090, ...; cuda, an H100; or cpu")] = "cuda",
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Also rehearse every case, and show the prediction's error.")
    ] = False,
    output: options.RunFolder = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the run in a folder below results/.")] = False,
    json: options.JsonOrTable = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict what `gcprof run` would measure, without the device.

    The bytes on a GPU are rehearsed, by PyTorch's own CUDA code, where torch can do that: on Linux, with its CUDA
    build. Elsewhere they are estimated, as they are for cpu and fake:t4, and with --routing and --calibrate.

    Example: gcprof predict transformer --strategies all,selective --device h100
    """
    from profiler.core.gpu_specs import to_rehearse
    from profiler.workflows.run import RunRequest, run
    from profiler.workflows.stages import for_gpus

    is_kept = keep or output is not None
    terminal = Terminal(is_quiet=quiet, names_logs=is_kept)
    if rehearse and (words.calibrate or device in ("cuda", "cpu")):
        raise UserError("--rehearse is for one GPU, and calibrates nothing", hint="name it: --device h100")
    is_estimated = bool(words.calibrate) or words.routing is not None
    device = to_rehearse(device) if rehearse else for_gpus(device, say=terminal.say, is_estimated=is_estimated)
    words = msgspec.structs.replace(words, device=device, predict=rehearse or None)
    with interruptible(json=json), TemporaryDirectory(prefix="gcprof-") as folder:
        place = output if is_kept else Path(folder) / "run"
        request = RunRequest(words=words, output=place, is_kept=is_kept)
        raise typer.Exit(print_run(run(request, terminal), json=json, is_kept=is_kept))


def rehearse(
    words: Annotated[Request, options.Words(options.SWEEP, model=options.Models)] = Request(),
    device: Annotated[str, typer.Option(help="GPUs: t4, a100-80, h100, rtx-4090, ...")] = "h100",
    memory: Annotated[
        str | None, typer.Option(help="Memory of the GPU: 11GiB, or 60% of its own. [default: all of it]")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="Memory CUDA takes besides PyTorch's, as 500MiB. [default: nothing]")
    ] = None,
    cudnn_workspace: Annotated[
        str | None, typer.Option(help="Workspace cuDNN takes for a convolution, as 64MiB. [default: nothing]")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="A run measured on this GPU: sets the two options above where they are not given."),
    ] = None,
    output: options.RunFolder = None,
    json: options.JsonOrTable = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a training step with PyTorch's own CUDA code, but without the GPU: its memory, to the byte.

    Example: gcprof rehearse hf:llama --strategies all --precision bf16
    """
    from profiler.core.gpu_specs import to_rehearse
    from profiler.workflows.run import RunRequest, run
    from profiler.workflows.stages import calibrated

    if memory is not None:
        parse_memory(memory, flag="--memory")
    context = None if context == "0" else context  # a model's steps have none, if it is not asked for
    for flag, size in {"--context": context, "--cudnn-workspace": cudnn_workspace}.items():
        if size is not None:
            parse_bytes(size, flag=flag)
    sizes = {"memory": memory, "context": context, "cudnn_workspace": cudnn_workspace}
    device = calibrated(device, calibrate, **sizes) if calibrate else to_rehearse(device, **sizes)
    words = msgspec.structs.replace(words, device=device)
    request = RunRequest(words=words, output=output)
    terminal = Terminal(is_quiet=quiet, names_logs=output is not None)
    with interruptible(json=json):
        raise typer.Exit(print_run(run(request, terminal), json=json, is_look=output is None))


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A published system; without it, all are listed.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Run the published size on a CPU too.")] = False,
    predict: Annotated[
        bool, typer.Option("--predict", help="Run nothing: predict the published size, for a v100 or --device.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or cuda:N; with --predict also t4, h100, ... [default: auto]")
    ] = None,
    output: options.RunFolder = None,
    before: Annotated[
        list[str] | None, typer.Option("--from", help="Read this run instead of running; may be repeated.")
    ] = None,
    json: options.JsonOrTable = False,
) -> None:
    """Run a published system, and show its figures beside ours.

    It has its full size on CUDA, and is reduced on a CPU.

    Example: gcprof reproduce three-policies
    """
    from profiler.core.gpu_specs import to_predict
    from profiler.workflows import reproduce as workflow

    if name is None:
        if any((full, predict, device, output, before, json)):
            raise UserError("reproduce needs a name for these options", hint=f"one of {', '.join(workflow.names())}")
        from profiler.views.tables import Table
        from profiler.views.tables import words as column

        systems = [workflow.find(name) for name in workflow.names()]
        titles = column("what is published", "", [system.title for system in systems])
        say(Table(columns=(column("name", "", workflow.names()), titles)))
        next_command("gcprof", "reproduce", systems[0].name)
        return
    system = workflow.find(name)
    if before:
        given = {"--full": full, "--predict": predict, "--device": device, "--output": output}
        refuse_idle(given, "with --from", hint="it runs nothing; leave one of them out")
        if json and len(before) > 1:
            raise UserError("--json prints one run", hint="give --from once")
        for word in before:
            _print(workflow.read(system, word, Terminal()), json=json)
        return
    if predict:
        if system.engine != "local":
            raise UserError(f"{name} cannot be predicted: a Trainer does its steps", hint="leave out --predict")
        device = to_predict(device or "v100")
    with interruptible(json=json):
        reproduced = workflow.reproduce(system, Terminal(), full=full, device=device, output=output)
        _print(reproduced, json=json)
        raise typer.Exit(_keep(system, reproduced))


def _print(reproduced: Reproduced, *, json: bool) -> None:
    from profiler.views.tables import comparison

    figures = reproduced.reproduction
    if json:
        say_json({"run": reproduced.run.folder.name, "exit_code": reproduced.exit_code, "reproduction": figures})
    else:
        say(comparison.published_table(figures))


def _keep(system: System, reproduced: Reproduced) -> int:
    """Write the table into the run's folder; return the exit code."""
    from profiler.views.export import markdown, write_whole
    from profiler.views.tables import comparison

    folder = reproduced.run.folder
    text = markdown([comparison.published_table(reproduced.reproduction)]).encode()
    aside(f"wrote {write_whole(folder / 'derived' / 'reproduction.md', text, force=True)}")
    is_partial = system.engine == "local" and reproduced.run.status == "partial"
    next_command("gcprof", *(("run", "--resume") if is_partial else ("show",)), str(folder))
    return reproduced.exit_code
