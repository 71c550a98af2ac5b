"""gcprof models, strategies, blocks and note: names and their meaning; and doctor: whether this machine works."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from profiler.cli import options
from profiler.cli.output import Terminal, folded, next_command, say, say_json
from profiler.core.errors import UserError, nearest, refuse_idle
from profiler.core.units import batch_text, bytes_text, seconds_text
from profiler.views import NOTES

if TYPE_CHECKING:
    from profiler.core.record import Environment

PACKAGES = ("torch", "torchvision", "typer", "rich", "pandas", "matplotlib", "msgspec", "psutil", "nvidia-ml-py")
FEW = 2  # samples: enough to see every shape
FACTS = ("device_name", "device_bytes", "driver", "cuda", "num_threads")  # of each device


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="A model or an optimizer: show all its options.", autocompletion=options.propose_models),
    ] = None,
    everything: options.AlsoHidden = False,
) -> None:
    """List the models and the optimizers, with their options.

    Example: gcprof models mnist-cnn
    """
    from profiler.core import catalogue
    from profiler.core.case import Choice
    from profiler.training import OPTIMIZERS
    from profiler.training.models import TABLE, meant
    from profiler.views.tables import listing, options_of

    if name is not None:
        table, kind = (OPTIMIZERS, "optimizer") if name in OPTIMIZERS else (TABLE, "model")
        name = meant(Choice(name)).name if kind == "model" else name
        say(options_of(catalogue.read(name, table, what=kind)))
        next_command("gcprof", "run", *([name] if kind == "model" else ["--optimizer", name]))
        return
    tables = {"models": TABLE, "optimizers": OPTIMIZERS}
    say(*(listing(catalogue.entries(table, hidden=everything), title=title) for title, table in tables.items()))
    next_command("gcprof", "models", next(iter(TABLE)))


def strategies(
    name: Annotated[
        str | None, typer.Argument(help="A strategy: show all its options.", autocompletion=options.propose_strategies)
    ] = None,
    everything: options.AlsoHidden = False,
) -> None:
    """List the strategies of checkpointing and the levers that go with them (`all+fused`), with their options.

    Example: gcprof strategies segments
    """
    from profiler.core import catalogue
    from profiler.core.case import Choice
    from profiler.training import LEVERS, STRATEGIES
    from profiler.views.tables import listing, options_of

    if name is not None:
        entry = catalogue.read(name, {**STRATEGIES, **LEVERS}, what="strategy")
        say(options_of(entry))
        needed = {
            option.name: option.words[0] if option.words else "4" for option in entry.options if option.default is None
        }
        next_command("gcprof", "run", "--strategies", Choice.of(name, needed))
        return
    beside = listing(catalogue.entries(LEVERS), title="levers, after a strategy: all+fused")
    say(listing(catalogue.entries(STRATEGIES, hidden=everything)), beside)
    next_command("gcprof", "strategies", "segments")


def blocks(
    model: options.Model,
    pattern: Annotated[
        str | None, typer.Option("--pattern", help="Choose by name: 'model.layers.*', or enc1,enc2,mid.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Samples in the one forward. [default: 2]")
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show the blocks of a model. Checkpointing works on them; each has its parameters, shapes, and what it feeds.

    Other blocks that would lower the peak, by a traced step, are named below, as `gcprof explain` names them.

    Example: gcprof blocks torchvision:resnet18 --pattern 'layer?.*'
    """
    from profiler import engines
    from profiler.core import device_choice
    from profiler.core.case import split_choices
    from profiler.core.record import ModelSummary
    from profiler.views.tables.details import blocks as table
    from profiler.workflows import spec
    from profiler.workflows.stages import better_blocks_text

    if len(split_choices(model)) > 1:
        raise UserError(f"'{model}' is more than one model", hint="name one")
    asked = None if batch_size is None else str(batch_size)
    words = spec.Request(model=model, strategies="none", device="cuda", blocks=pattern, batch_size=asked)
    step = spec.check(words, device_choice.any_device).trials[0].case  # that `gcprof explain` traces
    takes_size = step.batch_size is not None
    case = msgspec.structs.replace(step, device="cpu", batch_size=(batch_size or FEW) if takes_size else None)
    with Terminal(is_quiet=quiet).doing("looking at the model"), engines.connect(measures=False) as engine:
        failing = f"'{case.model}' {engines.NO_RESULT}"
        hint = "`gcprof blocks MODEL --pattern 'layers.*'` chooses blocks by name"
        summary = engines.answer(engine, "outline", case, ModelSummary, failing=failing, hint=hint)
        better = None if json else better_blocks_text(engine, step)
    if json:
        say_json(summary)
        return
    note = f"predicted for CUDA, {batch_text(step.batch_size)}: {better}" if better else None
    say(table(summary, better=note))
    named = ["--blocks", pattern] if pattern else []
    next_command("gcprof", "run", str(case.model), *named, "--strategies", "all")


def doctor(
    json: options.Json = False,
    paste: Annotated[bool, typer.Option("--paste", help="Print a block to paste into an issue.")] = False,
) -> None:
    """Show versions, and run a tiny trial on each device. It also checks the arithmetic of each device.

    Ends with 1 if a trial fails or the arithmetic is wrong, 3 if torch does not work.

    Example: gcprof doctor
    """
    from profiler import __version__, engines
    from profiler.core.case import Case, Choice, Trial
    from profiler.engines.local import rehearsal

    if json:
        refuse_idle({"--paste": paste}, "with --json")
    tiny = Case(model=Choice("mlp"), strategy=Choice("none"), optimizer=Choice("sgd"), batch_size=8, device="cpu")
    with engines.connect() as engine:
        devices: dict[str, Environment] = engine.survey()
        trials = {name: next(engine.run([Trial(case=msgspec.structs.replace(tiny, device=name))])) for name in devices}
        wrong: dict[str, str | None] = {}  # what each computes wrongly, or why it cannot compute
        for name in devices:
            try:
                answer = engine.ask(f"{engines.WORKER}:compute", name, failing="it does not compute")
                wrong[name] = answer["wrong"]
            except UserError as error:
                wrong[name] = error.message
    installed = {str(one.metadata["Name"]).lower(): one.version for one in metadata.distributions()}
    versions = {name: installed.get(name) for name in PACKAGES}
    system = f"{platform.system()} {platform.machine()}"
    findings: dict[str, Any] = {
        "versions": {"gcprof": __version__, "python": platform.python_version(), "system": system, **versions},
        "devices": {name: {fact: getattr(devices[name], fact) for fact in FACTS} for name in devices},
        "trials": {name: record.detail or record.outcome for name, record in trials.items()},
        "arithmetic": {name: text or "right" for name, text in wrong.items()},
        "start_seconds": {name: record.stage_seconds.get("start") for name, record in trials.items()},
        "rehearsal": rehearsal(),
    }
    if json:
        say_json(findings)
    elif paste:
        from profiler.views.export import fenced
        from profiler.views.sanitize import hidden

        print(fenced(hidden(line) for line in _lines(findings)))  # for an issue: no host, no user, no folder
    else:
        print("\n".join(_lines(findings)))
    raise typer.Exit(int(any(wrong.values()) or any(record.outcome != "ok" for record in trials.values())))


def _lines(findings: dict[str, Any]) -> list[str]:
    lines = [f"{name:14} {version or 'not installed'}" for name, version in findings["versions"].items()]
    for name, facts in findings["devices"].items():
        driver = f", driver {facts['driver']}" if facts["driver"] else ""
        started = seconds_text(findings["start_seconds"][name])
        lines += [
            f"{name:14} {facts['device_name']}, {bytes_text(facts['device_bytes'])}{driver}",
            f"{'':14} a tiny trial: {findings['trials'][name]}; a fresh process in {started}",
            f"{'':14} arithmetic: {findings['arithmetic'][name]}",
        ]
    if len(findings["devices"]) == 1:
        lines.append("no CUDA device: torch sees none, so `gcprof run` measures the CPU")
    lines.append(f"{'rehearsal':14} {findings['rehearsal']}")
    return lines


def propose_notes(incomplete: str) -> list[tuple[str, str]]:
    """Complete a note's code, with its title."""
    return [(code, title) for code, title, _ in notes() if code.startswith(incomplete.upper())]


def note(
    code: Annotated[str, typer.Argument(help="The code of a note, as GCP012.", autocompletion=propose_notes)],
) -> None:
    """Explain a note that stands below a table: why it matters, and what to do.

    Example: gcprof note GCP012
    """
    pages = {known: (title, text) for known, title, text in notes()}
    known = code.upper() if not code.isdecimal() else f"GCP{code:0>3}"
    if known not in pages:
        hint = nearest(known, pages) or f"{min(pages)} to {max(pages)}"
        raise UserError(f"no note is called '{code}'", hint=hint)
    title, text = pages[known]
    for line in (f"{known}: {title}", "", *text.splitlines()):
        print(folded(line, file=sys.stdout))


def notes() -> list[tuple[str, str, str]]:
    """Return the code, the title and the text of every note, as a terminal shows them: without marks of Markdown."""
    _, *parts = re.split(r"^## (GCP\d{3}): (.*)\n", NOTES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = (
        re.sub(r"\[([^]]*)\]\([^)]*\)|\*\*|<a .*?</a>\n*|^```\n?", r"\1", text, flags=re.MULTILINE)
        for text in parts[2::3]
    )
    return [(code, title, text.strip()) for code, title, text in zip(parts[::3], parts[1::3], texts, strict=True)]
