"""Why a step's peak is what it is, from its trace: knows nothing of torch, of strategies or of screens."""

from __future__ import annotations

import msgspec

from profiler.analysis import live_bytes
from profiler.analysis.floor import Floor, floor
from profiler.analysis.live_bytes import Peak, Share
from profiler.analysis.reasons import Reason, reason
from profiler.analysis.remedies import Remedy, remedies
from profiler.core.trace_data import Trace

NUM_MODULES = 10  # the largest, that are named


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of one step, what it is made of, how low it could be, and why it is no lower."""

    peak: Peak
    categories: tuple[Share, ...]  # of what is live at the peak: all of it, the largest first
    modules: tuple[Share, ...]  # the same by block or module; an empty name is outside of all modules
    num_others: int  # modules that are not named,
    others_bytes: int  # and what they hold
    floor: Floor
    remedies: tuple[Remedy, ...]  # the strongest first
    baseline_bytes: int | None = None  # the baseline's peak; None without a baseline
    split: str | None = None  # where the blocks are cut
    reason: Reason | None = None  # None without a baseline, and where enough is saved


def explain(
    trace: Trace, *, blocks: tuple[str, ...], baseline: Trace | None = None, split: str | None = None
) -> Explanation:
    """Explain the peak of a traced step.

    `blocks` are the names of the model's blocks in order; `baseline` is the trace of the same step without
    checkpointing, and `split` is only passed on. The floor is read from the baseline where there is one: what runs only
    in a recompute is not in it. A trace that is its own baseline needs no reason.
    """
    if baseline is trace:
        baseline = None
    highest = live_bytes.peak(trace)
    modules = live_bytes.modules_at(trace, highest.number, blocks=blocks)
    others = modules[NUM_MODULES:]
    least = floor(baseline or trace, blocks=blocks)
    return Explanation(
        peak=highest,
        categories=live_bytes.categories_at(trace, highest.number),
        modules=modules[:NUM_MODULES],
        num_others=len(others),
        others_bytes=sum(share.nbytes for share in others),
        floor=least,
        remedies=remedies(trace, floor_bytes=least.nbytes),
        baseline_bytes=live_bytes.peak(baseline).nbytes if baseline else None,
        split=split,
        reason=reason(trace, baseline=baseline, blocks=blocks) if baseline else None,
    )
