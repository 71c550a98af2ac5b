"""A plan of stages -> what it does to the named blocks of the model: knows nothing of costs."""

from __future__ import annotations

from profiler.core.errors import UserError
from profiler.core.plan_file import Recipe, Segment
from profiler.planning.chain import Chain
from profiler.planning.plan import Item, Plan, render


def recipe(chain: Chain, plan: Plan) -> Recipe:
    """Raises UserError where the chain does not say which modules its stages are."""
    blocks = {block.name: block.parameters for stage in chain.stages for block in stage.blocks}
    if not blocks:
        hint = "`gcprof stages MODEL -o costs.json` writes stages with their modules"
        raise UserError("these stages are of no known modules: their plan can be carried out nowhere", hint=hint)
    options = dict(plan.options)
    segments = (segment for item in plan.items for segment in _segments(chain, item, options))
    return Recipe(plan=render(plan), segments=tuple(segments), fingerprint=blocks)


def _segments(chain: Chain, item: Item, options: dict[int, str]) -> list[Segment]:
    """Of a checkpointed run, or of a stage that is kept under a save option; nothing of one that is plainly kept."""
    found = _item(chain, item, options)
    return [one for one in found if isinstance(one, Segment)]


def _item(chain: Chain, item: Item, options: dict[int, str]) -> list[str | Segment]:
    if isinstance(item, tuple):
        inside = [one for inner in item for one in _item(chain, inner, options)]
        return [Segment(blocks=tuple(inside))]
    names: list[str | Segment] = [block.name for block in chain.stages[item].blocks]
    return [Segment(blocks=tuple(names), save=options[item])] if item in options else names
