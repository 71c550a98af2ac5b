"""Strategy `selective`: keeps the results of some operators and recomputes all others."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverloadPacket
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from profiler.core.errors import Unsupported
from profiler.core.plan_file import GROUPS, operators
from profiler.core.record import Applied, Note
from profiler.training.checkpointing.block_segments import Checkpoint, recompute
from profiler.training.checkpointing.own_checkpoints import RESPECTING, checkpoint
from profiler.training.workload import Workload


def apply(workload: Workload, *, save: str = "matmul") -> Applied:
    """Recomputes every block by itself but for the results of some operators: matmul, conv, attention, or aten names.

    Several are joined by `+`: save=matmul+attention, save=mm+gelu. Raises Unsupported for a name that is not in aten.
    Source: torch.utils.checkpoint.create_selective_checkpoint_contexts.
    """
    length = len(workload.blocks)
    met: set[str] = set()
    return recompute(
        workload,
        [[index] for index in range(length)],
        split=f"{length} of {length}",
        checkpoint=saving(save, met),
        kept=operators(save),
        remark=partial(_remark, save, met),
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

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        policy = _Policy(kept, met)
        forward, recompute = create_selective_checkpoint_contexts(policy)
        return forward, _Repeated(recompute, kept, policy.states)

    return partial(checkpoint, use_reentrant=False, context_fn=contexts, **RESPECTING)


class _Policy:
    """Chooses what one call of a checkpoint keeps, and notes the states that its recompute has to draw from.

    An operator that is kept draws nothing in the recompute, so that those which draw after it would find the generator
    elsewhere than in the forward: each of them begins where it began then.
    """

    def __init__(self, kept: set[OpOverloadPacket], met: set[str] | None) -> None:
        self._kept, self._met = kept, met
        self._has_kept = False  # an operator that draws
        self.states: list[torch.Tensor] = []  # of the generator, before each operator that draws after that one

    def __call__(self, context: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
        packet = getattr(operator, "overloadpacket", operator)
        if self._met is not None:
            self._met.add(getattr(packet, "__name__", ""))
        if not context.is_recompute and (device := _draws(operator, arguments)):
            has_kept = self._has_kept
            self._has_kept |= packet in self._kept
            is_after = getattr(context, "op_output", None) is not None  # newer versions ask after the operator ran
            if self._has_kept if is_after else has_kept:
                is_cuda = device.type == "cuda"
                self.states.append(torch.cuda.get_rng_state(device) if is_cuda else torch.get_rng_state())
        return CheckpointPolicy.MUST_SAVE if packet in self._kept else CheckpointPolicy.PREFER_RECOMPUTE


class _Repeated(TorchDispatchMode):
    """The context of a recompute, in which operators after one that is kept draw from the states of the forward."""

    def __init__(
        self, recompute: AbstractContextManager[Any], kept: set[OpOverloadPacket], states: list[torch.Tensor]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recompute, self._kept, self._states = recompute, kept, states

    def __enter__(self) -> Any:
        self._left, self._has_kept = iter(self._states), False  # anew in each backward
        self._recompute.__enter__()
        return super().__enter__() if self._states else self  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        if self._states:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._recompute.__exit__(*error)

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if device := _draws(operator, arguments):
            if self._has_kept:
                state = next(self._left)
                torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)
            self._has_kept |= operator.overloadpacket in self._kept
        return operator(*arguments, **(keywords or {}))


def _draws(operator: Any, arguments: Any) -> torch.device | None:
    """Return the device whose generator an operator draws from; None if it draws nothing, or from one not of ours."""
    if torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ()):
        return None
    found = (leaf.device for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor))
    return next((device for device in found if device.type in ("cpu", "cuda")), None)


def offered(names: Iterable[str]) -> list[str]:
    """Return the save options that fit these operators (`aten.mm`, `mm`): each matching group, and all joined."""
    offered_names = {name.removeprefix("aten.") for name in names}
    groups = [word for word, group in GROUPS.items() if offered_names.intersection(group)]
    return [*groups, *(["+".join(groups)] if len(groups) > 1 else [])]


def _operator(name: str) -> OpOverloadPacket | None:
    packet = getattr(torch.ops.aten, name, None)  # torch.ops.aten also has attributes that are no operators
    return packet if isinstance(packet, OpOverloadPacket) else None
