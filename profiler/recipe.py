"""A plan as users keep it: which blocks run under which checkpoints, in a JSON file. Knows nothing of costs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from profiler.errors import UserError

SCHEMA = 1


class Segment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Consecutive blocks, and segments of them, that are computed again together in the backward."""

    blocks: tuple[str | Segment, ...]
    save: str | None = None  # the results that are kept: matmul, conv, attention, joined by +; None: nothing


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan does to a model, and what the model was when it was made."""

    schema: int = SCHEMA
    plan: str  # in the planner's words: `[1-3] 4 [5] 6-12`
    segments: tuple[Segment, ...]
    fingerprint: dict[str, tuple[str, ...]]  # all blocks in order, each with its parameters: `weight float32 64 x 3`


def read(path: Path) -> Recipe:
    """Raises UserError for a file that is not there, is damaged, or of another schema."""
    hint = "`gcprof plan` writes one with -o plan.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Recipe)
    except OSError as error:
        raise UserError(f"cannot read the plan '{path}': {error.strerror}", hint=hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"'{path}' is not a plan: {error}", hint=hint) from None
    if found.schema != SCHEMA:
        raise UserError(f"'{path}' is of schema {found.schema}, this gcprof reads {SCHEMA}", hint="plan again")
    return found


def write(recipe: Recipe, path: Path) -> None:
    """As JSON."""
    path.write_bytes(encoded(recipe))


def encoded(recipe: Recipe) -> bytes:
    """As `write` writes it."""
    return msgspec.json.format(msgspec.json.encode(recipe), indent=1) + b"\n"


def changes(recipe: Recipe, fingerprint: dict[str, tuple[str, ...]]) -> list[str]:
    """What is different in a model since the recipe was made, in words; nothing where it still fits."""
    before, now = recipe.fingerprint, fingerprint
    return [
        *(f"block '{name}' is gone" for name in before if name not in now),
        *(f"block '{name}' is new" for name in now if name not in before),
        *(line for name in before if name in now for line in _differences(name, before[name], now[name])),
    ]


def names(segment: Segment) -> list[str]:
    """All blocks of a segment, in order."""
    return [name for item in segment.blocks for name in (names(item) if isinstance(item, Segment) else [item])]


def _differences(block: str, before: Iterable[str], now: Iterable[str]) -> list[str]:
    was, are = (dict(_halves(words)) for words in (before, now))
    return [
        f"{block}.{name} was {was.get(name, 'not there')}, is {are.get(name, 'not there')}"
        for name in dict.fromkeys([*was, *are])
        if was.get(name) != are.get(name)
    ]


def _halves(words: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, rest) for name, _, rest in (word.partition(" ") for word in words)]
