"""The JSON file of a plan: which blocks run under which checkpoints; and what strategies are called on screens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path, PurePath

import msgspec

from profiler.core import by_key, safe_files
from profiler.core.case import Choice, encode_indented
from profiler.core.errors import UserError

SCHEMA = 1
OFFLOADING = 2  # the schema of plans with inputs in host memory, and otherwise as 1
HOST = "host"  # after a segment in the planner's notation: its input waits in host memory
SHORTENED = 3  # so many single blocks in a row are shortened to the first and the last
FOLDER = "plans"  # the subfolder of a run folder that holds its plans
NUMBERED = re.compile(r"(uniform|first|every)-(\d+)", re.ASCII)  # files of plans that follow a rule
USUAL = "plan.json"  # the default file of the strategy `plan`
HINT = "`gcprof plan` writes one with -o plan.json"
GROUPS = {  # aten operators, by the word for their group
    "matmul": ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm"),
    "conv": ("convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution"),
    "attention": (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    ),
}


class Segment(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, cache_hash=True
):
    """Consecutive blocks, and segments nested in them, that are recomputed together in the backward."""

    blocks: tuple[str | Segment, ...]
    save: str | None = None  # results to keep: matmul, conv, attention or aten operators, joined by +; None: nothing
    # The block after it at whose backward its input is fetched from host memory; None: the input stays on the device.
    fetched_at: str | None = None


class PlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan does to a model, and a fingerprint of the model that it was made for."""

    schema: int = SCHEMA
    plan: str  # in the planner's notation, of stages: `[1-3] 4 [5] 6-12`; only `segments` is applied
    segments: tuple[Segment, ...]
    fingerprint: dict[str, tuple[str, ...]]  # all blocks in order, each with its parameters: `weight float32 64 x 3`
    levers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET  # with which `fit` found it, if with any

    def __post_init__(self) -> None:
        """Raise ValueError if a segment is not a run of consecutive blocks, or if segments overlap."""
        blocks = list(self.fingerprint)
        for segment in every(self.segments):
            run = names(segment)
            if unknown := [name for name in run if name not in self.fingerprint]:
                raise ValueError(f"'{unknown[0]}' is not one of its blocks")
            if not run or run != blocks[blocks.index(run[0]) :][: len(run)]:
                raise ValueError(f"segment [{' '.join(run)}] is not a sequence of consecutive blocks")
            at, named = segment.fetched_at, f"the input of segment [{' '.join(run)}]"
            if at is not None and at not in blocks[blocks.index(run[-1]) + 1 :]:
                raise ValueError(f"{named} is fetched at '{at}', no block after it")
        for inner in (inner for segment in self.segments for inner in every(segment.blocks)):
            if inner.fetched_at is not None:
                raise ValueError(f"the input of segment [{' '.join(names(inner))}] is fetched within another segment")
        if self.schema < OFFLOADING and any(segment.fetched_at for segment in self.segments):
            raise ValueError(f"inputs in host memory are of schema {OFFLOADING}")
        counts = Counter(name for segment in self.segments for name in names(segment))
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"'{twice[0]}' is in two segments")

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, replacing any existing file. Raises UserError (exit code 74) if it cannot."""
        write(self, Path(path))


def read(path: Path) -> PlanFile:
    """Return the plan in a file. Raises UserError if the file is missing, damaged or of another schema."""
    try:
        text = safe_files.read(path)
        schema = safe_files.written_schema(text)
        if schema not in (SCHEMA, OFFLOADING):
            raise UserError(f"'{path}' is of schema {schema}, this gcprof reads {OFFLOADING}", hint="plan again")
        return msgspec.json.decode(text, type=PlanFile)
    except OSError as error:
        raise UserError(f"cannot read the plan '{path}': {error.strerror}", hint=HINT) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"'{path}' is not a plan: {error}", hint=HINT) from None


def write(plan: PlanFile, path: Path) -> None:
    """Write the plan as JSON, replacing an existing file. Raises UserError (exit code 74) if it cannot be written."""
    safe_files.write(path, encode_indented(plan))


def changes(plan: PlanFile, fingerprint: dict[str, tuple[str, ...]]) -> list[str]:
    """Return what changed in a model since the plan was made, in words; empty if the plan still fits."""
    before, now = plan.fingerprint, fingerprint
    lines = [f"block '{name}' is gone" for name in before if name not in now]
    lines += [f"block '{name}' is new" for name in now if name not in before]
    for block in (name for name in before if name in now):
        was, are = (
            {name: rest for name, _, rest in (word.partition(" ") for word in of[block])} for of in (before, now)
        )
        lines += [
            f"{block}.{name} was {was.get(name, 'not there')}, is {are.get(name, 'not there')}"
            for name in dict.fromkeys([*was, *are])
            if was.get(name) != are.get(name)
        ]
    return lines


def operators(save: str) -> tuple[str, ...]:
    """Return the aten operators that a save option such as `matmul+gelu` names, by group or by operator."""
    return tuple(name for word in save.split("+") for name in GROUPS.get(word, (word,)))


def every(segments: Iterable[str | Segment]) -> Iterator[Segment]:
    """Yield all segments, each before the ones nested in it."""
    for segment in segments:
        if isinstance(segment, Segment):
            yield segment
            yield from every(segment.blocks)


def recomputes(items: Iterable[str | Segment], times: int = 0) -> dict[str, int]:
    """Return how often each block is recomputed, with `times` by the segments around all of these items.

    A block is recomputed once per segment around it, except for a segment that is the last item of another: the outer
    recompute ends where the inner checkpoint has its input.
    """
    counts: dict[str, int] = {}
    for item in items:
        if isinstance(item, str):
            counts[item] = times
        else:
            *others, last = item.blocks
            counts |= recomputes(others, times + 1) | recomputes([last], times + isinstance(last, str))
    return counts


def words(plan: PlanFile) -> str:
    """Return what a plan recomputes, by the names of its blocks, as `segment_words` does."""
    return segment_words(plan.segments, list(plan.fingerprint))


def segment_words(segments: Sequence[Segment], blocks: Sequence[str]) -> str:
    """Return segments by the names of their blocks, of these: `layers: [0-2] [4]..[6] 8:matmul`, or `nothing`.

    A parent that they all have stands in front, once. 0 to 2 are recomputed together, 4 to 6 each by itself, and 8
    but for the results of its matrix products. `[0-2]:host` has its input in host memory.
    """
    parents = {name.rpartition(".")[0] for segment in segments for name in names(segment)}
    parent = parents.pop() if len(parents) == 1 else ""
    places = {name: (at, name[len(parent) + 1 :] if parent else name) for at, name in enumerate(blocks)}
    in_order = sorted(segments, key=lambda segment: places[names(segment)[0]])
    text = notation(in_order, places, shortens=True)
    return f"{parent}: {text}" if parent and text else text or "nothing"


def names(item: str | Segment) -> list[str]:
    """Return all blocks of a segment, in order; of a block, itself."""
    return [item] if isinstance(item, str) else [name for inner in item.blocks for name in names(inner)]


def notation(items: Sequence[str | Segment], places: Mapping[str, tuple[int, str]], *, shortens: bool = False) -> str:
    """Return items in words; `places` are the number and the short name of each block."""
    pieces: list[str] = []
    for key, group in groupby(enumerate(items), key=lambda numbered: _group_key(numbered[0], numbered[1], places)):
        run = [item for _, item in group]
        first, *_, last = [places[name][1] for item in run for name in (names(item) * 2)]
        if key[0] == "alone" and shortens and len(run) >= SHORTENED:
            pieces.append(f"[{first}]..[{last}]")
        elif isinstance(run[0], Segment) and key[0] in ("alone", "segment"):
            inside = (notation(one.blocks, places, shortens=shortens) for one in run if isinstance(one, Segment))
            pieces += [f"[{text}]{_ending(run[0])}" for text in inside]
        else:
            end = re.search(r"\d*$", last, re.ASCII)[0]  # type: ignore[index]
            is_numbered = end and re.fullmatch(re.escape(last.removesuffix(end)) + r"\d+", first, re.ASCII)
            span = f"{first}-{end}" if is_numbered else f"{first} to {last}"  # 0-2, encoder.0-2, or stem to head
            pieces.append((first if first == last else span) + _ending(run[0]))
    return " ".join(pieces)


def _group_key(at: int, item: str | Segment, places: Mapping[str, tuple[int, str]]) -> tuple[str, int]:
    """Return a key of neighbours that are one piece: kept blocks, or blocks that are recomputed each by itself."""
    distance = places[names(item)[0]][0] - at
    if isinstance(item, str):
        return "kept", distance
    if len(item.blocks) > 1 or isinstance(item.blocks[0], Segment) or (item.fetched_at and not item.save):
        return "segment", at
    return _ending(item) or "alone", distance


def _ending(item: str | Segment) -> str:
    if isinstance(item, str):
        return ""
    return "".join(f":{word}" for word in (item.save, HOST if item.fetched_at else None) if word)


def strategy_label(strategy: Choice) -> str:
    """Return `uniform(4)` for `plan:file=results/x/plans/uniform-4.json`, `plan:mine.json` for a file elsewhere."""
    path = _file(strategy)
    if path is None or len(path.parts) < 2:
        return str(strategy)
    numbered = NUMBERED.fullmatch(path.stem)
    plan = f"{numbered[1]}({numbered[2]})" if numbered else path.stem
    return "+".join([plan if path.parent.name == FOLDER else f"plan:{path.name}", *strategy.parts[1:]])


def strategy_labels(strategies: Iterable[Choice]) -> list[str]:
    """Return the label of each strategy; strategies that would share one keep their full text."""
    labelled = [(strategy_label(strategy), strategy) for strategy in strategies]
    uses = Counter(label for label, _ in set(labelled))
    return [label if uses[label] == 1 else str(strategy) for label, strategy in labelled]


def files_of_labels(strategies: Iterable[Choice]) -> list[str]:
    """Return lines for the foot of a table that name the folders of the plans shown by their labels."""
    chosen = list(dict.fromkeys(strategies))
    if all(_file(strategy) is None for strategy in chosen):
        return []
    labelled = [(_file(one), label) for one, label in zip(chosen, strategy_labels(chosen), strict=True) if label != one]
    folders = by_key((str(path.parent), label) for path, label in labelled if path is not None)
    return [f"plans of {', '.join(labels)}: {folder}" for folder, labels in folders.items()]


def _file(strategy: Choice) -> PurePath | None:
    """Return the file of a plan; None for any other strategy."""
    if not strategy.startswith("plan") or strategy.parts[0].name != "plan":
        return None
    return PurePath(strategy.parts[0].options.get("file", USUAL))
