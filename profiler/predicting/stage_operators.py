"""Assigns the operators of a traced step to stages, and the bytes that each holds, and makes a chain of them.

The peaks of a model's other blocks are estimated from such chains.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec

from profiler.analysis.live_bytes import stage_of
from profiler.analysis.peak_floor import floor
from profiler.core import by_key
from profiler.core.errors import NotOnce, Unsupported
from profiler.core.gpu_specs import Rates
from profiler.core.trace_data import BlockChoice, BlockChoices, Save, Trace, live, operator_seconds, resting, summed
from profiler.planning.chain import INNER, RECOMPUTED, Chain, SaveOption, Stage, StageModule
from profiler.planning.simulator import all_stages, simulate
from profiler.predicting.stage_seconds import EVERY, NOTHING, TOGETHER, Seconds, StageSpan
from profiler.predicting.step_tracer import INNER_BACKWARD
from profiler.training.blocks import offered_blocks
from profiler.training.observed_forward import NOT_ONCE
from profiler.training.workload import Workload

EMPTY = Stage(
    name="", forward_seconds=0.0, backward_seconds=0.0, output_bytes=0, saved_bytes=0, forward_extra_bytes=0,
    backward_extra_bytes=0, pinned=True,
)  # fmt: skip
MOST_CHOICES = 24  # choices that are evaluated, the shallowest first


def spans(trace: Trace, blocks: Sequence[str], *, linked: Sequence[bool] = ()) -> list[StageSpan]:
    """Return the stages in forward order; every operator of forward and backward is in one.

    `trace` must have been traced with its saves. In the backward, a stage begins with the first operator of its
    modules, or where its first saved tensor is unpacked. With `linked` (which blocks feed the next alone), a block that
    overwrites its input, or neither keeps it nor saves more than a checkpoint would, is merged with the block before,
    since a cut between them saves nothing. Raises NotOnce if blocks do not run once each, in order.
    """
    pieces = list(_pieces(trace, blocks))
    starts = _starts(trace, blocks, pieces)
    ends = [_last(trace, "backward")[1], *(start - 1 for start in starts[:-1])]  # each ends where the one before begins
    stages = [
        msgspec.structs.replace(piece, backward_first=start, backward_last=end)
        for (piece, _), start, end in zip(pieces, starts, ends, strict=True)
    ]
    if not linked:
        return stages
    return [
        msgspec.structs.replace(stage, feeds_next=bool(stage.blocks) and linked[stage.blocks[-1]])
        for stage in _merged(trace, stages, linked)
    ]


def refuse_backward_in_forward(trace: Trace) -> None:
    """Raise Unsupported if a forward of the step unpacks what autograd has saved, as only a backward does."""
    forwards = [(first, last) for phase, first, last in trace.spans() if phase == "forward"]
    unpacked = [save.unpacked for save in trace.saves if save.unpacked is not None]
    if any(first <= number < last for number in unpacked for first, last in forwards):
        raise Unsupported(INNER_BACKWARD)


def _merged(trace: Trace, stages: list[StageSpan], linked: Sequence[bool]) -> Iterator[StageSpan]:
    """Yield the stages; a block that overwrites or drops its input and saves no more is one with the block before."""
    before = stages[0]
    for stage in stages[1:]:
        is_next = bool(stage.blocks) and before.last + 1 == stage.first  # nothing runs between them
        if is_next and before.blocks and linked[before.blocks[-1]] and _passes(trace, before, stage):
            before = msgspec.structs.replace(
                stage,
                blocks=before.blocks + stage.blocks,
                name=f"{before.name.partition('-')[0]}-{stage.name}",
                first=before.first,
                backward_last=before.backward_last,
                stop=max(before.stop, stage.stop),
            )
            continue
        yield before
        before = stage
    yield before


def _passes(trace: Trace, before: StageSpan, stage: StageSpan) -> bool:
    if before.outputs & stage.outputs:
        return True
    given = [trace.allocations[place] for place in before.outputs]
    if all(held.died > stage.last for held in given):
        return False
    own = [
        allocation.nbytes
        for place, allocation in enumerate(trace.allocations)
        if stage.first <= allocation.born <= stage.last < stage.backward_first <= allocation.died
        and place not in stage.outputs
    ]
    return sum(own) <= sum(held.nbytes for held in given)


def _last(trace: Trace, phase: str) -> tuple[int, int]:
    """Return the first and last operator of the last forward or backward."""
    return [(first, last) for name, first, last in trace.spans() if name == phase][-1]


def _pieces(trace: Trace, blocks: Sequence[str]) -> Iterator[tuple[StageSpan, Sequence[Save]]]:
    """Yield the forward of the blocks in order, and of whatever runs before, between and after them, with its saves.

    Outside of blocks, outputs are the inputs of the next block.
    """

    def piece(
        blocks: tuple[int, ...], name: str, numbers: tuple[int, int], saves: tuple[int, int], given: tuple[int, ...]
    ) -> tuple[StageSpan, Sequence[Save]]:
        (first, last), saved = numbers, trace.saves[slice(*saves)]
        stop = max((save.packed for save in saved), default=first - 1)
        return StageSpan(blocks=blocks, name=name, first=first, last=last, outputs=frozenset(given), stop=stop), saved

    at, end = _last(trace, "forward")
    called = [call for call in trace.calls if call.before >= at - 1]
    unpacked = [save.unpacked is not None for save in trace.saves]  # of what no backward reads, a policy may act
    trained = [call for call in called if not call.module and any(unpacked[slice(*call.saves)])] or called
    inside = [
        call
        for call in called
        if call.module in blocks and any(one.before <= call.before and call.last <= one.last for one in trained)
    ]
    outermost = {(call.module, call.last): call for call in inside}  # a checkpointed block calls itself; both end alike
    calls = sorted(outermost.values(), key=lambda call: call.last)
    if [call.module for call in calls] != list(blocks) or any(a.last > b.before for a, b in pairwise(calls)):
        raise NotOnce(NOT_ONCE)
    done, name = bisect_left(trace.saves, at - 1, key=lambda save: save.packed), ""
    for index, call in enumerate(calls):
        if call.before >= at:
            between = f"between {name} and {call.module}" if name else f"before {call.module}"
            yield piece((), between, (at, call.before), (done, call.saves[0]), call.inputs)
        yield piece((index,), call.module, (call.before + 1, call.last), call.saves, call.outputs)
        at, done, name = call.last + 1, call.saves[1], call.module
    yield piece((), f"after {name}", (at, end), (done, len(trace.saves)), ())


def _starts(trace: Trace, blocks: Sequence[str], pieces: list[tuple[StageSpan, Sequence[Save]]]) -> list[int]:
    """Return the first backward operator of each stage: the last stage begins the backward, an unseen one is empty."""
    stage = stage_of(tuple(blocks))
    begin, end = _last(trace, "backward")
    first_of: dict[str, int] = {}
    for number, operator in enumerate(trace.operators[begin - 1 : end], start=begin):
        first_of.setdefault(stage(operator.module), number)
    starts, at = list[int](), end + 1
    for piece, saves in pieces[:-1]:
        unpacking = [save.unpacked + 1 for save in saves if save.unpacked is not None]
        own = [first_of[piece.name]] if piece.blocks and piece.name in first_of else []
        at = min((at, *unpacking, *own))  # a stage begins no later than the one before it, which runs after it
        starts.append(at)
    return [*starts, min(at, begin)]


def held(trace: Trace, stages: Sequence[StageSpan]) -> list[Stage]:
    """Return every stage with its bytes alone, from a step in which all are kept.

    Planners count an output as held until the next stage's backward; inputs that a pinned stage does not keep, as `cat`
    keeps no block's output, are deducted from its saves.
    """
    by_birth = by_key((allocation.born, place) for place, allocation in enumerate(trace.allocations))
    made = [(one.nbytes, one.born) for one in trace.allocations if one.category == "gradients"]
    between = ((one.nbytes, one.born, max(one.born, one.died) - 1) for one in trace.allocations)
    alive, rest = live(trace), summed(between, len(trace.operators))  # the latter after each operator has ended
    freed, counted, later = _freed(trace, stages), [], 0
    for stage, before in zip(stages[::-1], [*stages[-2::-1], None], strict=True):
        own = [place for number in range(stage.first, stage.last + 1) for place in by_birth.get(number, ())]
        gradients = sum(nbytes for nbytes, born in made if stage.backward_first <= born <= stage.backward_last)
        later += gradients
        backward = max(alive[stage.backward_first : stage.backward_last + 1], default=0)
        backward -= rest[stage.first - 1] - freed + later  # what was live before its forward, and gradients so far
        own_outputs = [trace.allocations[place] for place in own if place in stage.outputs]
        outputs = sum(one.nbytes for one in own_outputs)
        kept = (trace.allocations[place] for place in own if place not in stage.outputs)
        saved = outputs + sum(one.nbytes for one in kept if one.died > stage.last)
        own_saved = saved - sum(one.nbytes for one in own_outputs if one.died < stage.backward_first)
        inputs = [trace.allocations[place] for place in before.outputs] if before and not stage.blocks else []
        gone = sum(one.nbytes for one in inputs if before and before.first <= one.born and one.died <= stage.last)
        taken = min(gone, saved)
        beside = 0 if stage.blocks else freed
        counted.append(
            msgspec.structs.replace(
                EMPTY,
                name=stage.name,
                output_bytes=outputs,
                saved_bytes=saved - taken,
                own_saved_bytes=min(own_saved, saved - taken),
                forward_extra_bytes=max(0, _peak(trace, stage, own, saving=True) - saved) + taken + beside,
                plain_forward_extra_bytes=max(0, _peak(trace, stage, own, saving=False) - outputs) + beside,
                backward_extra_bytes=backward - outputs - min(own_saved, saved - taken),
                gradient_bytes=gradients,
            )
        )
    return counted[::-1]


def _freed(trace: Trace, stages: Sequence[StageSpan]) -> int:
    """Return the bytes from before the step that are freed between forward and backward, as gradients often are.

    No recompute has them beside it. They count in the forward of pinned stages, of which the last is the largest.
    """
    begin, last = _last(trace, "backward")[0], stages[-1]
    gone = (one for one in trace.allocations if not one.born and last.first - 1 <= one.died < begin)
    return sum(one.nbytes for one in gone)


def _peak(trace: Trace, stage: StageSpan, own: Iterable[int], *, saving: bool) -> int:
    """Return the peak of what the stage's forward allocates; without `saving`, as if autograd kept nothing. Bytes."""
    change = [0] * (stage.last - stage.first + 3)
    for place in own:
        allocation = trace.allocations[place]
        let_go = None if saving or place in stage.outputs else allocation.let_go
        end = allocation.died if let_go is None else let_go
        change[allocation.born - stage.first] += allocation.nbytes
        change[min(end, stage.last) - stage.first + 1] -= allocation.nbytes
    operators = trace.operators[stage.first - 1 : stage.last]
    return max(
        (at + allocation.hidden_bytes for at, allocation in zip(accumulate(change), operators, strict=False)), default=0
    )


def chain_of(
    trace: Trace,
    stage_spans: Sequence[StageSpan],
    prints: Mapping[str, tuple[str, ...]],
    seconds: Sequence[Seconds],
    *,
    options: Mapping[str, Mapping[str, Stage]],
) -> Chain:
    """Return the chain of a step without checkpointing; where two blocks must not be computed together, an empty pinned
    stage is between them.

    `prints` has the parameters of each block in order, `options` the bytes of stages under each save option, by name.
    """
    blocks = [StageModule(name=name, parameters=parameters) for name, parameters in prints.items()]
    made, before, alive = list[Stage](), None, live(trace)
    outside = [range(first, last + 1) for phase, first, last in trace.spans() if phase not in ("forward", "backward")]
    for span, stage, time in zip(stage_spans, held(trace, stage_spans), seconds, strict=True):
        if before and before.blocks and span.blocks and not before.feeds_next:
            made.append(msgspec.structs.replace(EMPTY, name=f"between {before.name} and {span.name}"))
        saves = {save: of[span.name] for save, of in options.items() if span.name in of and save in time.options}
        made.append(timed_stage(stage, time, blocks=tuple(blocks[index] for index in span.blocks), saves=saves))
        before = span
    return Chain(
        input_bytes=0,  # the batch is live before the step
        static_bytes=resting(trace, stage_spans[0].first - 1) - _freed(trace, stage_spans),
        floor_bytes=max((alive[at] for numbers in outside for at in numbers), default=0),  # as in the optimizer's step
        traced_peak_bytes=max(alive),
        stages=tuple(made),
        doubts={
            {EVERY: RECOMPUTED, TOGETHER: INNER}.get(way, way): doubt
            for way, doubt in next((time.doubts for time in seconds if time.doubts), {}).items()
        },
    )


def timed_stage(stage: Stage, time: Seconds, *, blocks: tuple[StageModule, ...], saves: Mapping[str, Stage]) -> Stage:
    """Return the stage with its seconds and modules; without any it is pinned. `saves` has its bytes by save option."""
    return msgspec.structs.replace(
        stage,
        forward_seconds=time.forward,
        backward_seconds=time.backward,
        early_stop_seconds=time.early_stop,
        inner_recompute_seconds=time.inner,
        inner_error_seconds=time.inner_error,
        error_seconds=time.error,
        options=tuple(
            SaveOption(
                name=save,
                saved_bytes=of.saved_bytes,
                own_saved_bytes=of.own_saved_bytes,
                forward_extra_bytes=of.forward_extra_bytes,
                backward_extra_bytes=of.backward_extra_bytes,
                forward_seconds=time.options[save][0],
                backward_seconds=time.options[save][1],
                error_seconds=time.option_errors.get(save, 0.0),
            )
            for save, of in saves.items()
        ),
        pinned=not blocks,
        blocks=blocks,
    )


def estimated_seconds(
    trace: Trace,
    stages: Sequence[StageSpan],
    selective: Mapping[str, tuple[Trace, Mapping[str, StageSpan]]],
    rates: Rates,
    precision: str,
) -> list[Seconds]:
    """Return the seconds of each stage with ideal kernels. `selective` has, for each save option, the trace of a step
    with it and that step's stages by name. The optimizer's time is counted in the last stage.
    """

    def clock(trace: Trace) -> Callable[[int, int], float]:
        until = [0.0, *accumulate(operator_seconds(operator, rates, precision) for operator in trace.operators)]
        return lambda first, last: max(0.0, until[last] - until[first - 1])  # both included; 0 if there are none

    def both(between: Callable[[int, int], float], span: StageSpan) -> tuple[float, float]:
        return between(span.first, span.last), between(span.backward_first, span.backward_last)

    between, found = clock(trace), list[Seconds]()
    others = {save: (clock(selective_trace), spans) for save, (selective_trace, spans) in selective.items()}
    for stage in stages:
        forward, backward = both(between, stage)
        saves = {save: both(clock, of[stage.name]) for save, (clock, of) in others.items() if stage.name in of}
        stop = between(stage.first, min(stage.stop, stage.last))
        found.append(Seconds(forward=forward, backward=backward, early_stop=stop, options=saves))
    inside = sum(stage.forward + stage.backward for stage in found)
    more, last = max(0.0, between(1, len(trace.operators)) - inside), found[-1]
    last = msgspec.structs.replace(last, forward=last.forward + more, early_stop=last.early_stop + more)
    return [*found[:-1], last]


def proved_floor(trace: Trace, blocks: tuple[str, ...]) -> int:
    """Return the bytes that no checkpointing of these blocks gets below."""
    return floor(trace, blocks=blocks, is_proof=True).nbytes


def block_choices(trace: Trace, workload: Workload) -> BlockChoices:
    """Return the memory floor, and the peak under `all`, of the current blocks and of the model's other block choices.

    `trace` must have been traced with its saves. A choice is left out if one of its blocks did not run.
    """

    def choice(pattern: str, names: tuple[str, ...]) -> BlockChoice:
        return BlockChoice(
            pattern=pattern,
            num_blocks=len(names),
            floor_bytes=floor(trace, blocks=names).nbytes,
            all_bytes=_peak_of_all(trace, names),
        )

    ran = {call.module for call in trace.calls}
    offered, blocks = offered_blocks(workload.module), workload.blocks
    own = next((pattern for pattern, names in offered.items() if names == blocks), "")
    others = [(pattern, names) for pattern, names in offered.items() if names != blocks and ran.issuperset(names)]
    return BlockChoices(own=choice(own, blocks), others=tuple(choice(*other) for other in others[:MOST_CHOICES]))


def _peak_of_all(trace: Trace, blocks: tuple[str, ...]) -> int | None:
    """Return the peak with each block checkpointed by itself; None if its blocks are not a chain of stages."""
    ends = {call.module: call.last for call in trace.calls}
    blocks = tuple(sorted(blocks, key=lambda name: ends[name]))  # in the order in which they run
    try:
        refuse_backward_in_forward(trace)
        stages = spans(trace, blocks)
    except (NotOnce, Unsupported):
        return None
    chain = chain_of(trace, stages, dict.fromkeys(blocks, ()), [NOTHING] * len(stages), options={})
    return simulate(chain, all_stages(chain)).peak_bytes
