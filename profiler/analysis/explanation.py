"""Why a step's peak is what it is, from its trace, and what else would lower it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import msgspec

from profiler.analysis import live_bytes
from profiler.analysis.live_bytes import Holder, Peak, Share
from profiler.analysis.peak_floor import Floor, floor
from profiler.analysis.small_savings import INPUTS, Reason, reason
from profiler.core.allocator_history import GRANULE
from profiler.core.trace_data import Allocation, BlockChoice, BlockChoices, Life, Trace, live, summed

NUM_MODULES = 10  # the largest, that are named
LEAST_GAIN = 0.01  # of the peak: what gives less is not worth its line
GROWING = ("inputs", "saved", "recomputed", "temporaries")  # what may grow with the batch

CHUNKS = 8  # of the tokens, in a cross-entropy that is taken in chunks
SOFTMAX, SOFTMAX_BACKWARD = "aten._log_softmax", "aten._log_softmax_backward_data"
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
SHARED = ("saved", "recomputed", "temporaries")  # what is made of the logits, and can be made in parts

Change = Callable[[Allocation], Iterable[Life]]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of one step, what it is made of, how low it could be, and why it is no lower."""

    peak: Peak
    operator_bytes: int  # of the peak, what its operator takes besides its results
    categories: tuple[Share, ...]  # of what is live at the peak: all of it, the largest first
    modules: tuple[Share, ...]  # the same by block or module; an empty name is outside of all modules
    num_others: int  # modules that are not named
    others_bytes: int  # what those hold
    floor: Floor
    remedies: tuple[Remedy, ...]  # the strongest first
    choices: BlockChoices | None = None  # the blocks, and others that the model has; None where that is not known
    better: BlockChoice | None = None  # of those, the one that lowers the peak of `all` most
    baseline_bytes: int | None = None  # the baseline's peak; None without a baseline
    split: str | None = None  # where the blocks are cut
    reason: Reason | None = None  # None without a baseline, and where enough is saved
    holders: tuple[Holder, ...] = ()  # the largest at the peak, where lines of code are known


def explain(
    trace: Trace,
    *,
    blocks: tuple[str, ...],
    baseline: Trace | None = None,
    split: str | None = None,
    choices: BlockChoices | None = None,
) -> Explanation:
    """Explain the peak of a traced step.

    `blocks` are the names of the model's blocks in order; `baseline` is the trace of the same step without
    checkpointing, `choices` are what other blocks come to, and `split` is only passed on. The floor is read from the
    baseline where there is one: what runs only in a recompute is not in it. But a step whose checkpoints hold more than
    these blocks may pass that one, and has its own. A trace that is its own baseline needs no reason.
    """
    if baseline is trace:
        baseline = None
    highest = live_bytes.peak(trace)
    modules = live_bytes.modules_at(trace, highest.number, blocks=blocks)
    others = modules[NUM_MODULES:]
    least = floor(baseline or trace, blocks=blocks)
    if least.nbytes > highest.nbytes:
        least = floor(trace, blocks=blocks)
    has_lines = any(storage.line for storage in trace.allocations)
    why = reason(trace, baseline=baseline, blocks=blocks) if baseline else None
    return Explanation(
        peak=highest,
        operator_bytes=trace.operators[highest.number - 1].hidden_bytes if highest.number else 0,
        categories=live_bytes.categories_at(trace, highest.number),
        modules=modules[:NUM_MODULES],
        num_others=len(others),
        others_bytes=sum(share.nbytes for share in others),
        floor=least,
        remedies=remedies(trace, floor_bytes=least.nbytes, are_too_many=why is not None and why.kind == INPUTS),
        choices=choices,
        better=better_blocks(choices) if choices else None,
        baseline_bytes=live_bytes.peak(baseline).nbytes if baseline else None,
        split=split,
        reason=why,
        holders=live_bytes.holders_at(trace, highest.number) if has_lines else (),
    )


def better_blocks(choices: BlockChoices, *, lowers_floor: bool = False) -> BlockChoice | None:
    """The other blocks with the lowest peak under `all`; None where no other is lower by a hundredth.

    A floor is a bound, which `all` need not reach: finer blocks have a lower one, and may keep more inputs. A plan can
    only gain where that is lower too, as `lowers_floor` asks. Where the peak of `all` is not known of these blocks,
    floors are compared.
    """
    own = choices.own
    if own.all_bytes is None:
        lowest = min(choices.others, key=lambda other: other.floor_bytes, default=own)
        return lowest if lowest.floor_bytes < (1 - LEAST_GAIN) * own.floor_bytes else None
    lower = [
        (other.all_bytes, other.floor_bytes, other.num_blocks, other)
        for other in choices.others
        if other.all_bytes is not None
        and other.all_bytes < (1 - LEAST_GAIN) * own.all_bytes
        and (other.floor_bytes < own.floor_bytes or not lowers_floor)
    ]
    return min(lower, key=lambda entry: entry[:3])[-1] if lower else None


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is checkpointing, coarser, batch, optimizer, gradients, kept-gradients, offload, host-inputs or loss."""

    kind: str
    nbytes: int  # the peak would be lower by at most so many


def remedies(trace: Trace, *, floor_bytes: int, are_too_many: bool = False) -> tuple[Remedy, ...]:
    """Every remedy that could lower the peak by a hundredth or more, the strongest first.

    Each is the peak of the same step less the peak with other lives of its storages: half the batch; an optimizer
    without state; gradients freed as they arrive (the optimizer's step in the backward); gradients that are kept
    between the steps dropped instead; saved activations, which are what checkpoints keep where there are any, on the
    host but where they are made and last used; the loss in chunks. An optimizer in the backward has no place where
    gradients of several micro-batches are added. Where there `are_too_many` checkpoints, fewer lead to it. Bytes.
    """
    highest = max(live(trace))
    is_recomputed = any(operator.phase == "recompute" for operator in trace.operators)
    changes: dict[str, Change] = {
        "batch": _half_batch(trace),
        "optimizer": _no_state,
        "gradients": _freed_gradients,
        "kept-gradients": _dropped_gradients(trace),
        "host-inputs" if is_recomputed else "offload": _offloaded,
    }
    if in_chunks := chunked(trace):
        changes["loss"] = in_chunks
    if is_accumulated(trace):
        del changes["gradients"]
    gains = {"coarser" if are_too_many else "checkpointing": highest - floor_bytes}
    gains |= {
        kind: highest - _changed_peak(trace, change, is_half_batch=kind == "batch") for kind, change in changes.items()
    }
    worth = [Remedy(kind=kind, nbytes=gain) for kind, gain in gains.items() if gain >= max(1, LEAST_GAIN * highest)]
    return tuple(sorted(worth, key=lambda remedy: -remedy.nbytes))


def is_accumulated(trace: Trace) -> bool:
    """Whether the step has several backwards, whose gradients are added."""
    return sum(phase == "backward" for phase, _ in trace.marks) > 1


def _changed_peak(trace: Trace, change: Change, *, is_half_batch: bool = False) -> int:
    """The peak with the lives that the change gives; of half the batch operators hide less."""
    held = summed(chain.from_iterable(map(change, trace.allocations)), len(trace.operators))
    hidden = (0, *(operator.hidden_bytes - is_half_batch * operator.batch_bytes for operator in trace.operators))
    return max(bytes_ + more for bytes_, more in zip(held, hidden, strict=True))


def _as_it_is(storage: Allocation) -> Iterable[Life]:
    yield storage.nbytes, storage.born, storage.died


def _half_batch(trace: Trace) -> Change:
    """What the optimizer makes never grows; the allocator rounds what is left up."""
    granule = GRANULE if trace.device == "cuda" else 1

    def change(storage: Allocation) -> Iterable[Life]:
        if storage.batch_power and storage.category in GROWING and storage.phase != "optimizer":
            yield -(-storage.nbytes // (granule << storage.batch_power)) * granule, storage.born, storage.died
        else:
            yield from _as_it_is(storage)

    return change


def _no_state(storage: Allocation) -> Iterable[Life]:
    if storage.category != "optimizer" and storage.phase != "optimizer":
        yield from _as_it_is(storage)


def _freed_gradients(storage: Allocation) -> Iterable[Life]:
    """The optimizer's temporaries go with them: it takes one parameter at a time."""
    if storage.category == "gradients" and storage.born:
        yield storage.nbytes, storage.born, storage.born
    elif storage.phase != "optimizer":
        yield from _as_it_is(storage)


def _dropped_gradients(trace: Trace) -> Change:
    """A gradient of the step before is there from its module's own backward on."""
    first: dict[str, int] = {}
    for number, operator in enumerate(trace.operators, start=1):
        if operator.phase == "backward":
            first.setdefault(operator.module, number)

    def change(storage: Allocation) -> Iterable[Life]:
        if storage.category == "gradients" and not storage.born:
            yield storage.nbytes, min(first.get(storage.module, 1), storage.died + 1), storage.died
        else:
            yield from _as_it_is(storage)

    return change


def _offloaded(storage: Allocation) -> Iterable[Life]:
    if storage.category == "saved" and storage.died > storage.born:
        yield storage.nbytes, storage.born, storage.born
        yield storage.nbytes, storage.died, storage.died
    else:
        yield from _as_it_is(storage)


def chunked(trace: Trace) -> Change | None:
    """The lives of storages with a cross-entropy in chunks, each chunk's logits computed anew in its backward.

    None where the forward has no cross-entropy of its own, or has several. From the product that makes the logits to
    those of its backward, which make gradients of the input and the weights, what is at least half as large as the
    log-probabilities is a `CHUNKS`th of it. The gradients of the head's weights are there twice meanwhile: one chunk's
    is added to the sum.
    """
    names = [operator.name for operator in trace.operators]
    if names.count(SOFTMAX) != 1 or names.count(SOFTMAX_BACKWARD) != 1:
        return None
    softmax, backward = names.index(SOFTMAX) + 1, names.index(SOFTMAX_BACKWARD) + 1
    first = max((number for number in _products(names) if number < softmax), default=None)
    lasts = [number for number in _products(names) if number > backward][:2]  # for the input and for the weights
    sizes = [storage.nbytes for storage in trace.allocations if storage.born == softmax]
    if first is None or not lasts or not sizes:
        return None
    head, last, least = trace.operators[first - 1].module, lasts[-1], max(sizes) / 2
    made = {number for number in range(first, last + 1) if number == first or names[number - 1] not in PRODUCTS}

    def change(storage: Allocation) -> Iterable[Life]:
        is_shared = storage.born in made and storage.category in SHARED and storage.nbytes >= least
        yield -(-storage.nbytes // CHUNKS) if is_shared else storage.nbytes, storage.born, storage.died
        if first <= storage.born <= last and storage.category == "gradients" and storage.module == head:
            yield storage.nbytes, storage.born, last

    return change


def _products(names: list[str]) -> list[int]:
    """The numbers of the products of matrices."""
    return [number for number, name in enumerate(names, start=1) if name in PRODUCTS]
