"""Strategy `selective`: keeps the results of some operators and recomputes all others."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverloadPacket
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from profiler.core.errors import Unsupported
from profiler.core.plan_file import GROUPS, operators
from profiler.core.record import Applied, Note
from profiler.training.checkpointing.block_segments import Checkpoint, checkpoint_segments
from profiler.training.checkpointing.own_checkpoints import RESPECTING, checkpoint
from profiler.training.workload import Workload


def apply(workload: Workload, *, save: str = "matmul") -> Applied:
    """Recomputes every block by itself but for the results of some operators: matmul, conv, attention, or aten names.

    Several are joined by `+`: save=matmul+attention, save=mm+gelu. Raises Unsupported for a name that is not in aten.
    Source: torch.utils.checkpoint.create_selective_checkpoint_contexts.
    """
    length = len(workload.blocks)
    met: set[str] = set()
    switch = checkpoint_segments(workload, [[index] for index in range(length)], checkpoint=saving(save, met))
    return Applied(
        split=f"{length} of {length}",
        recomputes=dict.fromkeys(range(length), 1),
        kept=operators(save),
        remark=partial(_remark, save, met),
        switch=switch,
    )


def _remark(save: str, met: set[str]) -> Note | None:
    """Return a note if a step has met operators, but none of those to save; None otherwise."""
    if not met or not met.isdisjoint(operators(save)):
        return None
    instead = f"; these blocks have save={' or save='.join(there)}" if (there := offered(met)) else ""
    text = f"keeps nothing: save={save} has no operator of these blocks, so it is identical to `all`{instead}"
    return Note(code="GCP063", text=text)


def saving(save: str, met: set[str] | None = None) -> Checkpoint:
    """Return a checkpoint function that keeps these operators' results, and adds the names of all it meets to `met`.

    Raises Unsupported for a name that is not in aten.
    """
    kept = {packet for name in operators(save) if (packet := _operator(name)) is not None}
    unknown = [word for word in save.split("+") if word not in GROUPS and _operator(word) is None]
    if unknown:
        raise Unsupported(
            f"aten has no operator '{unknown[0]}'; save=matmul, conv, attention, or names such as mm+gelu"
        )

    def policy(context: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
        packet = getattr(operator, "overloadpacket", operator)
        if met is not None:
            met.add(getattr(packet, "__name__", ""))
        keep = packet in kept
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    return partial(checkpoint, use_reentrant=False, context_fn=contexts, **RESPECTING)


def offered(names: Iterable[str]) -> list[str]:
    """Return the save options that fit these operators (`aten.mm`, `mm`): each matching group, and all joined."""
    offered_names = {name.removeprefix("aten.") for name in names}
    groups = [word for word, group in GROUPS.items() if offered_names.intersection(group)]
    return [*groups, *(["+".join(groups)] if len(groups) > 1 else [])]


def _operator(name: str) -> OpOverloadPacket | None:
    packet = getattr(torch.ops.aten, name, None)  # torch.ops.aten also has attributes that are no operators
    return packet if isinstance(packet, OpOverloadPacket) else None
