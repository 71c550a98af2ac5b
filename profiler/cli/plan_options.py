"""What `gcprof plan` is asked for besides its model, and what of it is refused before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from profiler.core.errors import UserError

if TYPE_CHECKING:
    from profiler.request.spec import Request

ANY = 2**40  # bytes: a stand-in for a peak that is not known yet
PICTURES = (".png", ".svg", ".pdf")


class Wish(NamedTuple):
    """The words of the command that are not of the model."""

    budget: str | None
    stages: Path | None
    levels: int | None
    frontier: bool
    measure: bool
    emit: str | None
    rounds: int | None
    output: Path | None
    force: bool
    json: bool


def refuse(words: Request, wish: Wish) -> None:
    """Raises UserError for what cannot be, or would have no effect."""
    from profiler.core.units import parse_budget
    from profiler.views.export.files import refuse_existing_file

    if words.model is None and wish.stages is None:
        raise UserError("plan needs a model, or costs", hint="gcprof plan transformer --budget 60%")
    if wish.budget is not None:
        parse_budget(wish.budget, whole_bytes=ANY)  # before anything is measured
    if wish.budget is None and not wish.frontier:
        raise UserError("plan needs a budget", hint="--budget 8GiB, --budget 60%, or --frontier for all of them")
    if wish.budget is None and wish.emit:
        raise UserError("--emit needs a budget", hint="--budget 60% --emit python")
    if wish.output is not None:
        refuse_existing_file(wish.output, force=wish.force)
        suffix = wish.output.suffix.lower()
        if suffix not in (".json", ".csv", *PICTURES):
            raise UserError(f"cannot write '{wish.output.name}'", hint="plan.json, or frontier.csv, .png, .svg, .pdf")
        if suffix == ".json" and wish.budget is None:
            raise UserError("a plan needs a budget", hint="--budget 60% -o plan.json")
    _refuse_without_effect(words, wish)


def _refuse_without_effect(words: Request, wish: Wish) -> None:
    from profiler.cli.planning import FLAGS, flag

    asked = [flag(name) for name in FLAGS if getattr(words, name) is not None]
    if words.model is None and asked:
        raise UserError(f"{asked[0]} has no effect on costs from a file", hint="name the model, or leave it out")
    others = {"--json": wish.json, "--frontier": wish.frontier, "-o": wish.output is not None}
    idle = [name for name, is_there in others.items() if is_there and wish.emit]
    if idle:
        raise UserError(f"{idle[0]} has no effect with --emit", hint="it prints the code alone; leave one of them out")
    proof = ["--no-measure"] if not wish.measure else ["--rounds"] if wish.rounds is not None else []
    if proof and (words.model is None or wish.budget is None):
        raise UserError(f"{proof[0]} has no effect where nothing is measured", hint="a model and --budget are measured")
    if wish.rounds is not None and (not wish.measure or (words.device or "").startswith("fake:")):
        raise UserError("--rounds has no effect on a prediction", hint="leave it out")
