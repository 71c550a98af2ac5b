"""A chain of stages with their costs, and plans: which stages are kept or checkpointed; both as data and as files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import hypot
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import UNSET

from profiler.core.errors import UserError
from profiler.core.plan_file import OFFLOADING, SCHEMA, PlanFile, Segment, notation, segment_words

Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]  # a TiB: sums for hundreds of stages fit 64 bits
ExtraBytes = Annotated[int, msgspec.Meta(ge=-(1 << 40), le=1 << 40)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Word = Annotated[str, msgspec.Meta(pattern=r"^[^\s\[\]:]+$")]  # part of a plan's notation: `7:matmul`
RECOMPUTED, INNER = "recomputed", "recomputed before others of its run"  # ways besides the save options
HINT = "each stage has name, forward_seconds, backward_seconds, output_bytes, saved_bytes, forward_extra_bytes, "
HINT += "backward_extra_bytes"

Item = int | tuple["Item", ...]  # a kept stage, or a checkpointed run of items


class SaveOption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Selective checkpointing of a kept stage: it saves less, and recomputes the rest in its own backward."""

    name: Word
    saved_bytes: Bytes
    own_saved_bytes: Bytes | None = None  # None: all of saved_bytes
    forward_extra_bytes: Bytes
    backward_extra_bytes: ExtraBytes
    forward_seconds: Seconds
    backward_seconds: Seconds
    error_seconds: Seconds = 0.0  # half the interval of how much longer it takes than the stage kept plainly

    @property
    def own_bytes(self) -> int:
        """The saved bytes that are left once the output is freed."""
        return self.saved_bytes if self.own_saved_bytes is None else self.own_saved_bytes


class StageModule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A module of the measured model."""

    name: str
    parameters: tuple[str, ...]  # `weight float32 64 x 3`


class Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The costs of one stage."""

    name: str
    forward_seconds: Seconds
    backward_seconds: Seconds
    output_bytes: Bytes
    saved_bytes: Bytes  # held after a saving forward while later stages run: with the output, without the input
    forward_extra_bytes: Bytes  # live only during a saving forward
    # Live only during the backward, with the gradient of the input, without that of the output; below 0 if what is
    # saved is freed before the gradients of parameters are allocated.
    backward_extra_bytes: ExtraBytes
    own_saved_bytes: Bytes | None = None  # what is left once the output is freed; None: all of saved_bytes
    plain_forward_extra_bytes: Bytes | None = None  # live only during a forward that saves nothing; None: as saving
    gradient_bytes: Bytes = 0  # parameter gradients that the backward allocates and leaves
    # A recompute that stops at its last saved tensor, and the checkpoint's own work on the host; None: a whole forward.
    early_stop_seconds: Seconds | None = None
    error_seconds: Seconds = 0.0  # half the interval of the last
    # A full recompute (the stage is not the last of its run), with PyTorch's own work for every tensor saved under a
    # checkpoint; None: a whole forward.
    inner_recompute_seconds: Seconds | None = None
    inner_error_seconds: Seconds = 0.0  # half the interval of the last
    options: tuple[SaveOption, ...] = ()
    blocks: tuple[StageModule, ...] = ()  # its modules; they are not interpreted here
    pinned: bool = False  # always kept, never inside a checkpoint

    @property
    def own_bytes(self) -> int:
        """The saved bytes that are left once the output is freed."""
        return self.saved_bytes if self.own_saved_bytes is None else self.own_saved_bytes

    @property
    def ways(self) -> tuple[Stage | SaveOption, ...]:
        """The costs of the stage kept plainly, and under each save option."""
        return (self, *self.options)

    def added_seconds(self, option: SaveOption) -> float:
        """Return how much longer the stage takes under a save option than kept plainly."""
        return option.forward_seconds + option.backward_seconds - self.forward_seconds - self.backward_seconds

    def may_pay(self, option: SaveOption) -> bool:
        """Whether a save option is faster than a checkpoint of the stage by more than the errors of both.

        Also true without errors, as in files and estimates, since the solver weighs such costs, and for a pinned stage.
        """
        error = hypot(option.error_seconds, self.error_seconds)
        return not error or self.pinned or self.added_seconds(option) + error < self.stop_seconds

    @property
    def plain_extra_bytes(self) -> int:
        """The bytes live only during a forward that saves nothing."""
        plain = self.plain_forward_extra_bytes
        return self.forward_extra_bytes if plain is None else plain

    @property
    def stop_seconds(self) -> float:
        """The time of a recompute that stops at its last saved tensor."""
        return self.forward_seconds if self.early_stop_seconds is None else self.early_stop_seconds

    @property
    def inner_seconds(self) -> float:
        """The time of the recompute of a stage that is not the last of its run."""
        return self.forward_seconds if self.inner_recompute_seconds is None else self.inner_recompute_seconds


class Chain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Stages that feed each other in order, and the loss after the last at no cost."""

    input_bytes: Bytes
    stages: Annotated[tuple[Stage, ...], msgspec.Meta(min_length=1)]
    static_bytes: Bytes = 0  # held throughout the step
    made_for: str = ""  # the model with its settings, in words
    notes: tuple[str, ...] = ()  # what is to be known of these costs, in words
    floor_bytes: Bytes = 0  # a peak that no plan changes: the optimizer's
    traced_peak_bytes: Bytes = 0  # of the step without checkpointing; 0: not traced, so that the costs give it
    host_rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # bytes per second to and from host memory; 0: not used
    workspace_bytes: Bytes = 0  # fixed workspace of a library, such as cuBLAS; also part of the stages' bytes
    # By way, as a fraction of what it adds to a stage: the part of the error that all stages have in common.
    doubts: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]] = {}


def with_sure_options(chain: Chain) -> Chain:
    """Return the chain without save options that may be no faster than a checkpoint, which saves more memory."""
    stages = tuple(
        msgspec.structs.replace(stage, options=tuple(filter(stage.may_pay, stage.options))) for stage in chain.stages
    )
    return msgspec.structs.replace(chain, stages=stages)


def fetches(chain: Chain, stage: int) -> bool:
    """Whether what waits in host memory can be fetched at a stage: it has a block that the backward reaches."""
    return bool(chain.stages[stage].blocks) or not any(one.blocks for one in chain.stages)


def option_names(chain: Chain) -> tuple[str, ...]:
    """Return the save options that at least one stage has."""
    return tuple(dict.fromkeys(option.name for stage in chain.stages for option in stage.options))


def read(path: Path) -> Chain:
    """Return the chain in a JSON file. Raises UserError if it cannot be read or is inconsistent."""
    try:
        chain = msgspec.json.decode(path.read_bytes(), type=Chain)
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}", hint="a JSON file with a chain's stages") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}", hint=HINT) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"'{path}' is not JSON: {error}", hint="a JSON file with a chain's stages") from None
    _check(chain, path)
    return chain


def _check(chain: Chain, path: Path) -> None:
    """Raise UserError for what the types do not exclude: duplicate names, a part that is larger than its whole."""
    least = max(chain.static_bytes, chain.floor_bytes)
    if 0 < chain.traced_peak_bytes < least:
        raise UserError(
            f"{path}: traced_peak_bytes are {chain.traced_peak_bytes}, and {least} are held whatever is recomputed",
            hint="leave traced_peak_bytes out, or write the stages anew with `gcprof stages`",
        )
    _unique((stage.name for stage in chain.stages), path, "stages", "give each stage a name of its own")
    blocks = (block.name for stage in chain.stages for block in stage.blocks)
    _unique(blocks, path, "blocks", "a block belongs to one stage")
    for stage in chain.stages:
        _unique((option.name for option in stage.options), path, f"options of '{stage.name}'", "give each its own name")
        for way in stage.ways:
            if way.own_bytes > way.saved_bytes:
                raise UserError(
                    f"{path}: own_saved_bytes of '{way.name}' are {way.own_saved_bytes}, saved_bytes {way.saved_bytes}",
                    hint="own_saved_bytes are saved_bytes without the output",
                )


def _unique(names: Iterable[str], path: Path, of: str, hint: str) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise UserError(f"{path}: two {of} are called '{twice[0]}'", hint=hint)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Stages in order, counted from 0; a tuple is a checkpointed run, and may contain others.

    A run ends in a plain stage: a nested checkpoint at its end would only repeat the recompute.
    """

    items: tuple[Item, ...]
    options: tuple[tuple[int, str], ...] = ()  # the stages that are kept under a save option
    # The first stages of the outermost runs whose inputs wait in host memory: each has landed where the run's forward
    # ends, and is fetched when the gradient of the output of the stage after the run arrives.
    offloaded: tuple[int, ...] = ()

    @property
    def is_nested(self) -> bool:
        """Whether a checkpointed run contains another."""
        return any(isinstance(item, tuple) for run in segments(self.items) for item in run)


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


def plan_file_of(chain: Chain, plan: Plan, levers: tuple[str, ...] = ()) -> PlanFile:
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
    return PlanFile(
        schema=schema, plan=render(plan), segments=_segments(chain, plan), fingerprint=blocks, levers=levers or UNSET
    )  # fmt: skip


def words(chain: Chain, plan: Plan) -> str:
    """Return what a plan recomputes, by the names of blocks, or of stages that have none."""
    return segment_words(_segments(chain, plan), [name for stage in chain.stages for name in _names(stage)])


def _segments(chain: Chain, plan: Plan) -> tuple[Segment, ...]:
    """Return the segments of a plan; plainly kept blocks are in none."""
    return tuple(piece for piece in _pieces(plan, list(map(_names, chain.stages))) if isinstance(piece, Segment))


def _names(stage: Stage) -> list[str]:
    return [block.name for block in stage.blocks] or [stage.name]


def _pieces(plan: Plan, names: Sequence[Sequence[str]], items: tuple[Item, ...] | None = None) -> list[str | Segment]:
    """Return a plan as blocks and segments, and where inputs are fetched; `names` are the blocks of each stage."""
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
