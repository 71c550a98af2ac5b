"""gcprof stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import completion
from profiler.cli.output import aside, encoding, next_command, say, say_bytes, width


def stages(
    model: Annotated[
        str, typer.Argument(help="A model as for `gcprof run --model`.", autocompletion=completion.models)
    ],
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam or adamw. [default: sgd]")] = None,
    batch_size: Annotated[str | None, typer.Option(help="Samples a micro-batch. [default: the model's]")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16, amp-bf16, amp-fp16.")] = None,
    accumulate: Annotated[str | None, typer.Option(help="Micro-batches a step. [default: 1]")] = None,
    blocks: Annotated[str | None, typer.Option(help="The blocks by name, as 'model.layers.*'.")] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda; or fake:h100 and others, not measured. [default: auto]")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the costs: costs.json.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the costs as JSON.")] = False,
) -> None:
    """Measure what each stage of a model holds and takes, one at a time: what `gcprof plan` works on.

    Bytes are exact, of a traced step; seconds are medians. Example: gcprof stages transformer -o costs.json
    """
    from profiler.cli.planning import Model
    from profiler.planning import chain as chains
    from profiler.request.spec import Request
    from profiler.views.export.files import refuse_existing_file, write_whole
    from profiler.views.tables import plans

    if output is not None:
        refuse_existing_file(output, force=force)
    words = Request(
        model=model, strategies="none", optimizer=optimizer, batch_size=batch_size, precision=precision,
        accumulate=accumulate, blocks=blocks, device=device,
    )  # fmt: skip
    with Model(words) as found:
        chain = found.chain()
    if output is not None:
        write_whole(output, chains.encoded(chain), force=force)
        aside(f"wrote {output}")
    if json:
        say_bytes(chains.encoded(chain))
    else:
        say(plans.stages(chain, title=found.title, width=width(), encoding=encoding()))
    if output is not None:
        next_command("gcprof", "plan", "--stages", str(output), "--frontier")
    else:
        next_command("gcprof", "plan", *found.words, "--budget", "60%")
