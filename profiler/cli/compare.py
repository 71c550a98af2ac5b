"""gcprof compare."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import options
from profiler.cli.output import aside, next_command, one_of, paper, say, say_bytes
from profiler.core.errors import UserError
from profiler.core.units import change_range_text, change_text

if TYPE_CHECKING:
    from profiler.analysis.comparison import Comparison
    from profiler.analysis.gates import Judgement, RuleResult
    from profiler.core.record import Record

FORMATS = ("table", "md", "json", "csv")
TRIPPED = 5


def compare(
    runs: Annotated[list[str], typer.Argument(help=f"{options.RUN_HELP} The first is the baseline.", metavar="run")],
    baseline: Annotated[str | None, typer.Option("--baseline", help="The run to compare the others with.")] = None,
    align: Annotated[
        str, typer.Option("--align", help="What rows must share to be compared.")
    ] = "model,strategy,batch_size,precision",
    allow_different: Annotated[
        str | None, typer.Option("--allow-different", help="What may differ: torch, batch_size, optimizer, seed, ...")
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option("--fail-on", help="Exit with 5 if a row exceeds a limit: 'peak:>2%,time:>5%'.")
    ] = None,
    format: Annotated[str, typer.Option("--format", help="table, md, json or csv.")] = "table",
    columns: options.Width = None,
) -> None:
    """Compare runs: their settings, peaks and times. It also says which strategy each device should use.

    Example: gcprof compare ref:predicted-t4/transformer ref:predicted-h100/transformer
    """
    from profiler.analysis import gates
    from profiler.analysis.comparison import compare_sides, read_sides
    from profiler.analysis.pairing import ALLOWED, MEANING

    one_of(format, FORMATS, flag="--format")
    if columns and format != "table":
        raise UserError(f"--width has no effect with --format {format}", hint="leave one of them out")
    rules = gates.parse(fail_on) if fail_on is not None else ()
    names = _listed(align, MEANING, flag="--align")
    allowed = _listed(allow_different, ALLOWED, flag="--allow-different") if allow_different else []
    names = [name for name in names if name not in allowed]
    sides = read_sides(_load(_ordered(runs, baseline)), align=names)
    comparison = compare_sides(sides, align=names, allowed=allowed)
    judgement = gates.judge(sides, rules, align=names, allowed=allowed) if rules else None
    code = TRIPPED if judgement and judgement.tripped else 0
    _print(comparison, judgement, code=code, format=format, columns=columns)
    if judgement:
        _tell(judgement)
    elif format == "table":
        next_command("gcprof", "compare", *_ordered(runs, baseline), "--format", "md")
    raise typer.Exit(code)


def _listed(text: str, choices: tuple[str, ...], *, flag: str) -> list[str]:
    return [one_of(word.strip(), choices, flag=flag) for word in text.split(",")]


def _ordered(runs: list[str], baseline: str | None) -> list[str]:
    """Return the runs with the baseline first, whether it is among them or not."""
    if baseline is None:
        return runs
    if baseline not in runs:
        return [baseline, *runs]
    place = runs.index(baseline)
    return [baseline, *runs[:place], *runs[place + 1 :]]


def _load(words: list[str]) -> list[tuple[str, tuple[Record, ...]]]:
    """Return the name and the records of every run; a name is `ref:NAME`, or the end of a path that makes it unique."""
    from profiler.runs.find import REFERENCE, run_folder
    from profiler.runs.store import load

    loaded = []
    for word in words:
        run = load(run_folder(word))
        for warning in run.warnings:
            aside(f"warning: {word}: {warning}")
        loaded.append(((word,) if word.startswith(REFERENCE) else run.folder.resolve().parts, run.records))
    every = {parts for parts, _ in loaded}
    return [(_named_apart(parts, every), records) for parts, records in loaded]


def _named_apart(parts: tuple[str, ...], every: Iterable[tuple[str, ...]]) -> str:
    """Return the shortest end of a path that no other path ends in."""
    others = [other for other in every if other != parts]
    enough = (count for count in range(1, len(parts)) if all(other[-count:] != parts[-count:] for other in others))
    return str(Path(*parts[-next(enough, len(parts)) :]))


def _print(compared: Comparison, judgement: Judgement | None, *, code: int, format: str, columns: int | None) -> None:
    from profiler.views.tables import comparison

    if format == "table":
        say(comparison.table(compared, paper=paper(columns)))
    elif format == "md":
        say_bytes(comparison.markdown(compared).encode())
    elif format == "csv":
        say_bytes(comparison.csv(compared).encode())
    else:
        say_bytes(comparison.document(compared, judgement=judgement, exit_code=code))


def _tell(judgement: Judgement) -> None:
    for result in judgement.tripped:
        aside(f"gate: {_named(result)}")
    for remark in judgement.remarks:
        aside(f"note: {remark}")
    for result in judgement.unsure:
        aside(f"unsure: {_named(result)}: too noisy to tell; more --rounds and --samples would")
    if not judgement.tripped:
        aside("gate: nothing is over the limits")


def _named(result: RuleResult) -> str:
    contrast = result.contrast
    if contrast is None:
        finding = result.reason
    else:
        interval = (contrast.low, contrast.high) if contrast.low is not None and contrast.high is not None else None
        finding = change_text(contrast.ratio) + (f" ({change_range_text(interval)})" if interval else "")
    kinds = " ({}, against {})".format(*result.evidence) if result.evidence else ""
    where = f"{result.label} against {result.against}"
    return f"{result.rule}: {', '.join(result.key.values())} in {where}{kinds}: {finding}"
