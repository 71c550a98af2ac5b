"""A plan: whether each stage is kept or checkpointed; its notation and its plan file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from profiler.core.errors import UserError
from profiler.core.plan_file import OFFLOADING, SCHEMA, PlanFile, Segment, notation, segment_words
from profiler.planning.chain import Chain, Stage

Item = int | tuple["Item", ...]  # a kept stage, or a checkpointed run of items


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Stages in order, counted from 0; a tuple is a checkpointed run, and may contain others.

    A run ends in a plain stage: a nested checkpoint at its end would only repeat the recompute.
    """

    items: tuple[Item, ...]
    options: tuple[tuple[int, str], ...] = ()  # the stages that are kept under a save option
    # The first stages of the outermost runs whose inputs wait in host memory: each has landed where the run's forward
    # ends, and is fetched when the gradient of the output of the stage after the run arrives.
    offloaded: tuple[int, ...] = ()

    def depth(self) -> int:
        """Return the number of checkpoints around the most deeply nested stage."""
        return max((_depth(item) for item in self.items), default=0)


def render(plan: Plan) -> str:
    """Return `[1-3] 4 [5] 6-12`: stages from 1, brackets around checkpointed runs, `7-9:matmul` for a save option.

    `[4-6]:host` is a run whose input waits in host memory.
    """
    names = [str(number) for number in range(1, max(flat(plan.items), default=-1) + 2)]
    return notation(_pieces(plan, [[name] for name in names]), {name: (at, name) for at, name in enumerate(names)})


def host_bytes(chain: Chain, plan: Plan) -> int:
    """Return the pinned host memory that inputs of segments take: PyTorch takes a power of two for each."""
    inputs = (chain.stages[first - 1].output_bytes for first in plan.offloaded)
    return sum(1 << (nbytes - 1).bit_length() for nbytes in inputs if nbytes)


def fault(plan: Plan, num_stages: int) -> str | None:
    """Return why this is no plan for so many stages; None if it is one."""
    stages = tuple(flat(plan.items))
    if stages != tuple(range(num_stages)):
        return f"stages are {render(Plan(items=stages)) or 'none'}, not 1 to {num_stages} in order"
    for run in segments(plan.items):
        if not run or isinstance(run[-1], tuple):
            return "a checkpointed segment is empty or ends inside another"
    inside = [stage for run in segments(plan.items) for stage in run if stage in dict(plan.options)]
    if inside:
        return f"stage {inside[0] + 1} is in a checkpointed segment, and takes no save option there"
    named = [stage for stage, _ in plan.options]
    if named != sorted(set(named)) or not set(named) <= set(stages):
        return "save options are out of order"
    between = [next(flat(item)) for item in plan.items[1:-1] if isinstance(item, tuple)]
    if [stage for stage in between if stage in plan.offloaded] != [*plan.offloaded]:
        return "inputs in host memory are those of checkpointed segments, in order, with stages before and after"
    return None


def flat(items: tuple[Item, ...]) -> Iterator[int]:
    """Yield the stages in items, without their nesting."""
    for item in items:
        if isinstance(item, int):
            yield item
        else:
            yield from flat(item)


def segments(items: tuple[Item, ...]) -> Iterator[tuple[Item, ...]]:
    """Yield every checkpointed run, each before the ones nested in it."""
    for item in items:
        if isinstance(item, tuple):
            yield item
            yield from segments(item)


def _depth(item: Item) -> int:
    return 0 if isinstance(item, int) else 1 + max((_depth(inner) for inner in item), default=0)


def plan_file_of(chain: Chain, plan: Plan) -> PlanFile:
    """Return the plan as a file for the model: with named blocks.

    Raises UserError if the chain names no blocks, or none for a stage that the plan checkpoints or gives a save option.
    """
    blocks = {block.name: block.parameters for stage in chain.stages for block in stage.blocks}
    again = [place for run in segments(plan.items) for place in run if isinstance(place, int)]
    options = dict(plan.options)
    unknown = [stage.name for stage in map(chain.stages.__getitem__, [*again, *options]) if not stage.blocks]
    if unknown or not blocks:
        what = (
            f"stage '{unknown[0]}' has no known blocks: this" if blocks else "these stages have no known blocks: their"
        )
        hint = "`gcprof stages MODEL -o costs.json` writes stages with their blocks"
        raise UserError(f"{what} plan cannot be applied to a model", hint=hint)
    schema = OFFLOADING if plan.offloaded else SCHEMA
    return PlanFile(schema=schema, plan=render(plan), segments=_segments(chain, plan), fingerprint=blocks)


def words(chain: Chain, plan: Plan) -> str:
    """Return what a plan recomputes, by the names of blocks, or of stages that have none."""
    return segment_words(_segments(chain, plan), [name for stage in chain.stages for name in _names(stage)])


def _segments(chain: Chain, plan: Plan) -> tuple[Segment, ...]:
    """Return the segments of a plan; plainly kept blocks are in none."""
    return tuple(piece for piece in _pieces(plan, list(map(_names, chain.stages))) if isinstance(piece, Segment))


def _names(stage: Stage) -> list[str]:
    return [block.name for block in stage.blocks] or [stage.name]


def _pieces(plan: Plan, names: Sequence[Sequence[str]], items: tuple[Item, ...] | None = None) -> list[str | Segment]:
    """Return a plan as blocks and segments; `names` are the blocks of each stage.

    A segment whose input waits in host memory says where it is fetched.
    """
    options, pieces = dict(plan.options), list[str | Segment]()
    for item in plan.items if items is None else items:
        if isinstance(item, int):
            is_saved = item in options
            pieces += [Segment(blocks=tuple(names[item]), save=options[item])] if is_saved else names[item]
            continue
        first, *_, last = (*flat(item), *flat(item))
        fetched_at = names[last + 1][-1] if items is None and first in plan.offloaded else None
        pieces.append(Segment(blocks=tuple(_pieces(plan, names, item)), fetched_at=fetched_at))
    return pieces
