"""gcprof explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import completion, options
from profiler.cli.output import COMMAND, aside, encoding, next_command, say, say_bytes, width
from profiler.cli.switches import Switches

if TYPE_CHECKING:
    from profiler.core.case import Case
    from profiler.workflows.explain import TracedStep


def explain(
    target: options.Target,
    strategy: Annotated[
        str,
        typer.Option(
            help="The strategy to explain; `gcprof strategies` lists them.", autocompletion=completion.strategies
        ),
    ] = "none",
    optimizer: options.Optimizer = None,
    batch_size: options.BatchSize = None,
    precision: options.Precision = None,
    accumulate: options.Accumulate = None,
    blocks: options.Blocks = None,
    switches: Switches | None = None,
    device: options.TracedDevice = None,
    json: options.Json = False,
) -> None:
    """Explain the peak of a training step. It says where the peak is, what holds it, how low it could be, and why.

    Nothing is run: the step is traced.

    Example: gcprof explain transformer --strategy all --optimizer adamw
    """
    from profiler.views.tables.explanation import document, explanation
    from profiler.workflows.explain import TraceRequest, prediction
    from profiler.workflows.explain import explain as work

    words = prediction(
        strategies=strategy, optimizer=optimizer, batch_size=batch_size, precision=precision, accumulate=accumulate,
        blocks=blocks, device=device, **switches or {},
    )  # fmt: skip
    explained = work(TraceRequest(target=target, words=words, typed=COMMAND.get()))
    step, why = explained.step, explained.explanation
    if json:
        say_bytes(document(why))
        return
    title = traced_heading(step.case, with_strategy=True)
    say(explanation(why, title=title, width=width(), encoding=encoding()))
    for remark in (*_measured(step, why.peak.nbytes), *step.followed.remarks):
        aside(f"note: {remark}")
    next_command("gcprof", "timeline", target, "--strategies", strategy, "-o", "timeline.png")


def traced_heading(case: Case, *, with_strategy: bool = False) -> str:
    """What was traced, in one line."""
    from profiler.views.tables.columns import batch

    strategy = [str(case.strategy)] if with_strategy else []
    setting = ", ".join([*strategy, batch(case), str(case.optimizer), case.precision, case.device])
    return f"{case.model}, {setting}: predicted"


def _measured(step: TracedStep, peak_bytes: int) -> list[str]:
    """What a run measured of the same step, and how far the prediction is from it."""
    from profiler.core.units import bytes_text, error_text

    measured = step.measured.readings.peak_bytes if step.measured else None
    if measured is None:
        return []
    return [f"measured: {bytes_text(measured)}; the prediction is {error_text(peak_bytes / measured - 1)} off"]
