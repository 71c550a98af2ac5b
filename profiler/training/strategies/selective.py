"""Selective checkpointing: the results of some operators are kept, all others recomputed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverloadPacket
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from profiler.core.errors import Unsupported
from profiler.core.plan_file import GROUPS, operators
from profiler.core.record import Applied
from profiler.training.checkpointing.block_segments import Checkpoint, checkpoint_segments
from profiler.training.checkpointing.own_checkpoints import checkpoint
from profiler.training.workload import Workload


def apply(workload: Workload, *, save: str = "matmul") -> Applied:
    """Recomputes every block by itself but for the results of some operators: matmul, conv, attention, or aten names.

    Several are joined by `+`: save=matmul+attention, save=mm+gelu. Raises Unsupported for a name that is not in aten.
    Source: torch.utils.checkpoint.create_selective_checkpoint_contexts.
    """
    length = len(workload.blocks)
    switch = checkpoint_segments(workload, [[index] for index in range(length)], checkpoint=saving(save))
    return Applied(
        split=f"{length} of {length}", recomputes=dict.fromkeys(range(length), 1), kept=operators(save), switch=switch
    )


def saving(save: str) -> Checkpoint:
    """A checkpoint that keeps the results of these operators. Raises Unsupported for a name that is not in aten."""
    kept = {packet for name in operators(save) if (packet := _operator(name)) is not None}
    unknown = [word for word in save.split("+") if word not in GROUPS and _operator(word) is None]
    if unknown:
        raise Unsupported(
            f"aten has no operator '{unknown[0]}'; save=matmul, conv, attention, or names such as mm+gelu"
        )

    def policy(context: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
        keep = getattr(operator, "overloadpacket", operator) in kept
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    return partial(checkpoint, use_reentrant=False, context_fn=contexts)


def offered(names: Iterable[str]) -> list[str]:
    """Returns the save options for these operators (`aten.mm`): each group that is there, and all of them."""
    offered_names = set(names)
    groups = [word for word, group in GROUPS.items() if offered_names & {f"aten.{name}" for name in group}]
    return [*groups, *(["+".join(groups)] if len(groups) > 1 else [])]


def _operator(name: str) -> OpOverloadPacket | None:
    packet = getattr(torch.ops.aten, name, None)  # which has attributes of its own besides
    return packet if isinstance(packet, OpOverloadPacket) else None
