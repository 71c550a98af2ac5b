"""gcprof stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from profiler.cli import options
from profiler.cli.options import Words
from profiler.cli.output import Terminal, aside, next_command, paper, say, say_bytes
from profiler.request.spec import Request


def stages(
    words: Annotated[Request, Words(options.STEP, model=options.Model, has_switches=False)] = Request(),
    device: options.PlannedDevice = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the costs: costs.json.")] = None,
    force: options.Force = False,
    json: Annotated[bool, typer.Option("--json", help="Print the costs as JSON.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure memory and time of each stage of a model. These are the costs that `gcprof plan` works on.

    Bytes are exact, from a traced step; seconds are medians.

    Example: gcprof stages transformer -o costs.json
    """
    from profiler.core.case import encode_indented
    from profiler.views.export.files import refuse_output, write_whole
    from profiler.views.tables import plans
    from profiler.views.tables.evidence import SAID
    from profiler.workflows.instrument import planned
    from profiler.workflows.stages import ModelOnDevice

    if output is not None:
        refuse_output(output, force=force)
    screen = Terminal(is_quiet=quiet)
    words = msgspec.structs.replace(words, strategies="none", device=planned(device, say=screen.say))
    with ModelOnDevice(words, screen) as asked, screen.doing("measuring each stage"):
        chain = asked.chain()
    if output is not None:
        write_whole(output, encode_indented(chain), force=force)
        aside(f"wrote {output}")
    if json:
        say_bytes(encode_indented(chain))
    else:
        foreseen = f": {SAID[asked.evidence]}" if asked.evidence != "measured" else ""
        say(plans.stages(chain, title=f"{asked.heading}{foreseen}", paper=paper()))
    if output is not None:
        next_command("gcprof", "plan", "--stages", str(output), "--frontier")
    else:
        next_command("gcprof", "plan", *asked.words, "--budget", "60%")
