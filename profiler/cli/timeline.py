"""gcprof timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from profiler.cli import options
from profiler.cli.explain import traced_heading
from profiler.cli.options import Words
from profiler.cli.output import COMMAND, Terminal, aside, next_command, refuse_flags
from profiler.cli.script_folder import ON_SCRIPT, named_script, under
from profiler.request.device_choice import SEVERAL
from profiler.request.spec import Request, flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.scripts.report import Variant


def timeline(
    target: options.Target,
    strategies: Annotated[
        str,
        typer.Option(help="One panel each; `gcprof strategies` lists them.", autocompletion=options.propose_strategies),
    ] = "none",
    words: Annotated[Request, Words(("segments", *options.STEP, "routing"))] = Request(),
    device: options.TracedDevice = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write: png, svg or pdf.")] = Path(
        "timeline.png"
    ),
    force: options.ForceIfThere = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw what is live over a training step. Each strategy has a panel with its categories, phases and peak.

    The step is rehearsed where PyTorch's own CUDA code can run, else estimated.

    Example: gcprof timeline transformer --strategies none,all -o fig.png
    """
    from profiler.views.export.files import refuse_output
    from profiler.workflows.explain import StepRequest, followed_steps

    refuse_output(output, force=force)
    if script := named_script(target):
        _draw_script(target, script[1], strategies=strategies, output=output, force=force)
        return
    typed = [*flags(words, without=("segments",)), *(["--device", device] if device else [])]
    words = msgspec.structs.replace(words, strategies=strategies, device=device or SEVERAL)
    steps = followed_steps(StepRequest(target=target, words=words, typed=COMMAND.get()), Terminal(is_quiet=quiet))

    from profiler.core import optional_deps

    # only once there is something to draw
    plot = optional_deps.load("profiler.views.plots.timeline", needs="matplotlib").plot
    panels = {str(step.case.strategy): step.followed.trace for step in steps}
    path = plot(panels, title=traced_heading(steps[0]), path=output, force=force)
    aside(f"wrote {path}")
    next_command("gcprof", "explain", target, "--strategies", str(steps[-1].case.strategy), *typed)


def _draw_script(target: str, variants: Sequence[Variant], *, strategies: str, output: Path, force: bool) -> None:
    """Draw a script's phases in their order. Raises UserError for words that have no effect on it."""
    from profiler.core import optional_deps

    flags = ("-o", "--output", "--force", "--strategies")
    refuse_flags(flags, ON_SCRIPT, hint="gcprof timeline RUN -o FILE; it is read, not run again")
    is_asked = any(word.startswith("--strategies") for word in COMMAND.get())
    chosen = under(variants, strategies if is_asked else None)
    points = optional_deps.load("profiler.views.plots.script", needs="matplotlib").points
    aside(f"wrote {points(chosen, path=output, force=force)}")
    next_command("gcprof", "explain", target)
