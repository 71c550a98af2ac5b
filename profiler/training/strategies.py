"""Strategies: functions that change a module in place; the table of them is in `training/__init__.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, reduce
from itertools import groupby
from math import isqrt
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import nn
from torch._ops import OpOverloadPacket
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from profiler.core import plan_file
from profiler.core.case import Choice
from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.core.plan_file import GROUPS, PlanFile, operators
from profiler.core.record import Applied, Note
from profiler.training import block_segments
from profiler.training.block_segments import Indices, checkpoint_without_reentry, checkpointed, recompute, segment_of
from profiler.training.blocks import refuse_none
from profiler.training.memory_levers import offload_inputs
from profiler.training.observed_forward import ChainBytes, observe
from profiler.training.own_checkpoints import RESPECTING, checkpoint
from profiler.training.workload import Workload

LAST_IS_PLAIN = "the last segment is never checkpointed, and there is no other"
SWITCHES = (  # on and off: of transformers, before 5.23, and of diffusers
    ("activation_checkpointing_enable", "activation_checkpointing_disable"),
    ("gradient_checkpointing_enable", "gradient_checkpointing_disable"),
    ("enable_gradient_checkpointing", "disable_gradient_checkpointing"),
)
DEEPEST = 48  # nested checkpoints; autograd recurses into each, and Python allows about 1000 frames


def none(workload: Workload) -> Applied:
    """Keeps everything: the baseline of every comparison."""
    return Applied(switch=lambda on: None)


def own(workload: Workload) -> Applied:
    """Leaves on the checkpoints that the model calls itself; under `none` and all others they are plain calls."""
    return Applied(keeps_own=True, switch=lambda on: None)


def segments(workload: Workload, *, k: Count, split: Literal["torch", "balanced"] = "torch") -> Applied:
    """Cuts the chain into k segments and recomputes all but the last, as checkpoint_sequential does.

    `split=balanced` cuts by saved bytes instead of by number, and checkpoints the last segment too where that lowers
    the peak. Raises Unsupported where the chain has fewer than k blocks.
    """
    length = len(workload.blocks)
    if k > length:
        raise Unsupported(f"only {length} blocks for {k} segments")
    made = split_as_torch(length, k) if split == "torch" else split_balanced(observe(workload).chain, k)
    applied, notes = split_text(made, length), tuple[Note, ...]()
    if split == "torch" and made and length - made[-1].stop > 1.5 * len(made[0]):
        text = f"the last, plain segment takes the remainder ({applied}); segments:k={k},split=balanced evens it"
        notes = (Note(code="GCP002", text=text),)
    return recompute(workload, made, split=applied, nothing=LAST_IS_PLAIN, notes=notes)


def sqrt(workload: Workload) -> Applied:
    """Cuts the chain into as many segments as the square root of its length: memory grows with sqrt(n).

    The split is checkpoint_sequential's. Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
    """
    length = len(workload.blocks)
    root = isqrt(length)
    k = max(1, root + (length > root * (root + 1)))  # rounded to the nearest whole number
    made = split_as_torch(length, k)
    return recompute(workload, made, split=f"k={k}: {split_text(made, length)}", nothing=LAST_IS_PLAIN)


def all_blocks(workload: Workload) -> Applied:
    """Recomputes every block by itself: what Hugging Face and FSDP call full."""
    return _by_themselves(workload, range(len(workload.blocks)))


def every(workload: Workload, *, k: Count = 2) -> Applied:
    """Recomputes every k-th block by itself: the k-th, the 2k-th and so on.

    Raises Unsupported where there are fewer than k blocks.
    """
    length = len(workload.blocks)
    if k > length:
        raise Unsupported(f"only {length} blocks for every {k}th")
    return _by_themselves(workload, range(k - 1, length, k))


def first(workload: Workload, *, n: Count = 8) -> Applied:
    """Recomputes the first n blocks, each by itself (Megatron's "block" method).

    Raises Unsupported where there are fewer than n blocks.
    """
    length = len(workload.blocks)
    if n > length:
        raise Unsupported(f"only {length} blocks for the first {n}")
    return _by_themselves(workload, range(n))


def _by_themselves(workload: Workload, chosen: range) -> Applied:
    return recompute(workload, [[index] for index in chosen], split=f"{len(chosen)} of {len(workload.blocks)}")


def recursive(workload: Workload) -> Applied:
    """Checkpoints the first half, and within each half again: memory grows with log(n), recompute with n log(n).

    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 4.3.
    """
    made = [item for item in halves(0, len(workload.blocks)) if not isinstance(item, int)]
    applied = recompute(workload, made, split="")
    return msgspec.structs.replace(applied, split=f"{max(applied.recomputes.values(), default=0)} deep")


def halves(start: int, end: int) -> Sequence[Any]:
    """Return nested segments of blocks start to end: the first half checkpointed, then the items of the second half."""
    if end - start < 2:
        return list(range(start, end))
    middle = start + (end - start) // 2
    return [halves(start, middle), *halves(middle, end)]


def from_start(workload: Workload) -> Applied:
    """Keeps nothing and recomputes from the input for every stage: the least memory, n(n+1)/2 forward computations.

    Raises Unsupported above 48 blocks, which would nest too deep.
    """
    length = len(workload.blocks)
    if length > DEEPEST:
        raise Unsupported(f"{length} blocks would nest {length} checkpoints; {DEEPEST} are the most")
    start: Indices = [0]
    made = [reduce(lambda before, index: [before, index], range(1, length - 1), start)] if length > 1 else []
    return recompute(workload, made, split=f"{length - 1} deep")


def planted(workload: Workload, *, fault: Literal["reentrant", "random-state", "leak"]) -> Applied:
    """Checkpoints wrongly: reentrant from an input without gradient, or with fresh random numbers in the recompute.

    `leak` checkpoints nothing, but runs a forward with a saved-tensor hook that references the loss, a cycle through
    C++, which keeps the model for good. The passes must catch each.
    """
    if fault == "leak":
        kept: list[torch.Tensor] = []
        with (
            torch.random.fork_rng(devices=[]),
            saved_tensors_hooks(lambda tensor: (tensor.detach(), kept), lambda packed: packed[0]),
        ):
            kept.append(workload.loss(workload.module, workload.batch))
        return Applied(switch=lambda on: None)

    def wrong(function: Any, *arguments: Any) -> Any:
        if fault == "reentrant":
            return checkpoint(function, *arguments, use_reentrant=True)
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)

    count = len(workload.blocks) - 1
    return recompute(workload, [range(count)], split=f"{count}+1", checkpoint_of=lambda segment: wrong, recomputes={})


def split_text(checkpointed: Sequence[range], length: int) -> str:
    """`31x3+7`: 31 checkpointed segments of 3, and 7 plain; `4+4+0` where nothing is plain."""
    plain = length - (checkpointed[-1].stop if checkpointed else 0)
    equal = [(len(list(group)), size) for size, group in groupby(map(len, checkpointed))]
    return "+".join([*(f"{count}x{size}" if count > 1 else str(size) for count, size in equal), str(plain)])


def split_as_torch(length: int, segments: int) -> list[range]:
    """Return the checkpointed segments of torch.utils.checkpoint.checkpoint_sequential: the rest is plain."""
    size = length // segments
    return [range(size * number, size * (number + 1)) for number in range(segments - 1)]


def split_balanced(chain: ChainBytes, segments: int) -> list[range]:
    """Return the checkpointed of at most `segments` segments such that the largest saves as few bytes as possible.

    The last one is checkpointed only if that lowers the peak, as when head and loss hold much.
    """
    low, high = max(chain.saved), sum(chain.saved)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_filled(chain.saved, middle)) <= segments else (middle + 1, high)
    made = _filled(chain.saved, low)
    return made if peak(chain, made, is_whole=True) < peak(chain, made, is_whole=False) else made[:-1]


def peak(chain: ChainBytes, segments: Sequence[range], *, is_whole: bool) -> int:
    """Return the most saved bytes held at once, where the last segment is checkpointed or not; without temporaries."""
    saved = [sum(chain.saved[segment.start : segment.stop]) for segment in segments]
    kept = [sum(chain.inputs[segment.start] for segment in segments[: i + 1]) for i in range(len(segments))]
    recomputed = [held + nbytes for held, nbytes in zip(kept, saved, strict=True)]
    at_loss = kept[-1] + chain.tail + (0 if is_whole else saved[-1])
    return max(*recomputed, at_loss)


def _filled(saved: tuple[int, ...], bound: int) -> list[range]:
    """Return segments of all blocks, each filled from the front as long as its bytes stay within the bound."""
    starts, held = [0], 0
    for index, nbytes in enumerate(saved):
        if index > starts[-1] and held + nbytes > bound:
            starts.append(index)
            held = 0
        held += nbytes
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(saved)], strict=True)]


def hugging_face(workload: Workload) -> Applied:
    """Calls the model's own activation_checkpointing_enable(), or enable_gradient_checkpointing() of diffusers.

    Before transformers 5.23 it is gradient_checkpointing_enable(). Raises Unsupported where the model has none of
    these, or where it does not support it.
    """
    module: Any = workload.module
    names = next((pair for pair in SWITCHES if hasattr(module, pair[0])), None)
    if names is None:
        instead = "where your code switches its checkpoints on, `own` measures them"
        raise Unsupported(f"the model has no activation_checkpointing_enable(), as a Hugging Face model has; {instead}")

    def switch(on: bool) -> None:
        getattr(module, names[not on])(*([{"use_reentrant": False}] if on and names != SWITCHES[-1] else ()))

    try:
        switch(True)
    except ValueError as error:  # "... does not support gradient checkpointing"
        raise Unsupported(str(error).splitlines()[0]) from error
    enabled = [submodule for submodule in module.modules() if getattr(submodule, "gradient_checkpointing", False)]
    if not enabled:
        raise Unsupported("its switch for gradient checkpointing reached no layer of this model")
    return Applied(split=f"{len(enabled)} switched on", keeps_own=True, switch=switch)


def offload(workload: Workload) -> Applied:
    """Moves what the forward saves to the host and back (torch.autograd.graph.save_on_cpu); pinned on CUDA."""
    on_cuda = any(parameter.is_cuda for parameter in workload.module.parameters())
    offloaded = _Offloaded(workload.module.forward, pinned=on_cuda and torch.cuda.is_available())
    workload.module.forward = offloaded
    text = "on a CPU there is nowhere to offload to: what is saved is copied within the same memory"
    notes = () if on_cuda else (Note(code="GCP008", text=text),)
    return Applied(notes=notes, switch=partial(setattr, offloaded, "is_on"))


class _Offloaded:
    """A module's forward with offloading; no closure, so that a deep copy of the module runs its own forward."""

    def __init__(self, forward: Callable[..., Any], *, pinned: bool) -> None:
        self._forward, self._pinned, self.is_on = forward, pinned, True

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        with save_on_cpu(pin_memory=self._pinned) if self.is_on else nullcontext():
            return self._forward(*arguments, **keywords)


def compile_budget(workload: Workload, *, budget: float = 0.5, per: Literal["block", "graph"] = "block") -> Applied:
    """Compiles with an activation memory budget, a fraction from 0 to 1, of each block or of the whole graph.

    Its gradients have been wrong in silence with dropout: look at the gradients column. Raises Unsupported for a budget
    that is no fraction. Source: torch._functorch.config.activation_memory_budget.
    """
    from torch import _dynamo  # noqa: PLC0415  takes seconds to import, which only this needs
    from torch._functorch import config  # noqa: PLC0415
    from torch._inductor import config as inductor  # noqa: PLC0415

    if not 0 <= budget <= 1:
        raise Unsupported(f"budget={budget:g} is not a fraction from 0 to 1")
    _dynamo.reset()  # compiled code is reused if code and guards match, and the budget is not a guard
    config.activation_memory_budget = budget  # global to this process, which runs only this trial
    inductor.fallback_random = True  # the same random numbers as eager PyTorch, so that dropout can be compared
    options = {"budget": 1.0} | ({"per": per} if per != "block" else {})
    parts: list[nn.Module] = [workload.module]
    if per == "block":
        refuse_none(workload.blocks)
        parts = [workload.module.get_submodule(name) for name in workload.blocks]
    for part in parts:
        part.compile()
    return Applied(
        split=f"{len(parts)} compiled",
        changes_kernels=True,
        reference=Choice.of("compile-budget", options) if budget < 1 else None,
    )


def selective(workload: Workload, *, save: str = "matmul") -> Applied:
    """Recomputes every block by itself but for the results of some operators: matmul, conv, attention, or aten names.

    Several are joined by `+`: save=matmul+attention, save=mm+gelu. Raises Unsupported for a name that is not in aten.
    Source: torch.utils.checkpoint.create_selective_checkpoint_contexts.
    """
    length = len(workload.blocks)
    met: set[str] = set()

    def remark() -> Note | None:
        if not met or not met.isdisjoint(operators(save)):
            return None
        instead = f"; these blocks have save={' or save='.join(there)}" if (there := offered(met)) else ""
        text = f"keeps nothing: save={save} has no operator of these blocks, so it is identical to `all`{instead}"
        return Note(code="GCP063", text=text)

    checkpoint = saving(save, met)
    return recompute(
        workload,
        [segment_of(workload.blocks, [index], "+".join(operators(save))) for index in range(length)],
        split=f"{length} of {length}",
        checkpoint_of=lambda segment: checkpoint,
        remark=remark,
    )


def saving(save: str, met: set[str] | None = None) -> block_segments.Checkpoint:
    """Return a checkpoint function that keeps these operators' results, and adds the names of all it meets to `met`.

    Raises Unsupported for a name that is not in aten.
    """
    unknown = [word for word in save.split("+") if word not in GROUPS and _operator(word) is None]
    if unknown:
        instead = "save=matmul, conv, attention, or names such as mm+gelu"
        raise Unsupported(f"aten has no operator '{unknown[0]}'; {instead}")
    return partial(checkpoint, use_reentrant=False, context_fn=partial(_contexts, save, met), **RESPECTING)


def _contexts(save: str, met: set[str] | None) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    kept = {packet for name in operators(save) if (packet := _operator(name)) is not None}

    def is_kept(operator: Any) -> bool:
        packet = getattr(operator, "overloadpacket", operator)
        if met is not None:
            met.add(getattr(packet, "__name__", ""))
        return packet in kept

    return keeping(is_kept)


# `keeping` is plain PyTorch, since code that is emitted contains it: planning/plan_code.py


def keeping(is_kept: Callable[[Any], bool]) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of one call of a checkpoint that keeps some operators' results, and of its recompute.

    What is kept draws nothing in the recompute, so that operators which draw after it would find the generator
    elsewhere than in the forward: each of them begins where it began then.
    """
    states: list[torch.Tensor] = []  # of the generator, before each operator that draws after a kept one
    has_kept = False  # an operator that draws

    def policy(context: Any, operator: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
        nonlocal has_kept
        kept = is_kept(operator)
        if not context.is_recompute and (device := _draws(operator, arguments, keywords)):
            is_after = getattr(context, "op_output", None) is not None  # newer versions ask after the operator ran
            if has_kept or (kept and is_after):
                states.append(torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state())
            has_kept = has_kept or kept
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    forward, again = create_selective_checkpoint_contexts(policy)
    return forward, _Repeated(again, is_kept, states)


class _Repeated(TorchDispatchMode):
    """The context of a recompute, in which operators after one that is kept draw from the states of the forward."""

    def __init__(
        self, again: AbstractContextManager[Any], is_kept: Callable[[Any], bool], states: list[torch.Tensor]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._again, self._is_kept, self._states = again, is_kept, states

    def __enter__(self) -> Any:
        self._left, self._has_kept = iter(self._states), False  # anew in each backward
        self._again.__enter__()
        return super().__enter__() if self._states else self  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        if self._states:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._again.__exit__(*error)

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        if device := _draws(operator, arguments, keywords):
            if self._has_kept:
                state = next(self._left)
                torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)
            self._has_kept = self._has_kept or self._is_kept(operator)
        return operator(*arguments, **keywords)


def _draws(operator: Any, arguments: Any, keywords: Any) -> torch.device | None:
    """Return the device whose generator an operator draws from; None if it draws nothing, or from one not of ours."""
    if torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ()):
        return None
    found = [given.device for given in (*arguments, *keywords.values()) if isinstance(given, torch.Tensor)]
    device = found[0] if found else torch.device(keywords.get("device") or "cpu")
    return device if device.type in ("cpu", "cuda") else None


def offered(names: Iterable[str]) -> list[str]:
    """Return the save options that fit these operators (`aten.mm`, `mm`): each matching group, and all joined."""
    offered_names = {name.removeprefix("aten.") for name in names}
    groups = [word for word, group in GROUPS.items() if offered_names.intersection(group)]
    return [*groups, *(["+".join(groups)] if len(groups) > 1 else [])]


def _operator(name: str) -> OpOverloadPacket | None:
    packet = getattr(torch.ops.aten, name, None)  # torch.ops.aten also has attributes that are no operators
    return packet if isinstance(packet, OpOverloadPacket) else None


def plan(workload: Workload, *, file: str = "plan.json") -> Applied:
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
    own = {name: index for index, name in enumerate(workload.blocks)}
    planned = msgspec.structs.replace(workload, blocks=names)
    applied = recompute(
        planned,
        plan.segments,
        split=plan_file.words(plan),
        nothing="the plan has no segments",
        checkpoint_of=lambda segment: saving(segment.save) if segment.save else checkpoint_without_reentry,
        recomputes={own[name]: num for name, num in plan_file.recomputes(plan.segments).items() if name in own},
    )
    waiting = {plan_file.names(segment)[0]: segment.fetched_at for segment in plan.segments if segment.fetched_at}
    return msgspec.structs.replace(applied, remark=offload_inputs(planned, waiting)) if waiting else applied


def written(workload: Workload, strategy: str) -> PlanFile:
    """Return the segments that a strategy has checkpointed as a plan file has them, with all inputs on the device."""
    made = dict.fromkeys(checkpointed(workload).values())
    return PlanFile(
        plan=strategy,
        segments=tuple(msgspec.structs.replace(one.segment, fetched_at=None) for one in made),
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
