"""gcprof max-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from profiler.cli import options
from profiler.cli.options import Words
from profiler.cli.output import COMMAND, Terminal, aside, interruptible, next_command, say, say_bytes
from profiler.core.errors import refuse_idle
from profiler.core.units import bytes_text, bytes_word, parse_bytes, parse_memory
from profiler.request.spec import Request

if TYPE_CHECKING:
    from profiler.views.tables.max_batch import LargestBatch
    from profiler.workflows.max_batch import Largest, LargestBatches, MaxBatchRequest


def max_batch(
    words: Annotated[
        Request, Words(("optimizer", "precision", "accumulate", "blocks", "routing"), options.Model, has_switches=False)
    ],
    memory: Annotated[str, typer.Option(help="Memory it must fit in: 11GiB, 11G, or 60% of the device's.")],
    context: Annotated[
        str | None, typer.Option(help="Memory that CUDA itself takes. [default: as measured, or 600MiB]")
    ] = None,
    strategies: Annotated[str, typer.Option(help="Strategies besides `none` and the plan.")] = "all",
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure each at its largest batch.")] = True,
    device: options.PlannedDevice = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Find where PyTorch itself runs out, on a --device that is not there.")
    ] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the measurement. [default: 3]")] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the largest batch that fits a memory. It is found for each strategy and for a plan, with samples a second.

    It is predicted, then measured, also with one sample more.

    Example: gcprof max-batch transformer --memory 4GiB
    """
    from profiler.core.devices import parse, to_rehearse
    from profiler.request.spec import strategies_of
    from profiler.workflows.absent_gpus import planned
    from profiler.workflows.max_batch import ROUNDS, MaxBatchRequest
    from profiler.workflows.max_batch import max_batch as work

    limit = parse_memory(memory, flag="--memory")
    context_bytes = None if context is None else parse_bytes(context, flag="--context")
    device = to_rehearse(device or "h100") if rehearse else planned(device, say=aside, is_estimated=True)
    if not measure or parse(device or "").prefix:
        refuse_idle({"--rounds": rounds is not None}, "where no step is timed", hint="leave it out")
    words = msgspec.structs.replace(words, strategies="none", device=device)
    request = MaxBatchRequest(
        words=words, strategies=tuple(strategies_of(Request(strategies=strategies))), limit=limit,
        context_bytes=context_bytes, measure=measure, rounds=rounds or ROUNDS, typed=COMMAND.get(),
    )  # fmt: skip
    with interruptible(json=json):
        found = work(request, Terminal(is_quiet=quiet), show=_say_predicted)
        raise typer.Exit(_print(found, request, memory, json=json))


def _say_predicted(strategy: str, predicted: Largest, limit: int) -> None:
    from profiler.views.tables.max_batch import why_none

    need = predicted.one_sample
    if predicted.batch_size:
        aside(f"{strategy}: a batch of {predicted.batch_size:,} is predicted to fit {bytes_text(limit)}")
    elif need is None:
        aside(f"{strategy}: not even one sample is predicted to fit {bytes_text(limit)}")
    else:
        aside(why_none(strategy, need.nbytes, need.static_bytes, need.context_bytes))


def _print(largest: LargestBatches, request: MaxBatchRequest, memory: str, *, json: bool) -> int:
    """Print the largest batches within this memory and the next command; return the exit code."""
    from profiler.request.spec import optimizer_text
    from profiler.views.tables import max_batch as view
    from profiler.views.tables.evidence import device_word

    case, context_bytes, limit = largest.case, largest.context_bytes, largest.limit
    lines = [shown_batch(batch, case.device, context_bytes) for batch in largest.batches]
    if json:
        say_bytes(view.document(lines, model=str(case.model), limit=limit, context_bytes=context_bytes))
    else:
        setting = f"{case.model}, {optimizer_text(case)}, {case.precision}, {device_word(case.device)}"
        title = f"{setting}: the largest batch that fits {bytes_text(limit)}"
        if largest.context_source:
            title += f"; {view.context_text(context_bytes, largest.context_source)}"
        say(view.table(lines, title=title, limit=limit, context_bytes=context_bytes))
    last = largest.batches[-1]
    if last.batch_size and last.strategy.name == "plan":
        is_as_typed = isinstance(request.limit, int) and not context_bytes
        budget = memory if is_as_typed else bytes_word(limit - context_bytes)
        next_command("gcprof", "plan", *largest.words, "--batch-size", str(last.batch_size), "--budget", budget)
    else:
        next_command("gcprof", "explain", *largest.words, "--batch-size", str(last.batch_size or 1))
    return largest.exit_code


def shown_batch(batch: Largest, device: str, context_bytes: int) -> LargestBatch:
    """Return a strategy's largest batch for the table, with its first record and that of one sample more."""
    from profiler.core.record import bytes_needed, evidence
    from profiler.views.tables.max_batch import LargestBatch

    measured, beyond, one_sample = batch.measured[0] if batch.measured else None, batch.beyond, batch.one_sample
    kind = evidence(measured.case, measured.environment) if measured else None
    nbytes = bytes_needed(measured.readings, device, context_bytes) if measured else None
    return LargestBatch(
        strategy="plan" if batch.strategy.name == "plan" else str(batch.strategy),
        batch_size=batch.batch_size,
        predicted_bytes=batch.predicted_bytes,
        measured_bytes=nbytes if kind == "measured" else None,
        rehearsed_bytes=nbytes if kind == "rehearsed" else None,
        evidence=kind,
        outcome=measured.outcome if measured else None,
        beyond_bytes=bytes_needed(beyond.readings, device, context_bytes) if beyond else None,
        beyond_outcome=beyond.outcome if beyond else None,
        samples_per_second=batch.samples_per_second,
        sample_bytes=one_sample.nbytes if one_sample else None,
        static_bytes=one_sample.static_bytes if one_sample else None,
    )
