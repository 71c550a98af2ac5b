"""The equality pass: compares gradients with those without checkpointing, and ranks with a single process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import msgspec
import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from profiler.core.case import Case
from profiler.core.record import (
    MOST_NAMED,
    NOISE_MARGIN,
    Applied,
    Equality,
    judge,
    not_reproducible,
    reproducible,
    unkept,
)
from profiler.core.units import few
from profiler.measuring.bench import Bench
from profiler.measuring.failure_causes import CAUSE, explanation, what_moves
from profiler.measuring.meters import equality, wrong_gradients
from profiler.measuring.meters.equality import Gradients, GradientStep, Ran, Results, weights_kept
from profiler.measuring.ranks import Group
from profiler.training import kept_state, optimizers
from profiler.training.assemble import Assembled
from profiler.training.block_segments import updated_again
from profiler.training.memory_levers import without_dropout
from profiler.training.own_checkpoints import forget, num_compiled
from profiler.training.workload import INPUT, OF_LOSS, batch_statistics, compared, local, tensors

COUNT = "num_batches_tracked"
VANISHED = "all gradients are zero or not finite, so comparing them proves nothing"
STOPPED = (
    "an operator saves a tensor that it fills only afterwards, as RReLU does its noise, and the recompute stops "
    "before: torch.utils.checkpoint.set_checkpoint_early_stop(False) lets it finish"
)
UNTRAINED = "no parameter trains, so there is no gradient to compare"


def compare(bench: Bench) -> tuple[Equality | None, str | None]:
    """Compare the trial with its baseline's digests; return the result, and why the trial is invalid, if it is.

    It decides nothing if its own steps fail after those of the memory pass, which are the user's, did not.
    The baseline is compared with itself, which gives the noise floor. A strategy runs no further steps if those of its
    memory pass were watched and are bit-equal.
    """
    case = bench.trial.case
    if case.verify == "off":
        bench.note("GCP006", "gradients were not compared: --verify off")
        return None, None
    bench.begin("equality")
    if "memory" not in bench.trial.passes:
        return _compared(bench)
    compared = bench.extra("whether the gradients are those without checkpointing", lambda: _compared(bench))
    return compared or (None, judge(None, strict=case.verify == "strict"))


def _compared(bench: Bench) -> tuple[Equality | None, str | None]:
    case = bench.trial.case
    comparison = _Comparison(bench)
    result = comparison.of_baseline() if case == case.baseline else comparison.of_strategy()
    if result is None:
        bench.note("GCP003", "gradients were not compared: there is no result without checkpointing")
        return None, judge(None, strict=case.verify == "strict")
    result = comparison.with_lost(result)
    _tell(bench, comparison, result)
    return result, _reason(bench, comparison, result)


def _tell(bench: Bench, comparison: _Comparison, result: Equality) -> None:
    """Note what is compared besides parameters, what differs besides gradients, and if comparing proves nothing."""
    if comparison.beside:
        text = "their gradients are compared too, though no optimizer steps with them"
        bench.note("GCP058", f"{few(comparison.beside, MOST_NAMED)}: {text}")
    if not result.buffers_equal:
        bench.note("GCP004", _buffers(result, comparison.others(result), comparison.is_repairable))
    if not comparison.tells:
        bench.note("GCP014", VANISHED if comparison.trains else UNTRAINED)
    if not result.random_state_equal:
        drawn = unkept(result)
        source = f" from {', '.join(drawn)}, which checkpoints do not restore" if drawn else ""
        bench.note("GCP005", f"the step draws different random numbers than without checkpointing{source}")
    if result.moved:
        names = ", ".join(result.moved[:3]) + (", ..." if len(result.moved) > 3 else "")
        text = (
            f"{names}: a step leaves this plain Python state different than without checkpointing, for example "
            "because a recompute adds to it"
        )
        bench.note("GCP049", text)


def _reason(bench: Bench, comparison: _Comparison, result: Equality) -> str | None:
    """Return why the trial is invalid, if it is; a baseline that does not repeat itself is only noted."""
    case = bench.trial.case
    noise = not_reproducible(result, case.precision)
    if noise and case == case.baseline:
        bench.note("GCP044", noise)
        return None
    if noise and not result.missing:
        return noise
    if comparison.wrong:
        return comparison.wrong
    rewritten = comparison.rewritten(result)
    reason = judge(result, strict=case.verify == "strict", rewritten=rewritten)
    may_round = comparison.rounds and case.precision != "fp32" and case.verify != "strict" and not case.ranks
    if reason and may_round and bench.extra("whether the gradients differ by rounding", comparison.is_rounding):
        return None
    if reason and result.worst_step == 1 and not result.missing and bench.group.mesh is None:
        is_explained = result.moved or unkept(result) or rewritten
        if not is_explained and (cause := bench.extra("why the gradients differ", comparison.cause)):
            return f"{reason}; {CAUSE}{cause}"
        what = f"whether `none` or {case.label} has the gradients of its loss"
        reason += bench.extra(what, comparison.judgement) or ""
    return reason


class _Comparison:
    """Compares the gradients of a trial's case with others."""

    def __init__(self, bench: Bench) -> None:
        self.is_repairable = False  # whether --repair-batchnorm is off and would repair the statistics
        self.tells = False  # whether any compared gradient is finite and not zero
        self.trains = False  # whether any parameter of the compared steps trains
        self.beside: tuple[str, ...] = ()  # leaves that are compared and are no parameters of the module
        self.rounds = False  # whether the case's levers sum in another order
        self.wrong: str | None = None  # why the gradients of the baseline itself are wrong, if they are seen to be
        self._doubts = wrong_gradients.SilentErrors()  # of the baseline's own steps
        self._statistics: frozenset[str] = frozenset()  # buffers that hold the batch statistics of norms
        self._lost: tuple[str, ...] = ()  # parameters that train and got no gradient in the trial's own step
        self._bench = bench
        self._case = bench.trial.case
        self._dropping: Callable[[], AbstractContextManager[None]] = nullcontext  # around a step: dropout may be off
        self._group = bench.group

    def of_baseline(self) -> Equality:
        """Compare the baseline with itself and, unless its precision is fp32, with fp32."""
        case = self._case
        earlier = self._bench.step_digests
        result = equality.noise_floor(
            lambda: self._gradients(case), self._group, earlier=earlier.digests if earlier else None
        )
        if self._group.mesh is not None:  # with one process, too, that runs all ranks' batches, one after the other
            batch = equality.digest(tensors(self._bench.build().workload.batch))
            if self._group.size > 1 and len(set(self._group.gather(batch))) == 1:
                text = "all ranks have the same batch: whether gradients are averaged over them cannot be seen"
                self._bench.note("GCP035", text)
            what = "whether gradients are averaged over the ranks"
            result = verify_averaging(
                result,
                lambda: self._gradients(case),
                lambda rank: lambda: self._run(self._bench.build_unwatched(case, rank=rank)),
                lambda rank: lambda: self._run(self._bench.build_unwatched(case, rank=rank), nudge=True),
                self._group,
                attempt=lambda run: self._bench.extra(what, run, is_local=True),
            )
        elif cause := self._doubts.cause():
            self._bench.extra("whether the gradients are wrong", lambda: self._mend(result, cause))
        if case.precision == "fp32":
            return result
        exact = msgspec.structs.replace(case, precision="fp32")
        difference = self._bench.extra(
            "how far this precision is from fp32",
            lambda: equality.apart(lambda: self._gradients(exact), lambda: self._gradients(case), self._group),
        )
        if difference is None:
            return result
        self._bench.note("GCP013", f"in {case.precision} the gradients differ by {difference:.1e} from those in fp32")
        return msgspec.structs.replace(result, precision_difference=difference)

    def of_strategy(self) -> Equality | None:
        """Compare with the baseline's digests; compiled code that rounds or draws differently, with its reference."""
        case, digests = self._case, self._bench.trial.digests
        if digests is None:
            return None
        if (steps := self._bench.step_digests) and steps.digests == digests:
            self.tells, self.trains, self._lost = steps.tells, steps.trains, steps.lost
            return equality.equal(digests)
        ready = [self._bench.build()]  # used and freed by the first run
        applied = ready[0].applied
        self.rounds = applied.rounds
        self.is_repairable = not case.repair_batchnorm and bool(updated_again(ready[0].workload, applied))
        self._statistics = batch_statistics(ready[0].workload.module)

        def step() -> Ran:
            return self._run(ready.pop()) if ready else self._gradients(case)

        result = self._against(case.baseline, step, digests, applied)
        if applied.draws_apart and judge(result, strict=False) is not None:
            met: set[str] = set()  # which dropouts micro-batches have, whose masks are other ones
            self._dropping = partial(without_dropout, met)
            undropped = self._against(case.baseline, lambda: self._gradients(case), {}, applied)
            if met:
                text = "gradients are compared with dropout off: micro-batches draw masks of their own"
                self._bench.note("GCP073", text)
                result = undropped
            else:
                self._dropping = nullcontext
        if applied.reference is None or judge(result, strict=False) is None:
            return result
        if result.random_state_equal and not equality.is_rounding(result):
            return result
        why = f"rounds differently, by {result.largest_difference or 0.0:.1e}," if result.random_state_equal else ""
        text = f"compared with {applied.reference}: compiled code {why or 'draws different random numbers'} than `none`"
        self._bench.note("GCP011", text)
        reference = msgspec.structs.replace(case, strategy=applied.reference)
        result = self._against(reference, lambda: self._gradients(case), {}, applied)
        return msgspec.structs.replace(result, against=str(applied.reference))

    def _mend(self, result: Equality, cause: str) -> None:
        """Compare with a step in which what may be wrong is not, and keep why it is if they differ."""
        plain = equality.collect(lambda: self._gradients(self._case))
        with wrong_gradients.mended():
            right = equality.collect(lambda: self._gradients(self._case))
        found = equality.compare(right, plain)
        allowed = max(NOISE_MARGIN * (result.noise_floor or 0.0), reproducible(self._case.precision))
        if (found.largest_difference or 0.0) > allowed:
            amount = f"{found.largest_difference:.1e}, worst in {found.worst_parameter}"
            self.wrong = f"the gradients are wrong by {amount}, in plain PyTorch: {cause}"

    def is_rounding(self) -> bool:
        """Whether the gradients are as near to `none`'s as those are to fp32's, by the norm of all."""
        plain = self._case.baseline
        cases = (plain, self._case, msgspec.structs.replace(plain, precision="fp32"))
        ours, own, exact = (equality.collect(partial(self._gradients, case)).gradients for case in cases)
        apart, rounded = equality.distance(ours, own), equality.distance(exact, ours)
        if apart > rounded:
            return False
        text = f"the gradients are {apart:.1e} of their norm from those of `none`, which rounding in {plain.precision}"
        self._bench.note("GCP072", f"{text} takes {rounded:.1e} away from those in fp32")
        return True

    def cause(self) -> str | None:
        """Return why a recompute may give other gradients: what it finds changed, or that it stops too early."""
        if found := what_moves(self._bench.build_unwatched(self._case).workload, None):
            return found
        plain = equality.collect(lambda: self._gradients(self._case.baseline))
        with set_checkpoint_early_stop(False):
            whole = equality.collect(lambda: self._gradients(self._case))
        return STOPPED if equality.compare(plain, whole).gradients_equal else None

    def judgement(self) -> str:
        """Return what is to be said of two gradients that differ, besides that: which one finite differences confirm.

        Nothing if it is the baseline's, as is to be expected.
        """
        case = self._case
        plain = equality.collect(lambda: self._gradients(case.baseline)).gradients
        own = equality.collect(lambda: self._gradients(case)).gradients
        side = wrong_gradients.side(self._bench.build(case.baseline), plain, own)
        if side == "first":
            return ""
        if side == "second":
            return "; it is `none` that is wrong: finite differences of the loss agree with this row, not with `none`"
        agree = "agree with neither" if side else "do not settle which is right"
        return f"; neither is known to be right: finite differences of the loss {agree}"

    def with_lost(self, result: Equality) -> Equality:
        """Add how many parameters lack a gradient; a note names them for the baseline, or if the strategy lost any."""
        is_told = self._case == self._case.baseline or result.missing
        if self._lost and is_told:

            def explain() -> str:
                return explanation(self._bench.build_unwatched(self._case).workload, self._lost)

            if text := self._bench.extra("why parameters get no gradient", explain):
                self._bench.note("GCP045", text)
        return msgspec.structs.replace(result, num_without_gradient=len(self._lost))

    def others(self, result: Equality) -> tuple[str, ...]:
        """Return the differing buffers, without statistics of norms, which no forward reads in training."""
        return tuple(name for name in result.differing_buffers if name not in self._statistics)

    def rewritten(self, result: Equality) -> tuple[str, ...]:
        """Return `others` if only a recompute can explain them: the baseline is exact and the kernels are the same."""
        is_exact = result.noise_floor == 0 and result.rounding_floor is None
        return self.others(result) if is_exact and (result.buffers_difference or 0.0) > equality.AGREE else ()

    def _against(self, baseline: Case, step: GradientStep, digests: dict[str, str], applied: Applied) -> Equality:
        before = num_compiled()
        return equality.verify(
            step,
            lambda: self._gradients(baseline),
            digests,
            nudged=lambda: self._gradients(baseline, nudge=True),
            other_kernels=lambda: applied.changes_kernels or applied.rounds or num_compiled() > before,
            group=self._group,
        )

    def _gradients(self, case: Case, *, nudge: bool = False) -> Ran:
        forget()
        return self._run(self._bench.build(case), nudge=nudge)

    def _run(self, built: Assembled, *, nudge: bool = False) -> Ran:
        module = built.workload.module
        if nudge:
            equality.nudge(built.workload)
        before = kept_state.image(module)
        looks = self._case == self._case.baseline == built.case and self._group.mesh is None
        watching = self._doubts.watching() if looks else nullcontext()
        with optimizers.put_back(compared(built.workload)) as dropped, watching, self._dropping():
            loss = self._bench.gradients(built)
        moved = kept_state.moved(before, kept_state.image(module))
        if built.case == self._case == self._case.baseline:
            self.beside = tuple(name for name in compared(built.workload) if name.startswith((OF_LOSS, INPUT)))
        if built.case.precision == self._case.precision:
            parameters = compared(built.workload).values()
            gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
            self.tells = self.tells or equality.tells(gradients)
            self.trains = self.trains or any(parameter.requires_grad for parameter in parameters)
        if built.case == self._case:
            self._lost = equality.without_gradient(built.workload.module)

        def again() -> torch.Tensor:
            optimizer, _ = built.trainer()
            with weights_kept(built.workload):  # a factory may return the same module each time
                for parameter in dropped:  # by a hook that has already stepped with it
                    parameter.grad = None
                optimizer.step()
                with optimizers.put_back(compared(built.workload)), self._dropping():
                    return self._bench.gradients(built, number=2)

        return Ran(workload=built.workload, loss=loss, moved=moved, again=again)


def _buffers(result: Equality, others: Sequence[str], is_repairable: bool) -> str:
    difference = result.buffers_difference
    has_counts = any(name.rpartition(".")[2] == COUNT for name in result.differing_buffers)
    counts = [f"BatchNorm's count of its batches ({COUNT}), which a recompute raises again"] if has_counts else []
    if (difference is None and counts) or (difference is not None and difference <= equality.AGREE):
        rounding = [f"rounding ({difference:.1e})"] if difference is not None else []
        return f"buffers are equal except for {' and '.join([*rounding, *counts])}"
    apart = f"differ by {result.buffers_difference:.1e}" if result.buffers_difference else "differ"
    names = few(result.differing_buffers, MOST_NAMED)
    told = f"buffers {apart}" + (f" ({names})" if names else "")
    if not is_repairable or (others and len(others) == len(result.differing_buffers)):
        return f"{told}: the recompute updates them a second time"
    rest = f"; the recompute updates {few(others, MOST_NAMED)} a second time" if others else ""
    return f"{told}: BatchNorm updates its statistics when it is recomputed; --repair-batchnorm mends it{rest}"


def verify_averaging(
    result: Equality,
    step: GradientStep,
    alone: Callable[[int], GradientStep],
    nudged: Callable[[int], GradientStep],
    group: Group,
    *,
    attempt: Callable[[Callable[[], Results]], Results | None] = lambda run: run(),
) -> Equality:
    """Add to `result` how far the ranks' gradients are from one process's mean gradients over all ranks' batches.

    `alone(rank)` is the step of one process with the batch of a rank; `nudged(rank)` is the same with weights changed
    in the last bit, which shows the effect of rounding. It is run only if the gradients are not bit-equal. `attempt`
    runs what one process runs alone, and returns None if it fails: `result` is then returned as it is.
    """
    own = equality.collect(step)

    def mean_of(ways: Callable[[int], GradientStep]) -> Results | None:
        mean = attempt(lambda: _mean([equality.collect(ways(rank)) for rank in range(group.size)], group.rank))
        return mean if all(group.gather(mean is not None)) else None

    mean = mean_of(alone)
    if mean is None:
        return result
    across = equality.compared(mean, own, group)
    if not across.largest_difference:
        return msgspec.structs.replace(result, ranks_difference=0.0)
    nudged_mean = mean_of(nudged)
    if nudged_mean is None:
        return result
    return msgspec.structs.replace(
        result,
        ranks_difference=across.largest_difference,
        rounding_floor=max(group.gather(equality.compare(mean, nudged_mean).largest_difference or 0.0)),
        worst_parameter=across.worst_parameter,
    )


def _mean(results: Sequence[Results], rank: int) -> Results:
    """Return what a rank should have: the mean of the gradients of what all share, and its own of everything else."""
    means: Gradients = {}
    for name in results[0].gradients:
        parts = [part / len(results) for result in results if (part := result.gradients[name]) is not None]
        if not name.startswith((OF_LOSS, INPUT)):
            means[name] = sum(parts[1:], parts[0]) if parts else None
    return msgspec.structs.replace(results[rank], gradients=means)
