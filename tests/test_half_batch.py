"""What half the batch would save is what the model with half its batch shows, where that is rehearsed."""

from __future__ import annotations

import msgspec
import pytest

from profiler.analysis.explanation import remedies
from profiler.core.trace_data import Trace, live
from profiler.request.spec import Request
from profiler.workflows.explain import explain
from tests.hollow import Hollow
from tests.traced import by_hand


def promised(trace: Trace, **known: object) -> int:
    """The peak that half the batch is said to have. Bytes."""
    gains = {remedy.kind: remedy.nbytes for remedy in remedies(trace, floor_bytes=0, **known)}
    return max(live(trace)) - gains.get("batch", 0)


def by_thousands() -> Trace:
    """A temporary and a parameter of 1,000 bytes each, and an operator that works in 100 more, 30 of them a half's."""
    trace = by_hand(
        [("forward", "m")],
        [(1000, 1, 1, "m", "forward", "temporaries"), (1000, 0, 1, "m", "before", "parameters")],
    )
    operator = msgspec.structs.replace(trace.operators[0], hidden_bytes=100, batch_bytes=30)
    return msgspec.structs.replace(trace, operators=(operator,))


def test_what_may_grow_is_halved_by_hand():
    assert promised(by_thousands()) == 500 + 1000 + 70


def test_what_was_rehearsed_of_half_the_batch_counts():
    assert promised(by_thousands(), half_batch_bytes=1234) == 1234


@pytest.mark.slow
def test_half_the_batch_of_a_rehearsed_step_is_rehearsed(hollow: Hollow, here):
    model = "transformer:layers=2,width=64,sequence=32,vocabulary=128"

    def explained(batch_size: int):
        words = Request(strategies="all", device="h100", batch_size=str(batch_size), precision="amp-bf16")
        return explain(model, words)[1]

    whole, half = explained(16), explained(8)

    gains = {remedy.kind: remedy.nbytes for remedy in whole.remedies}
    assert gains["batch"] == whole.peak.nbytes - half.peak.nbytes
