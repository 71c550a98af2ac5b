"""gcprof max-batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from profiler.cli import completion
from profiler.cli.output import COMMAND, Terminal, aside, encoding, next_command, say, say_bytes, say_failure, width
from profiler.cli.signals import heeded
from profiler.core.errors import UserError
from profiler.runs import RESULTS
from profiler.workflows import Interrupted

if TYPE_CHECKING:
    from profiler.cli.planning import Model
    from profiler.views.tables.max_batch import Line
    from profiler.workflows.max_batch import Largest

ROUNDS = 3


def max_batch(
    model: Annotated[
        str, typer.Argument(help="A model as for `gcprof run --model`.", autocompletion=completion.models)
    ],
    memory: Annotated[str, typer.Option(help="What the device has: 16GiB, 750MiB.")],
    context: Annotated[
        str | None, typer.Option(help="What CUDA takes of it besides tensors. [default: as measured, or 600MiB]")
    ] = None,
    strategies: Annotated[str, typer.Option(help="Beside `none` and the plan.")] = "all",
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure each at its size.")] = True,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam or adamw. [default: sgd]")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16, amp-bf16, amp-fp16.")] = None,
    accumulate: Annotated[str | None, typer.Option(help="Micro-batches a step. [default: 1]")] = None,
    blocks: Annotated[str | None, typer.Option(help="The blocks by name, as 'model.layers.*'.")] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda; or fake:h100 and others, not measured. [default: auto]")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of the measurement. [default: 3]")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find the largest batch that a memory holds, by strategy and by plan, and the samples a second that it gives.

    Predicted, then measured there and with one sample more. Example: gcprof max-batch transformer --memory 4GiB
    """
    from profiler.cli.planning import Model
    from profiler.planning.budget import parse_bytes
    from profiler.request.spec import Request, strategies_of

    limit = parse_bytes(memory, flag="--memory")
    context_bytes = None if context is None else parse_bytes(context, flag="--context")
    if rounds is not None and (not measure or (device or "").startswith("fake:")):
        raise UserError("--rounds has no effect on a prediction", hint="leave it out")
    chosen = strategies_of(Request(strategies=strategies), [])
    words = Request(
        model=model, strategies="none", optimizer=optimizer, precision=precision, accumulate=accumulate, blocks=blocks,
        device=device,
    )  # fmt: skip
    try:
        with heeded(), Model(words) as asked:
            if asked.case.batch_size is None:
                hint = "give the function a parameter batch_size"
                raise UserError(f"'{asked.case.model}' makes its own batch, of one size", hint=hint)
            reserve = _context(asked, context_bytes, measure=measure)
            predicted, folder = _predict(asked, [str(word) for word in chosen], limit, reserve.nbytes)
            lines, code = _measured(asked, predicted, folder, rounds or ROUNDS, reserve.nbytes, measure=measure)
    except Interrupted as interrupted:
        if json:
            say_failure(interrupted.exit_code)
        raise typer.Exit(interrupted.exit_code) from None
    _print(asked, lines, limit, reserve, json=json)
    next_command("gcprof", "plan", *asked.words, "--batch-size", str(lines[-1].batch_size or 1), "--budget", memory)
    raise typer.Exit(code)


class _Context(NamedTuple):
    """What CUDA takes of the memory besides tensors."""

    nbytes: int  # 0 on a CPU
    source: str | None  # as asked, measured or assumed; None on a CPU


def _context(asked: Model, asked_bytes: int | None, *, measure: bool) -> _Context:
    """What is left to CUDA: as asked, else as one sample on the device shows, else as assumed."""
    from profiler.analysis.fit import CONTEXT
    from profiler.workflows import max_batch as capacity

    case = asked.case
    if "cpu" in case.device:
        if asked_bytes is not None:
            raise UserError("--context has no effect on a CPU", hint="leave it out")
        return _Context(0, None)
    if asked_bytes is not None:
        return _Context(asked_bytes, "as asked")
    measured_bytes = capacity.measured_context(asked.engine, case) if measure else None
    return _Context(CONTEXT, "assumed") if measured_bytes is None else _Context(measured_bytes, "measured")


def _predict(asked: Model, strategies: list[str], limit: int, context_bytes: int) -> tuple[list[Largest], Path]:
    import msgspec

    from profiler.core.case import Choice
    from profiler.runs import store
    from profiler.workflows import max_batch as capacity

    predicted = []
    for word in strategies:
        case = msgspec.structs.replace(asked.case, strategy=Choice(word))
        predicted.append(capacity.predict(asked.engine, case, limit, context_bytes))
        _say_predicted(word, predicted[-1], limit)
    folder = store.new_folder(RESULTS, [f"max batch {asked.case.model.name}"])
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.json")  # beside the run's folder, which is not there yet
    planned = capacity.predict_planned(asked.engine, asked.case, limit, path, context_bytes)
    _say_predicted("plan", planned, limit)
    return [*predicted, planned], folder


def _say_predicted(word: str, predicted: Largest, limit: int) -> None:
    from profiler.core.units import bytes_text
    from profiler.views.tables.max_batch import why_none

    need = predicted.one_sample
    if predicted.batch_size:
        aside(f"{word}: a batch of {predicted.batch_size} is predicted to fit {bytes_text(limit)}")
    elif need is None:
        aside(f"{word}: not even one sample is predicted to fit {bytes_text(limit)}")
    else:
        aside(why_none(word, need.nbytes, need.static_bytes, need.context_bytes))


def _measured(
    asked: Model, found: list[Largest], folder: Path, rounds: int, context_bytes: int, *, measure: bool
) -> tuple[list[Line], int]:
    from profiler.analysis import progress
    from profiler.core import code_digests
    from profiler.request import device_choice
    from profiler.runs import store
    from profiler.views.tables.max_batch import line
    from profiler.workflows import max_batch as capacity
    from profiler.workflows import runner
    from profiler.workflows.typed import command_line

    case, code = asked.case, 0
    if measure and not case.is_predicted:
        environment = device_choice.environment(case.device, asked.devices)
        planned = capacity.trials(case, found, rounds=rounds)
        digests = code_digests.digests(trial.case for trial in planned)
        store.create(
            folder, plan=planned, command=command_line(COMMAND.get()), environment=environment, sources=digests
        )
        code = runner.follow(asked.engine, folder, Terminal())
        run = store.load(folder)
        aside(f"wrote {folder / 'trials.jsonl'}")
        found = capacity.beside(case, found, run.records)
        code = code or progress.exit_code(run.records)
    lines = [
        line(
            "plan" if one.strategy.name == "plan" else str(one.strategy),
            one.batch_size,
            one.predicted_bytes,
            one.measured[0] if one.measured else None,
            one.beyond,
            one.samples_per_second,
            needed=lambda record: capacity.needed(record.readings, case.device, context_bytes),
            sample_bytes=one.one_sample.nbytes if one.one_sample else None,
            static_bytes=one.one_sample.static_bytes if one.one_sample else None,
        )
        for one in found
    ]
    return lines, code


def _print(asked: Model, lines: list[Line], limit: int, context: _Context, *, json: bool) -> None:
    from profiler.core.units import bytes_text
    from profiler.views.tables import max_batch as capacity

    case = asked.case
    if json:
        say_bytes(capacity.document(lines, model=str(case.model), limit=limit, context_bytes=context.nbytes))
        return
    setting = f"{case.model}, {case.optimizer}, {case.precision}, {case.device}"
    title = f"{setting}: the largest batch that {bytes_text(limit)} hold"
    if context.source:
        title += f"; {capacity.context_text(context.nbytes, context.source)}"
    table = capacity.table(
        lines, title=title, limit=limit, context_bytes=context.nbytes, width=width(), encoding=encoding()
    )
    say(table)
