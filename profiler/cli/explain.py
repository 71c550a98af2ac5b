"""gcprof explain and gcprof timeline: one step of a model, of a run, or the phases of a script's run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from profiler.cli import options
from profiler.cli.output import Terminal, aside, next_command, refuse_flags, say, say_json, screen_width
from profiler.cli.script import ON_SCRIPT, named_script, under
from profiler.core.device_choice import SEVERAL
from profiler.core.errors import UserError
from profiler.core.units import bytes_text, error_text
from profiler.workflows import COMMAND
from profiler.workflows.spec import Request, flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.scripts.report import Variant


def explain(
    target: options.OptionalTarget = None,
    strategies: Annotated[
        str | None, typer.Option(help="The strategy to explain; `gcprof strategies` lists them. [default: none]")
    ] = None,
    words: Annotated[Request, options.Words((*options.STEP, "routing"))] = Request(),
    device: options.TracedDevice = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="Instead of a step: a file of torch.cuda.memory._dump_snapshot.")
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Explain the peak of a training step. It says where the peak is, what holds it, how low it could be, and why.

    The step is rehearsed where PyTorch's own CUDA code can run, else estimated. With --snapshot, a recording of
    PyTorch's CUDA allocator is explained: its peak, what stayed, and what is reserved.

    Example: gcprof explain transformer --strategies all --optimizer adamw
    """
    from profiler.core.record import evidence
    from profiler.runs import is_run
    from profiler.views.tables.explanation import tables
    from profiler.workflows.explain import assumed, heading
    from profiler.workflows.explain import explain as work

    if snapshot is not None:
        _explain_snapshot(snapshot, target, json=json)
        return
    if target is None:
        raise UserError("what is to be explained?", hint="gcprof explain MODEL, a run, or --snapshot FILE")
    if script := named_script(target):
        _explain_script(target, script[1], strategies=strategies, json=json)
        return
    chosen = strategies or "none"
    typed = [*flags(words), *(["--device", device] if device else [])]
    is_assumed = words.optimizer is None and not is_run(target)
    words = msgspec.structs.replace(words, strategies=chosen, device=device or SEVERAL)
    step, why = work(target, words, Terminal(is_quiet=quiet))
    if json:
        kind = evidence(step.case, None)
        say_json({"strategy": str(step.case.label), "evidence": kind, **msgspec.to_builtins(why)})
        return
    title = heading(step.case, step.followed, with_strategy=True, is_assumed=is_assumed)
    say(*tables(why, title=title, width=screen_width()))
    if step.record and (known := step.record.readings.peak_bytes):
        on_record = f"{evidence(step.record.case, step.record.environment)}: {bytes_text(known)}"
        which = "rehearsal" if step.case.is_rehearsed else "prediction"
        aside(f"note: {on_record}; the {which} is {error_text(why.peak.nbytes / known - 1)} off")
    for remark in (*(assumed(step.followed) if is_assumed else []), *step.followed.remarks):
        aside(f"note: {remark}")
    next_command("gcprof", "timeline", target, "--strategies", chosen, *typed, "-o", "timeline.png")


def _explain_script(target: str, variants: Sequence[Variant], *, strategies: str | None, json: bool) -> None:
    """Print where the peak of each variant of a script sits. Raises UserError for words that have no effect on it."""
    from profiler.views.tables import script as view

    flags = ("--json", "--strategies")
    refuse_flags(flags, ON_SCRIPT, hint="gcprof explain RUN --strategies NAME; it is read, not run again")
    chosen = under(variants, strategies)
    if json:
        say_json(view.explanation_document(chosen))
        return
    say(*view.explanation(chosen))
    next_command("gcprof", "timeline", target, "-o", "timeline.png")


def _explain_snapshot(path: Path, target: str | None, *, json: bool) -> None:
    """Print the explanation of a snapshot of the allocator. Raises UserError for words that have no effect on it."""
    from profiler.analysis.live_bytes import explain_snapshot
    from profiler.core.trace_data import load_snapshot
    from profiler.views.tables import explanation as views

    hint = "gcprof explain --snapshot FILE"
    if target:
        raise UserError(f"'{target}' has no effect on a snapshot", hint=hint)
    refuse_flags(("--snapshot", "--json"), "on a snapshot", hint=hint)
    recording = explain_snapshot(load_snapshot(path))
    if json:
        facts = msgspec.to_builtins(recording)
        say_json({"evidence": "recorded", **facts, "free_bytes": recording.free_bytes})
        return
    say(*views.snapshot(recording, title=f"{path.name}, cuda:{recording.device}: recorded"))


def timeline(
    target: options.Target,
    strategies: Annotated[str, typer.Option(help="One panel each; `gcprof strategies` lists them.")] = "none",
    words: Annotated[Request, options.Words(("segments", *options.STEP, "routing"))] = Request(),
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
    from profiler.core.errors import load_module
    from profiler.views.export import refuse_output
    from profiler.workflows.explain import followed_steps, heading
    from profiler.workflows.planner import PICTURES

    refuse_output(output, force=force, kinds=PICTURES, hint=f"name a file that ends in {', '.join(PICTURES)}")
    if script := named_script(target):
        allowed = ("-o", "--output", "--force", "--strategies")
        refuse_flags(allowed, ON_SCRIPT, hint="gcprof timeline RUN -o FILE; it is read, not run again")
        is_asked = any(word.startswith("--strategies") for word in COMMAND.get())
        chosen = under(script[1], strategies if is_asked else None)
        draw = load_module("profiler.views.plots.steps", needs="matplotlib").script_phases
        aside(f"wrote {draw(chosen, path=output, force=force, is_apart=True)}")
        next_command("gcprof", "explain", target)
        return
    typed = [*flags(words, without=("segments",)), *(["--device", device] if device else [])]
    words = msgspec.structs.replace(words, strategies=strategies, device=device or SEVERAL)
    steps = followed_steps(target, words, Terminal(is_quiet=quiet))
    # only once there is something to draw
    plot = load_module("profiler.views.plots.steps", needs="matplotlib").timeline
    panels = {str(step.case.label): step.followed.trace for step in steps}
    path = plot(panels, title=heading(steps[0].case, steps[0].followed), path=output, force=force)
    aside(f"wrote {path}")
    next_command("gcprof", "explain", target, "--strategies", str(steps[-1].case.label), *typed)
