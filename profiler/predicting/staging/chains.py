"""Makes a chain of stages of a traced step: what each holds, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from profiler.core.trace_data import Trace, live
from profiler.planning.chain import INNER, RECOMPUTED, Chain, SaveOption, Stage, StageModule
from profiler.predicting.staging.pooled_seconds import EVERY, TOGETHER, Seconds
from profiler.predicting.staging.stage_bytes import StageBytes, floor_bytes, held, static_bytes
from profiler.predicting.staging.stage_operators import StageSpan


def chain_of(
    trace: Trace,
    stage_spans: Sequence[StageSpan],
    prints: Mapping[str, tuple[str, ...]],
    seconds: Sequence[Seconds],
    *,
    options: Mapping[str, Mapping[str, StageBytes]],
) -> Chain:
    """Return the chain of a step without checkpointing.

    `prints` has the parameters of each block in order, `options` the bytes of stages under each save option, by name.
    """
    blocks = [StageModule(name=name, parameters=parameters) for name, parameters in prints.items()]
    made = [
        _stage(
            span,
            bytes_,
            time,
            blocks=tuple(blocks[index] for index in span.blocks),
            options={save: of[span.name] for save, of in options.items() if span.name in of},
        )
        for span, bytes_, time in zip(stage_spans, held(trace, stage_spans), seconds, strict=True)
    ]
    return Chain(
        input_bytes=0,  # the batch is live before the step
        static_bytes=static_bytes(trace, stage_spans),
        floor_bytes=floor_bytes(trace),
        traced_peak_bytes=max(live(trace)),
        stages=tuple(_apart(made, stage_spans)),
        doubts={
            {EVERY: RECOMPUTED, TOGETHER: INNER}.get(way, way): doubt
            for way, doubt in next((time.doubts for time in seconds if time.doubts), {}).items()
        },
    )


def _stage(
    span: StageSpan,
    bytes_: StageBytes,
    time: Seconds,
    *,
    blocks: tuple[StageModule, ...],
    options: Mapping[str, StageBytes],
) -> Stage:
    return Stage(
        name=span.name,
        forward_seconds=time.forward,
        backward_seconds=time.backward,
        early_stop_seconds=time.early_stop,
        inner_recompute_seconds=time.inner,
        inner_error_seconds=time.inner_error,
        **msgspec.structs.asdict(bytes_),
        error_seconds=time.error,
        options=tuple(_option(save, options[save], time) for save in options if save in time.options),
        pinned=not span.blocks,
        blocks=blocks,
    )


def _option(save: str, bytes_: StageBytes, time: Seconds) -> SaveOption:
    forward, backward = time.options[save]
    return SaveOption(
        name=save,
        saved_bytes=bytes_.saved_bytes,
        own_saved_bytes=bytes_.own_saved_bytes,
        forward_extra_bytes=bytes_.forward_extra_bytes,
        backward_extra_bytes=bytes_.backward_extra_bytes,
        forward_seconds=forward,
        backward_seconds=backward,
        error_seconds=time.option_errors.get(save, 0.0),
    )


def _apart(made: Sequence[Stage], stage_spans: Sequence[StageSpan]) -> list[Stage]:
    """Insert an empty pinned stage wherever two blocks must not be computed together."""
    stages = [made[0]]
    for (before, span), stage in zip(pairwise(stage_spans), made[1:], strict=True):
        if before.blocks and span.blocks and not before.feeds_next:
            stages.append(_nothing(f"between {before.name} and {span.name}"))
        stages.append(stage)
    return stages


def _nothing(name: str) -> Stage:
    return Stage(
        name=name,
        forward_seconds=0.0,
        backward_seconds=0.0,
        output_bytes=0,
        saved_bytes=0,
        forward_extra_bytes=0,
        backward_extra_bytes=0,
        pinned=True,
    )
