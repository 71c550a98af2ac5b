"""Chains to plan for, every plan of a small one, and plans of the text that `profiler.planning.chain.render` writes."""

import random
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from profiler.planning.chain import Chain, Item, Plan, SaveOption, Stage, StageModule, fault, flat, segments
from profiler.planning.simulator import Cost, simulate
from profiler.planning.solver import Frontier

FOLDER = Path(__file__).parent / "planning"
NAMED = ("hetero12", "transformer60")


def equal_stages(number: int, *, output: int = 1, saved: int = 1, own: int | None = None) -> Chain:
    """A chain of equal stages, a second forward and no time backward."""
    stage = Stage(
        name="", forward_seconds=1.0, backward_seconds=0.0, output_bytes=output, saved_bytes=saved,
        forward_extra_bytes=0, backward_extra_bytes=0, own_saved_bytes=own,
    )  # fmt: skip
    return Chain(input_bytes=output, stages=(stage,) * number)


def with_modules(chain: Chain, *modules: str) -> Chain:
    """The chain whose stages are these modules, in words, each with a parameter; if none are given, one of its name."""
    names = [words.split() for words in modules or [stage.name for stage in chain.stages]]
    blocks = [tuple(StageModule(name=name, parameters=(f"{name} float32 2",)) for name in of) for of in names]
    return replace(chain, stages=tuple(map(lambda stage, of: replace(stage, blocks=of), chain.stages, blocks)))


def random_chain(seed: int, number: int, *, options: int = 0, pins: bool = False) -> Chain:
    """All that a stage may cost, with so many save options at most: every second in numbers so small that plans tie."""
    draw = random.Random(seed)
    scale = 1 if seed % 2 else 99_991
    return Chain(
        input_bytes=draw.randint(0, 9 * scale),
        stages=tuple(_stage(draw, scale, place, options, pins=pins) for place in range(number)),
        static_bytes=draw.choice((0, 50)) * scale,
        floor_bytes=draw.choice((0, 0, 120)) * scale,
    )


def _stage(draw: random.Random, scale: int, place: int, options: int, *, pins: bool) -> Stage:
    output = draw.randint(0, 12 * scale)
    saved = output + draw.randint(0, 40 * scale)
    forward = draw.randint(1, 9 * scale) / 1000 / scale
    return Stage(
        name=f"stage{place}",
        forward_seconds=forward,
        backward_seconds=draw.randint(1, 20 * scale) / 1000 / scale,
        output_bytes=output,
        saved_bytes=saved,
        forward_extra_bytes=draw.randint(0, 20 * scale),
        backward_extra_bytes=draw.randint(0, 25 * scale),
        own_saved_bytes=draw.choice((None, saved - output)),
        plain_forward_extra_bytes=draw.choice((None, draw.randint(0, 20 * scale))),
        gradient_bytes=draw.choice((0, draw.randint(0, 15 * scale))),
        early_stop_seconds=draw.choice((None, forward * 0.7)),
        inner_recompute_seconds=draw.choice((None, forward * 1.3)),
        options=tuple(_option(draw, scale, f"o{each}", saved) for each in range(draw.randint(0, options))),
        pinned=pins and draw.random() < 0.2,
    )


def _option(draw: random.Random, scale: int, name: str, saved: int) -> SaveOption:
    less = draw.randint(0, saved)
    return SaveOption(
        name=name,
        saved_bytes=less,
        own_saved_bytes=draw.choice((None, draw.randint(0, less))),
        forward_extra_bytes=draw.randint(0, 20 * scale),
        backward_extra_bytes=draw.randint(0, 40 * scale),
        forward_seconds=draw.randint(1, 9 * scale) / 1000 / scale,
        backward_seconds=draw.randint(5, 25 * scale) / 1000 / scale,
    )


def every_plan(chain: Chain, *, levels: int | None = None) -> Iterator[Plan]:
    """Every plan of a chain whose checkpoints are nested this deep at most."""
    for items in every_items(0, len(chain.stages), levels if levels is not None else len(chain.stages)):
        again = {stage for run in segments(items) for stage in flat(run)}
        if not any(chain.stages[stage].pinned for stage in again):
            yield from _with_options(chain, items, again)


@cache
def every_items(first: int, end: int, levels: int) -> tuple[tuple[Item, ...], ...]:
    """Every way to keep the stages from `first` to before `end` or put brackets round them."""
    if first == end:
        return ((),)
    found: list[tuple[Item, ...]] = [(first, *others) for others in every_items(first + 1, end, levels)]
    for last in range(first, end) if levels else ():
        for inner in every_items(first, last, levels - 1):
            found += [((*inner, last), *others) for others in every_items(last + 1, end, levels)]
    return tuple(found)


def lower_envelope(costs: Iterable[Cost]) -> list[tuple[int, float]]:
    """Bytes and seconds of those than which none is both smaller and faster."""
    found: list[tuple[int, float]] = []
    for cost in sorted(costs, key=lambda one: (one.peak_bytes, one.step_seconds)):
        if not found or cost.step_seconds < found[-1][1] - 1e-12:
            found.append((cost.peak_bytes, cost.step_seconds))
    return found


def best_of_all(chain: Chain, *, levels: int | None = None) -> list[tuple[int, float]]:
    """The frontier, by the simulator's word on every plan there is."""
    return lower_envelope(simulate(chain, plan) for plan in every_plan(chain, levels=levels))


def same(found: Frontier, expected: list[tuple[int, float]]) -> bool:
    """Equal bytes, and seconds that differ by rounding only, at every point."""
    return [*found.peak_bytes] == [nbytes for nbytes, _ in expected] and all(
        abs(seconds - other) < 1e-9 for seconds, (_, other) in zip(found.step_seconds, expected, strict=True)
    )


def _with_options(chain: Chain, items: tuple[Item, ...], again: set[int]) -> Iterator[Plan]:
    found: list[tuple[tuple[int, str], ...]] = [()]
    for place, stage in enumerate(chain.stages):
        if place not in again:
            found += [(*before, (place, one.name)) for before in found for one in stage.options]
    return (Plan(items=items, options=options) for options in found)


# --- plans of their text: `[1-3] 4 [5] 6-12`, `7-9:matmul`


TOKEN = re.compile(r"(?P<bracket>[\[\]])|(?P<first>\d+)(?:-(?P<last>\d+))?(?::(?P<option>[^\s\[\]]+))?|(?P<wrong>\S)")


def read(text: str) -> Plan:
    """What the text says, whether or not it is a plan of any chain."""
    stack: list[list[Item]] = [[]]
    options: list[tuple[int, str]] = []
    for token in TOKEN.finditer(text):
        assert not token["wrong"], text
        if token["bracket"] == "[":
            stack.append([])
        elif token["bracket"]:
            inner = tuple(stack.pop())
            stack[-1].append(inner)
        else:
            stages = range(int(token["first"]) - 1, int(token["last"] or token["first"]))
            stack[-1] += stages
            options += [(stage, token["option"]) for stage in stages if token["option"]]
    (items,) = stack
    return Plan(items=tuple(items), options=tuple(options))


def parse(text: str, num_stages: int) -> Plan:
    """A plan for this number of stages."""
    plan = read(text)
    assert fault(plan, num_stages) is None, text
    return plan
