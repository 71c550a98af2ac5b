"""The passes that read FLOPs, operators and time, each on a fresh model, and strategies timed in turn on one.

That of memory is in `trial`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from profiler.core import gpu_specs
from profiler.core.case import Trial
from profiler.core.gpu_specs import parse
from profiler.core.record import Readings, Record
from profiler.core.trace_data import roofline_seconds, stated_error
from profiler.core.units import bytes_text, count_text, few
from profiler.measuring.bench import Bench, switches
from profiler.measuring.devices import environment
from profiler.measuring.failure_causes import explained
from profiler.measuring.meters import operators, saved_graph
from profiler.measuring.meters import time as timing
from profiler.training.assemble import Assembled, assemble_beside
from profiler.training.known_values import NOT_REAL, WHOLE, ZEROS, ValueReads, unknown_masks
from profiler.training.own_checkpoints import compiled_modules
from profiler.training.workload import Workload, train_step

NO_ROOM = (
    "the step without the strategy does not fit into the same process, or fails there, so the two are not timed "
    "alternately: the ratio compares rounds in separate processes"
)
COUNTED = "FLOPs, and how often each block runs"
LOGGED = 4096  # bytes to the host that a step's own logs and metrics may take
MOST_NAMED = 3  # modules


def counts_after_memory(bench: Bench) -> bool:
    """Whether operators are counted in one more step of the memory pass's model, as on a hollow device.

    Not of compiled code: counts of calls are guards, by which the step that is watched would be compiled again.
    """
    return bench.device.is_hollow and {"flops", "memory"} <= set(bench.trial.passes) and not bench.is_compiled


def count_flops(bench: Bench) -> dict[str, Any]:
    def gradients(built: Assembled, look: operators.Look, reads: AbstractContextManager[Any]) -> dict[str, Any]:
        return operators.count(partial(train_step, built.workload, None), look, reads).readings()

    return bench.extra(COUNTED, lambda: counted_step(bench, *built_only(bench), count=gradients)) or {}


def built_only(bench: Bench) -> tuple[Assembled, list[int]]:
    """Return the model of the build, or else a fresh one, with its counts of calls."""
    calls: list[int] = []
    built, calls = bench.unused or (bench.build(calls=calls), calls)
    bench.unused = None
    return built, calls


def of_step(
    bench: Bench,
    step: Callable[..., torch.Tensor],
    built: Assembled,
    look: operators.Look,
    reads: AbstractContextManager[Any],
) -> dict[str, Any]:
    """Count, and estimate the seconds that the GPU of a hollow device would take; none where a rate is missing."""
    counted, case = operators.count(step, look, reads), bench.trial.case
    if case.ranks:
        text = f"the first of {case.num_ranks} ranks, which holds the most, without what NCCL takes of the device"
        bench.note("GCP037", f"{text} itself; no time, as the network's rates are unknown")
    if case.ranks or not case.is_rehearsed:
        return counted.readings()
    rates = gpu_specs.find(parse(case.device).name)
    if sum(one.host_bytes for one in counted.operators) > LOGGED and not rates.host_bandwidth:
        return counted.readings()
    bench.note("GCP016", stated_error(rates, case.precision))
    seconds = roofline_seconds(counted.operators, rates, case.precision)
    return counted.readings() | {f"{phase}_seconds": (value,) for phase, value in seconds.items()}


def counted_step(
    bench: Bench,
    built: Assembled,
    calls: list[int],
    *,
    count: Callable[[Assembled, operators.Look, AbstractContextManager[Any]], dict[str, Any]],
) -> dict[str, Any]:
    """Run a step that counts what its operators do; note what it shows of the model and its strategy."""
    bench.num_steps += 1
    calls[:] = [0] * len(calls)
    reads, recomputes, kept = ValueReads(), saved_graph.OwnRecomputes(), dict[str, int]()
    case, workload = built.case, built.workload
    is_found = bool(workload.blocks) and not (case.blocks or case.parallel or workload.calls)  # not named by anyone
    is_plain = case == case.baseline and is_found and not compiled_modules(workload.module)
    by_blocks = saved_graph.SavedByBlocks(workload) if is_plain else None
    unknown_masks.clear()

    def look(loss: torch.Tensor) -> None:
        if bench.trial.case != bench.trial.case.baseline:
            kept.update(saved_graph.kept_on_ctx(loss, built.workload))
        elif nbytes := saved_graph.needless_bytes(loss, built.workload):
            needless = partial(_tell_needless, bench, nbytes, built.workload)
            bench.extra("where bytes are saved needlessly", needless)
        if by_blocks and (text := by_blocks.remark(loss)):
            bench.note("GCP051", text)

    try:
        with recomputes.watching(), by_blocks.watched() if by_blocks else nullcontext():
            counted = count(built, look, reads if bench.device.is_hollow else nullcontext())
    finally:
        _tell_reads(bench, reads)
    readings = {**counted, "block_calls": tuple(calls)}
    asked = built.applied.recomputes
    left_out = [index for index in asked if calls[index] == 1]
    if left_out and built.own_calls.has_compiled():
        text = f"{len(left_out)} of {len(asked)} checkpointed blocks are not recomputed"
        bench.note("GCP001", f"{text}: the model's compiled code bypasses their checkpoints, as the bytes show")
    if idle := [built.workload.blocks[index] for index in asked if not calls[index]]:
        text = f"{count_text(len(idle), 'checkpointed block')} did not run in the step: {few(idle, MOST_NAMED)}"
        bench.note("GCP050", f"{text}; they are not recomputed; --blocks chooses others")
    if bench.trial.case == bench.trial.case.baseline and any(bench.group.gather(bool(recomputes.modules))):
        look_again = partial(recomputes.names, built.workload)
        if names := bench.extra("which modules the backward runs again", look_again):
            bench.note("GCP064", saved_graph.recompute_remark(names))
    _tell_kept(bench, kept, recomputes.functions)
    return readings


def _tell_reads(bench: Bench, reads: ValueReads) -> None:
    """Note which operators read tensor values, which a rehearsed step does not have."""
    bench.value_reads = f"{ZEROS}: {reads}" if reads.places else ""
    texts = [f"{bench.value_reads}; {NOT_REAL}"] if reads.places else []
    if unknown_masks:
        lines = ", ".join(filter(None, unknown_masks))
        texts.append(f"{WHOLE} ({lines})" if lines else WHOLE)
    if texts:
        bench.note("GCP041", "; ".join(texts))


def _tell_kept(bench: Bench, kept: dict[str, int], recomputing: Collection[str]) -> None:
    """Note what custom Functions keep on ctx, and how to avoid it; those that recompute modules may need it there."""
    if not kept:
        return
    own = [name for name in kept if name in recomputing]
    others = [name for name in kept if name not in recomputing]
    parts = [f"{bytes_text(sum(kept.values()))} are attributes of ctx, which no checkpoint frees: {', '.join(kept)}"]
    if others:
        them = f"those of {', '.join(others)}" if own else "them"
        parts.append(f"ctx.save_for_backward lets {them} be recomputed")
    if own:
        runs = "runs" if len(own) == 1 else "run"
        parts.append(f"{', '.join(own)} {runs} modules again in the backward, perhaps from them")
    bench.note("GCP054", "; ".join(parts))


def _tell_needless(bench: Bench, nbytes: int, workload: Workload) -> None:
    modules = saved_graph.frozen_modules(workload)
    named = f" in {few(modules, MOST_NAMED)}" if modules else " before the first parameter that trains"
    text = f"{bytes_text(nbytes)} are saved for gradients that reach no parameter: nothing trains{named}, and"
    way = "leave off what makes it need one (requires_grad_(), enable_input_require_grads()), or run it under no_grad"
    bench.note("GCP055", f"{text} its input needs a gradient; {way}")


def hidden_bytes(bench: Bench) -> dict[str, Any]:
    _, step = bench.build().trainer()
    return operators.hidden_bytes(bench.device, lambda mark: bench.counted(step, mark))


def time_steps(bench: Bench) -> dict[str, Any]:
    """Return the time readings of the step; note why conditions of the device are missing, if they are."""
    built = bench.build()
    _, step = built.trainer()
    if (switch := _switch(bench, built)) is not None:
        switch(False)
    (readings,) = timing.read(bench.device, partial(bench.counted, step), [switch], bench.group, **_sampling(bench))
    if readings["plain_warmup_seconds"] == ():
        bench.note("GCP060", NO_ROOM)
    bench.tell_untold()
    return readings


def measure_together(trials: Sequence[Trial], *, on_pass: Callable[[str], None] = lambda name: None) -> list[Record]:
    """Time the strategies of one baseline and round in turn on one model; return a record of each trial.

    All are compared with the same steps without a strategy. Raises Unsupported if a strategy needs a model of its own,
    and whatever the model raises: the caller then measures each trial by itself.
    """
    benches = [Bench(trial, on_pass) for trial in trials]
    with explained(benches[0]):
        first, before = benches[0], switches()
        first.begin("build")
        model = first.build(first.trial.case.baseline)
        strategies = [assemble_beside(model, bench.trial.case) for bench in benches]
        first.begin("time")
        _, step = strategies[0].trainer()
        at_work = first  # a step counts for the strategy that is on, or for the first if none is

        def switch(number: int, on: bool) -> None:
            nonlocal at_work
            at_work = benches[number] if on else first
            turn = strategies[number].switch
            assert turn is not None, "strategies beside each other have one"
            turn(on)

        readings = timing.read(
            first.device,
            lambda mark: at_work.counted(step, mark),
            [partial(switch, number) for number in range(len(benches))],
            **_sampling(first),
        )
        own_share = {name: seconds / len(benches) for name, seconds in first.end().items()}
        for bench, strategy in zip(benches, strategies, strict=True):
            bench.listen(strategy)
            bench.tell_checkpoints()
            bench.tell_changes(before)
            bench.tell_untold()
        return [
            Record(
                case=bench.trial.case,
                round=bench.trial.round,
                outcome="ok",
                built=strategy.describe(),
                readings=Readings(**own_readings),
                environment=environment(first.device),
                notes=(*strategy.applied.notes, *bench.all_notes()),
                stage_seconds=own_share,
                num_steps=bench.num_steps,
            )
            for bench, strategy, own_readings in zip(benches, strategies, readings, strict=True)
        ]


def _sampling(bench: Bench) -> dict[str, Any]:
    """Return when a trial's samples begin and end, as the time meter takes it."""
    trial, case = bench.trial, bench.trial.case
    return {
        "round_number": trial.round, "warmup": case.warmup, "samples": case.samples, "sampling": case.sampling,
        "least_pairs": trial.least_pairs, "until": bench.limit(),
    }  # fmt: skip


def _switch(bench: Bench, built: Assembled) -> Callable[[bool], None] | None:
    """Return the strategy's switch; None if steps with and without the strategy cannot alternate."""
    can_fail_apart = bench.group.size > 1 and bench.device.is_asynchronous  # ranks could not agree that it failed
    if can_fail_apart or not bench.trial.is_paired:
        return None
    if built.applied.keeps_own:
        bench.gradients(built)  # so that the code is compiled
    return None if built.own_calls.num_compiled else built.switch  # compiled code cannot be switched
