"""Makes a chain of stages of a traced step, with what each holds and costs; estimates the peaks of other blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from profiler.analysis.live_bytes import floor
from profiler.core.errors import NotOnce, Unsupported
from profiler.core.gpu_specs import Rates
from profiler.core.trace_data import BlockChoice, BlockChoices, Followed, Trace, live, operator_seconds, resting
from profiler.planning.candidates import all_stages
from profiler.planning.chain import INNER, RECOMPUTED, Chain, SaveOption, Stage, StageModule
from profiler.planning.simulator import simulate
from profiler.predicting.stage_operators import (
    StageBytes,
    StageSpan,
    floor_bytes,
    held,
    refuse_backward_in_forward,
    spans,
)
from profiler.predicting.stage_seconds import EVERY, NOTHING, TOGETHER, Seconds
from profiler.training.assemble import Assembled
from profiler.training.blocks import offered_blocks
from profiler.training.workload import Workload

EMPTY = Stage(
    name="", forward_seconds=0.0, backward_seconds=0.0, output_bytes=0, saved_bytes=0, forward_extra_bytes=0,
    backward_extra_bytes=0, pinned=True,
)  # fmt: skip
MOST_CHOICES = 24  # choices that are evaluated, the shallowest first


def chain_of(
    trace: Trace,
    stage_spans: Sequence[StageSpan],
    prints: Mapping[str, tuple[str, ...]],
    seconds: Sequence[Seconds],
    *,
    options: Mapping[str, Mapping[str, StageBytes]],
) -> Chain:
    """Return the chain of a step without checkpointing; where two blocks must not be computed together, an empty pinned
    stage is between them.

    `prints` has the parameters of each block in order, `options` the bytes of stages under each save option, by name.
    """
    blocks = [StageModule(name=name, parameters=parameters) for name, parameters in prints.items()]
    made, before = list[Stage](), None
    for span, bytes_, time in zip(stage_spans, held(trace, stage_spans), seconds, strict=True):
        if before and before.blocks and span.blocks and not before.feeds_next:
            made.append(msgspec.structs.replace(EMPTY, name=f"between {before.name} and {span.name}"))
        saves = {save: of[span.name] for save, of in options.items() if span.name in of and save in time.options}
        own = tuple(blocks[index] for index in span.blocks)
        made.append(_stage(span.name, bytes_, time, blocks=own, saves=saves))
        before = span
    return Chain(
        input_bytes=0,  # the batch is live before the step
        static_bytes=resting(trace, stage_spans[0].first - 1),
        floor_bytes=floor_bytes(trace),
        traced_peak_bytes=max(live(trace)),
        stages=tuple(made),
        doubts={
            {EVERY: RECOMPUTED, TOGETHER: INNER}.get(way, way): doubt
            for way, doubt in next((time.doubts for time in seconds if time.doubts), {}).items()
        },
    )


def _stage(
    name: str, bytes_: StageBytes, time: Seconds, *, blocks: tuple[StageModule, ...], saves: Mapping[str, StageBytes]
) -> Stage:
    return Stage(
        name=name,
        forward_seconds=time.forward,
        backward_seconds=time.backward,
        early_stop_seconds=time.early_stop,
        inner_recompute_seconds=time.inner,
        inner_error_seconds=time.inner_error,
        **msgspec.structs.asdict(bytes_),
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


def with_choices_if_known(followed: Callable[[bool], Followed], let_go: Callable[[], object]) -> Followed:
    """Return what `followed` returns with block choices; if that fails, without them, with a remark that says why.

    The model may raise anything; if the step itself fails, it does so again. `let_go` is called in between.
    """
    try:
        return followed(True)
    except Exception as error:  # noqa: BLE001  as said above
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    let_go()
    plain = followed(False)
    remark = f"whether other blocks would lower the peak is not known: {why}"
    return msgspec.structs.replace(plain, remarks=(*plain.remarks, remark))


def followed_of(built: Assembled, trace: Trace, remarks: Iterable[str], *, with_choices: bool) -> Followed:
    """Return a traced case; `with_choices` adds block choices, for which it was traced with its saves."""
    workload = built.workload
    return Followed(
        trace=msgspec.structs.replace(trace, saves=(), calls=()),  # not read by callers
        blocks=workload.blocks,
        split=built.applied.split,
        has_own_optimizer=workload.optimizer is not None,  # the model brought it
        remarks=tuple(remarks),
        choices=block_choices(trace, workload) if with_choices else None,
    )


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
