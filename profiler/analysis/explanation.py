"""Explains a step's peak, why checkpointing saved little, and what else would lower it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from profiler.analysis import live_bytes
from profiler.analysis.live_bytes import OUTSIDE, Holder, Peak, Share, nbytes, recomputes, stage_of
from profiler.analysis.peak_floor import Floor, floor
from profiler.core import trace_data
from profiler.core.record import Readings
from profiler.core.trace_data import Allocation, BlockChoice, BlockChoices, Followed, Life, Trace
from profiler.core.units import bytes_text, count_text

NUM_MODULES = 10  # how many of the largest are named
LEAST_GAIN = 0.01  # fraction of the peak: smaller gains are not listed
GROWING = ("inputs", "saved", "recomputed", "temporaries")  # categories that may grow with the batch

CHUNKS = 8  # into which a chunked cross-entropy splits the tokens
SOFTMAX, SOFTMAX_BACKWARD = "aten._log_softmax", "aten._log_softmax_backward_data"
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
SHARED = ("saved", "recomputed", "temporaries")  # categories of what is made of the logits, and can be made in chunks

Change = Callable[[Allocation], Iterable[Life]]
LITTLE = 0.1  # fraction of the baseline's peak: smaller savings are explained
UNCHANGED = 0.98  # fraction of the baseline's peak: a row with more has not lowered it
SAME = 0.99  # fraction of the baseline's saved bytes: a step that saves so many was not checkpointed
MOST = 0.75  # fraction of the peak: if so much is static, that is the reason
NUM_OUTSIDE = 2  # how many modules outside of the blocks are named
INPUTS = "inputs"  # the kind of reason if there are too many checkpoints

Stage = Callable[[str], str]  # from a module's name to its block


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of one step, what it is made of, how low it could be, and why it is no lower."""

    peak: Peak
    operator_bytes: int  # of the peak: what its operator allocates besides its outputs
    categories: tuple[Share, ...]  # of all that is live at the peak, the largest first
    modules: tuple[Share, ...]  # the same by block or module; an empty name is outside of all modules
    num_others: int  # modules that are not named
    others_bytes: int  # what these hold
    floor: Floor
    remedies: tuple[Remedy, ...]  # the strongest first
    choices: BlockChoices | None = None  # the blocks, and others that the model has; None if not known
    better: BlockChoice | None = None  # the choice that lowers the peak of `all` most
    baseline_bytes: int | None = None  # the baseline's peak; None without a baseline
    split: str | None = None  # how the strategy split the blocks
    reason: Reason | None = None  # None without a baseline, or if enough is saved
    holders: tuple[Holder, ...] = ()  # the largest at the peak, if lines of code are known


def explain(
    step: Followed,
    baseline: Followed | None = None,
    *,
    batch_size: int | None = None,
    half_batch_bytes: int | None = None,
) -> Explanation:
    """Explain the peak of a traced step.

    `baseline` is the same step without checkpointing, with what other blocks come to; a step that is its own baseline
    needs no reason. `batch_size` is None if it is not known, and so is `half_batch_bytes`, the peak with half of it.
    The floor is that of the baseline if there is one, since what runs only in a recompute is not in it. But if the
    step's peak is below that floor, because its checkpoints hold more than these blocks, the floor is the step's own.
    """
    trace, blocks, choices = step.trace, step.blocks, baseline.choices if baseline else None
    plain = baseline.trace if baseline and baseline.trace is not trace else None
    highest = live_bytes.peak(trace)
    modules = live_bytes.modules_at(trace, highest.number, blocks=blocks)
    others = modules[NUM_MODULES:]
    least = floor(plain or trace, blocks=blocks)
    if least.nbytes > highest.nbytes:
        least = floor(trace, blocks=blocks)
    held = trace_data.held_at(trace, highest.number) if any(storage.line for storage in trace.allocations) else []
    why = reason(trace, baseline=plain, blocks=blocks) if plain else None
    return Explanation(
        peak=highest,
        operator_bytes=trace.operators[highest.number - 1].hidden_bytes if highest.number else 0,
        categories=live_bytes.categories_at(trace, highest.number),
        modules=modules[:NUM_MODULES],
        num_others=len(others),
        others_bytes=sum(share.nbytes for share in others),
        floor=least,
        remedies=remedies(
            trace,
            floor_bytes=least.nbytes,
            are_too_many=why is not None and why.kind == INPUTS,
            can_halve=batch_size != 1,
            half_batch_bytes=half_batch_bytes,
        ),
        choices=choices,
        better=better_blocks(choices) if choices else None,
        baseline_bytes=live_bytes.peak(plain).nbytes if plain else None,
        split=step.split,
        reason=why,
        holders=live_bytes.holders((one.nbytes, one.operator, one.line, one.category) for one in held),
    )


def better_blocks(choices: BlockChoices, *, lowers_floor: bool = False) -> BlockChoice | None:
    """Return the other blocks with the lowest peak under `all`; None if no others are lower by a hundredth.

    A floor is a lower bound that `all` need not reach: finer blocks have a lower one, but may keep more inputs. A plan
    gains only if the floor is lower too, which `lowers_floor` requires. Floors are compared if the peak of `all` is not
    known for the case's own blocks.
    """
    own = choices.own
    if own.all_bytes is None:
        lowest = min(choices.others, key=lambda other: other.floor_bytes, default=own)
        return lowest if lowest.floor_bytes < (1 - LEAST_GAIN) * own.floor_bytes else None
    lower = (
        other
        for other in choices.others
        if other.all_bytes is not None
        and other.all_bytes < (1 - LEAST_GAIN) * own.all_bytes
        and (other.floor_bytes < own.floor_bytes or not lowers_floor)
    )
    return min(lower, key=lambda other: (other.all_bytes or 0, other.floor_bytes, other.num_blocks), default=None)


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A change that would lower the peak.

    `kind` is checkpointing, coarser, batch, optimizer, gradients, kept-gradients, offload, host-inputs or loss.
    """

    kind: str
    nbytes: int  # an upper bound of what it takes off the peak


def remedies(
    trace: Trace,
    *,
    floor_bytes: int,
    are_too_many: bool = False,
    can_halve: bool = True,
    half_batch_bytes: int | None = None,
) -> tuple[Remedy, ...]:
    """Return every remedy that could lower the peak by a hundredth or more, the strongest first. Bytes.

    The gain is the peak of the step less its peak with other lifetimes of its storages: half the batch; an optimizer
    without state; gradients freed as they arrive (the optimizer's step in the backward); gradients dropped instead of
    kept between steps; saved activations (with checkpoints, their inputs) on the host except where they are made and
    last used; the loss in chunks. What is impossible is left out: an optimizer in the backward if gradients of several
    micro-batches are added, the host as another memory if the step runs there, half of a batch that is not `can_halve`.
    If there `are_too_many` checkpoints, the way to the floor is fewer of them: `coarser` instead of
    `checkpointing`. `half_batch_bytes` is the peak of the step with half the batch, where it is known.
    """
    highest = max(trace_data.live(trace))
    peaks = {"coarser" if are_too_many else "checkpointing": floor_bytes}
    for kind, change in _changes(trace).items():
        held = trace_data.summed(chain.from_iterable(map(change, trace.allocations)), len(trace.operators))
        halved = kind == "batch"  # then operators hide fewer bytes too
        hidden = (0, *(operator.hidden_bytes - halved * operator.batch_bytes for operator in trace.operators))
        peaks[kind] = max(bytes_ + more for bytes_, more in zip(held, hidden, strict=True))
    if half_batch_bytes is not None:
        peaks["batch"] = half_batch_bytes
    if not can_halve:
        del peaks["batch"]
    gains = [Remedy(kind=kind, nbytes=highest - peak_bytes) for kind, peak_bytes in peaks.items()]
    worth = [remedy for remedy in gains if remedy.nbytes >= max(1, LEAST_GAIN * highest)]
    return tuple(sorted(worth, key=lambda remedy: -remedy.nbytes))


def _changes(trace: Trace) -> dict[str, Change]:
    """Return the possible remedies, each with the lifetimes that it leaves to a storage of the step."""
    granule = trace_data.GRANULE if trace.device == "cuda" else 1
    first: dict[str, int] = {}  # the first operator of each module's backward
    for number, operator in enumerate(trace.operators, start=1):
        if operator.phase == "backward":
            first.setdefault(operator.module, number)

    def batch(storage: Allocation) -> Iterator[Life]:
        """Halve what may grow with it; an upper bound: some of it, such as weights that autocast makes, need not."""
        grows = storage.category in GROWING and storage.phase != "optimizer"
        nbytes = -(-storage.nbytes // (2 * granule)) * granule if grows else storage.nbytes  # rounded up as allocated
        yield nbytes, storage.born, storage.died

    def optimizer(storage: Allocation) -> Iterator[Life]:
        if "optimizer" not in (storage.category, storage.phase):
            yield storage.nbytes, storage.born, storage.died

    def gradients(storage: Allocation) -> Iterator[Life]:
        """Free each when it is made, and the optimizer's temporaries with it: it takes one parameter at a time."""
        is_made = storage.category == "gradients" and storage.born > 0
        if is_made or storage.phase != "optimizer":
            yield storage.nbytes, storage.born, storage.born if is_made else storage.died

    def kept_gradients(storage: Allocation) -> Iterator[Life]:
        """Let each gradient of the step before begin only with its module's own backward."""
        is_kept = storage.category == "gradients" and not storage.born
        born = min(first.get(storage.module, 1), storage.died + 1) if is_kept else storage.born
        yield storage.nbytes, born, storage.died

    def offload(storage: Allocation) -> Iterator[Life]:
        is_moved = storage.category == "saved" and storage.died > storage.born
        yield storage.nbytes, storage.born, storage.born if is_moved else storage.died
        if is_moved:
            yield storage.nbytes, storage.died, storage.died

    changes: dict[str, Change] = {"optimizer": optimizer, "kept-gradients": kept_gradients, "batch": batch}
    if sum(phase == "backward" for phase, _ in trace.marks) < 2:  # else gradients of several backwards are added
        changes["gradients"] = gradients
    if trace.device != "cpu":
        is_recomputed = any(operator.phase == "recompute" for operator in trace.operators)
        changes["host-inputs" if is_recomputed else "offload"] = offload
    if in_chunks := chunked(trace):
        changes["loss"] = in_chunks
    return changes


def chunked(trace: Trace) -> Change | None:
    """Return a change to a cross-entropy in chunks, each of whose logits are recomputed in its backward.

    None if the forward has no cross-entropy of its own, or has several. From the matrix product that makes the logits
    to those of its backward, which make gradients of the input and the weights, what is at least half as large as the
    log-probabilities shrinks to a `CHUNKS`th. The gradients of the head's weights exist twice in that time: one chunk's
    is added to the sum.
    """
    names = [operator.name for operator in trace.operators]
    if names.count(SOFTMAX) != 1 or names.count(SOFTMAX_BACKWARD) != 1:
        return None
    softmax, backward = names.index(SOFTMAX) + 1, names.index(SOFTMAX_BACKWARD) + 1
    products = [number for number, name in enumerate(names, start=1) if name in PRODUCTS]
    first = max((number for number in products if number < softmax), default=None)
    lasts = [number for number in products if number > backward][:2]  # for the input and for the weights
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


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why checkpointing saved little.

    `kind` is unreached, workspace, optimizer, gradients, static, whole, segment, block, plain, inputs or outside.
    """

    kind: str
    text: str  # one sentence


def reason_of_readings(readings: Readings, baseline: Readings) -> str | None:
    """Return why a peak is no lower than the baseline's, by what was read of both; None if it is, or not known."""
    saved, peak = readings.saved_bytes, readings.peak_bytes
    if not (peak and saved and baseline.saved_bytes and baseline.peak_bytes) or peak <= UNCHANGED * baseline.peak_bytes:
        return None
    text = live_bytes.most_of_peak(readings)
    if text is None or saved < SAME * baseline.saved_bytes:
        return text
    without = bytes_text(baseline.saved_bytes)
    more = f"and {without} without checkpoints: their inputs and random states take more than they free"
    same = "as without it: `gcprof blocks MODEL` shows where it is"
    return f"the forward saves {bytes_text(saved)}, {more if saved > baseline.saved_bytes / SAME else same}"


def reason(trace: Trace, *, baseline: Trace, blocks: tuple[str, ...]) -> Reason | None:
    """Return the first reason that applies; None if a tenth of the baseline's peak is saved, or more."""
    if live_bytes.peak(trace).nbytes <= (1 - LITTLE) * live_bytes.peak(baseline).nbytes:
        return None
    kind, text = next(_reasons(trace, baseline, blocks))
    return Reason(kind=kind, text=text)


def _reasons(trace: Trace, baseline: Trace, blocks: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each reason that applies, the first ones first."""
    peak, stage, lives = live_bytes.peak(trace), stage_of(blocks), trace_data.by_category(trace)
    held = trace_data.held_at(trace, peak.number)
    ran = [  # every recompute: its first operator, and the blocks that it ran, in order
        (first, list(dict.fromkeys(stage(operator.module) for operator in trace.operators[first - 1 : last])))
        for first, last in recomputes(trace)
    ]
    saved, plain_saved = max(lives["saved"]), max(trace_data.by_category(baseline)["saved"])
    workspace = nbytes(storage for storage in held if storage.category == trace_data.WORKSPACES)
    if peak.number:  # also what the operator hides that does not grow with the batch
        operator = trace.operators[peak.number - 1]
        workspace += max(0, operator.hidden_bytes - 2 * operator.batch_bytes)
    static, gradients, again, activations = (
        nbytes(storage for storage in held if storage.category in categories)
        for categories in (trace_data.STATIC, ("gradients",), ("recomputed",), ("saved", "recomputed"))
    )
    segment = next(([block for block in run if block] for first, run in reversed(ran) if first <= peak.number), [])
    of = f"of the peak's {bytes_text(peak.nbytes)}"
    is_recomputed = bool(ran) or any(storage.category == "recomputed" for storage in trace.allocations)
    if not is_recomputed and saved >= SAME * plain_saved:
        text = "nothing is recomputed in the whole step: the checkpoints never reached the layers"
        yield "unreached", f"{text}, and {bytes_text(saved)} is saved as without them"
    if 2 * workspace >= peak.nbytes:
        text = (
            "is workspace, which libraries take for their kernels: neither checkpointing nor a smaller batch lowers it"
        )
        yield "workspace", f"{bytes_text(workspace)} {of} {text}"
    if peak.phase == "optimizer":
        text = "the peak is in the optimizer's step, which checkpointing does not touch"
        all_static = static + nbytes(storage for storage in held if storage.category == trace_data.WORKSPACES)
        own = bytes_text(peak.nbytes - all_static)
        yield "optimizer", f"{text}: {bytes_text(all_static)} is static, and the step itself takes {own}"
    if peak.phase in ("backward", "recompute") and gradients >= max(max(lives["gradients"]) / 2, activations):
        text = "the peak is late in the backward and consists of gradients: it holds"
        yield "gradients", f"{text} {bytes_text(gradients)} of them, and {bytes_text(activations)} of activations"
    if len(blocks) > 1 and set(segment) == set(blocks):
        text = f"one checkpoint holds all {count_text(len(blocks), 'block')}: its recompute brings back"
        yield "whole", f"{text} {bytes_text(again)} at once, of {bytes_text(plain_saved)} saved without it"
    if static + workspace >= MOST * peak.nbytes:
        text = "is static (parameters, gradients, optimizer state, inputs)"
        more = f" and {bytes_text(workspace)} a workspace" if workspace else ""
        yield "static", f"{bytes_text(static)} {of} {text}{more}, which checkpointing does not touch"
    recomputed = {block for _, run in ran for block in run if block}
    yield _largest(trace, held, stage, blocks=blocks, segment=segment, recomputed=recomputed, of=of)


def _largest(
    trace: Trace,
    held: Sequence[Allocation],
    stage: Stage,
    *,
    blocks: tuple[str, ...],
    segment: list[str],
    recomputed: set[str],
    of: str,
) -> tuple[str, str]:
    """Return what holds most of the non-static bytes at the peak, as the reason."""
    parts, outside = Counter[str](), Counter[str]()
    for storage in held:
        if storage.category in (*trace_data.STATIC, trace_data.WORKSPACES):
            continue
        block, is_saved = stage(storage.module), storage.category == "saved"
        is_input = is_saved and block and stage(trace.operators[storage.died - 1].module) in recomputed
        parts[INPUTS] += storage.nbytes * bool(is_input)
        parts["segment"] += storage.nbytes * (block in segment and not is_saved)
        parts["plain"] += storage.nbytes * bool(block and block not in recomputed and not is_input)
        outside[storage.module] += storage.nbytes * (block == OUTSIDE)
    parts["outside"] = sum(outside.values())
    kind = max(("outside", "segment", "plain", INPUTS), key=parts.__getitem__)
    holds = f"{bytes_text(parts[kind])} {of}"
    if kind == "segment" and len(segment) == 1:
        return "block", f"one block dominates: '{segment[0]}' alone needs {holds} in its backward"
    several = count_text(len(blocks), "block")
    names = ", ".join(
        f"{module or 'the loss and top-level code'} {bytes_text(size)}"
        for module, size in outside.most_common(NUM_OUTSIDE)
        if size
    )
    texts = {
        "outside": f"what is outside of these blocks ({names}) holds {holds}",
        "segment": f"one segment dominates: '{segment[0] if segment else ''}' to '{segment[-1] if segment else ''}', "
        f"{len(segment)} of {several}, are recomputed at once and hold {holds}",
        "plain": f"{len(blocks) - len(recomputed)} of {several} are not recomputed, and hold {holds}",
        INPUTS: f"there are too many checkpoints: the inputs that they keep hold {holds}",
    }
    return kind, texts[kind]
