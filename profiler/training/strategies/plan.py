"""Strategy `plan`: applies a checkpointing plan from its file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from torch import nn

from profiler.core import plan_file
from profiler.core.errors import Unsupported
from profiler.core.plan_file import PlanFile, Segment
from profiler.core.record import Applied
from profiler.training.checkpointing.block_segments import (
    BlockSegment,
    OwnCheckpoint,
    checkpointed,
    recompute,
)
from profiler.training.levers.memory import offload_inputs
from profiler.training.strategies.selective import saving
from profiler.training.workload import Workload


def apply(workload: Workload, *, file: str = "plan.json") -> Applied:
    """Recomputes what a plan of `gcprof plan` says, segments within segments and selective ones included.

    Raises UserError where the file cannot be read, and Unsupported where the model is another than it was made for.
    """
    return carry_out(workload, plan_file.read(Path(file)))


def carry_out(workload: Workload, plan: PlanFile) -> Applied:
    """Apply a plan to its own blocks; recomputes are reported for those that are blocks of the workload too.

    Raises Unsupported if the model has changed since the plan was made.
    """
    names = tuple(plan.fingerprint)
    changes = plan_file.changes(plan, fingerprint(workload.module, names, workload.calls))
    if changes:
        more = f", and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise Unsupported(f"the plan is stale: {'; '.join(changes[:3])}{more}; plan again")
    places = {name: index for index, name in enumerate(names)}
    own = {name: index for index, name in enumerate(workload.blocks)}
    counts = {own[name]: count for name, count in plan_file.recomputes(plan.segments).items() if name in own}
    saves = [segment.save for segment in plan_file.every(plan.segments) if segment.save]
    kept = dict.fromkeys(name for save in saves for name in plan_file.operators(save))
    planned = msgspec.structs.replace(workload, blocks=names)
    applied = recompute(
        planned,
        [_block_segment(segment, places) for segment in plan.segments],
        split=plan_file.words(plan),
        nothing="the plan has no segments",
        recomputes=counts,
        kept=tuple(kept),
    )
    waiting = {plan_file.names(segment)[0]: segment.fetched_at for segment in plan.segments if segment.fetched_at}
    if waiting:
        applied = msgspec.structs.replace(applied, remark=offload_inputs(planned, waiting))
    return applied


def written(workload: Workload, applied: Applied, strategy: str) -> PlanFile:
    """Return the segments that a strategy has checkpointed as a plan file has them."""
    save = "+".join(applied.kept) or None
    return PlanFile(
        plan=strategy,
        segments=tuple(segment.planned(save) for segment in dict.fromkeys(checkpointed(workload).values())),
        fingerprint=fingerprint(workload.module, workload.blocks, workload.calls),
    )


def fingerprint(
    module: nn.Module, blocks: tuple[str, ...], calls: Mapping[str, nn.Module] = {}
) -> dict[str, tuple[str, ...]]:
    """Return the parameters of each block as `name dtype shape`; blocks in `calls` are not submodules."""
    modules = {**dict(module.named_modules(remove_duplicate=False)), **calls}
    return {
        block: tuple(
            f"{name} {str(parameter.dtype).removeprefix('torch.')} {' x '.join(map(str, parameter.shape))}"
            for name, parameter in modules[block].named_parameters()
        )
        for block in blocks
        if block in modules
    }


def _block_segment(segment: Segment, places: Mapping[str, int]) -> BlockSegment:
    indices = [_block_segment(item, places) if isinstance(item, Segment) else places[item] for item in segment.blocks]
    return OwnCheckpoint(indices, saving(segment.save)) if segment.save else indices
