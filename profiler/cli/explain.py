"""gcprof explain."""

from __future__ import annotations

from typing import Annotated

import typer

from profiler.cli import completion
from profiler.cli.following import heading, measured, request, steps
from profiler.cli.output import aside, encoding, next_command, say, say_bytes, width
from profiler.core.errors import UserError


def explain(
    target: Annotated[
        str,
        typer.Argument(
            help="A model as for `gcprof run --model`, or a run folder.", autocompletion=completion.runs_or_models
        ),
    ],
    strategy: Annotated[
        str,
        typer.Option(
            help="The strategy to explain; `gcprof strategies` lists them.", autocompletion=completion.strategies
        ),
    ] = "none",
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam or adamw. [default: sgd]")] = None,
    batch_size: Annotated[str | None, typer.Option(help="Samples a micro-batch. [default: the model's]")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16, amp-bf16, amp-fp16.")] = None,
    accumulate: Annotated[str | None, typer.Option(help="Micro-batches a step. [default: 1]")] = None,
    blocks: Annotated[str | None, typer.Option(help="The blocks by name, as 'model.layers.*'.")] = None,
    keep_grads: Annotated[bool | None, typer.Option("--keep-grads", help="Gradients persist between steps.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda, cpu, or a GPU: t4, h100, ... [default: cuda]")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Explain where the peak of a training step is, what holds it, how low it could be, and why it is no lower.

    Nothing is run: the step is traced. Example: gcprof explain transformer --strategy all --optimizer adamw
    """
    from profiler.analysis.explanation import explain as explained
    from profiler.views.tables.explanation import document, explanation

    words = request(
        strategies=strategy, optimizer=optimizer, batch_size=batch_size, precision=precision, accumulate=accumulate,
        blocks=blocks, keep_grads=keep_grads, device=device,
    )  # fmt: skip
    found = steps(target, words)
    if found[-1].case.ranks:
        hint = f"gcprof timeline {target} draws what one of them holds"
        raise UserError("what ranks gather for each other has no floor yet: it cannot be explained", hint=hint)
    none, chosen = found[0].followed, found[-1].followed
    why = explained(chosen.trace, blocks=chosen.blocks, baseline=none.trace, split=chosen.split)
    if json:
        say_bytes(document(why))
        return
    title = heading(found[-1].case, with_strategy=True)
    say(explanation(why, title=title, width=width(), encoding=encoding()))
    for remark in (*measured(found[-1], why.peak.nbytes), *chosen.remarks):
        aside(f"note: {remark}")
    next_command("gcprof", "timeline", target, "--strategies", strategy, "-o", "timeline.png")
