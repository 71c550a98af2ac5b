"""Every reason why checkpointing saved little, with the bytes that it rests on: from traces made by hand."""

import pytest

from profiler.analysis.explanation import reason
from profiler.core.trace_data import WORKSPACES
from tests.traced import BLOCKS, by_hand

FIRST, SECOND = BLOCKS
PLAIN = [("forward", FIRST), ("forward", SECOND), ("backward", SECOND), ("backward", FIRST)]
ALL = [  # each block in a checkpoint of its own
    *PLAIN[:2], ("recompute", SECOND), ("backward", SECOND), ("recompute", FIRST), ("backward", FIRST),
]  # fmt: skip
WHOLE = [*PLAIN[:2], ("recompute", FIRST), ("recompute", SECOND), *PLAIN[2:]]  # one checkpoint of both
SAVED = [(2048, 1, 4, FIRST, "forward", "saved"), (2048, 2, 3, SECOND, "forward", "saved")]
BASELINE = by_hand(PLAIN, SAVED)
RECOMPUTED = (512, 3, 4, SECOND, "recompute", "recomputed")


@pytest.mark.parametrize(
    ("operators", "allocations", "kind", "text"),
    [
        (
            PLAIN,
            SAVED,
            "unreached",
            "4.00 KiB is saved as without",
        ),
        (
            ALL,
            [RECOMPUTED, (3584, 0, 6, "", "before", WORKSPACES)],
            "workspace",
            "3.50 KiB of the peak's 4.00 KiB is workspace",
        ),
        (
            [*ALL, ("optimizer", "")],
            [RECOMPUTED, (2048, 0, 7, FIRST, "before", "parameters"), (3072, 7, 7, "", "optimizer", "temporaries")],
            "optimizer",
            "2.00 KiB is static, and the step itself takes 3.00 KiB",
        ),
        (
            ALL,
            [RECOMPUTED, (3072, 4, 6, SECOND, "backward", "gradients"), (1024, 5, 6, FIRST, "recompute", "recomputed")],
            "gradients",
            "3.00 KiB of them, and 1.00 KiB of activations",
        ),
        (
            WHOLE,
            [(2048, 3, 6, FIRST, "recompute", "recomputed"), (2048, 4, 5, SECOND, "recompute", "recomputed")],
            "whole",
            "all 2 blocks: its recompute brings back 4.00 KiB at once, of 4.00 KiB saved",
        ),
        (
            ALL,
            [RECOMPUTED, (3072, 1, 6, "head", "forward", "saved"), (1024, 1, 6, "", "forward", "saved")],
            "outside",
            "(head 3.00 KiB, the loss and top-level code 1.00 KiB) holds 4.00 KiB of the peak's 4.50 KiB",
        ),
        (
            ALL,
            [RECOMPUTED, (3584, 4, 4, SECOND, "backward", "temporaries")],
            "block",
            "one block dominates: 'blocks.1' alone needs 4.00 KiB of the peak's 4.00 KiB in its backward",
        ),
        (
            [("forward", FIRST), ("forward", SECOND), ("backward", SECOND), ("recompute", FIRST), ("backward", FIRST)],
            [(4096, 2, 3, SECOND, "forward", "saved"), (512, 4, 5, FIRST, "recompute", "recomputed")],
            "plain",
            "1 of 2 blocks are not recomputed, and hold 4.00 KiB of the peak's 4.00 KiB",
        ),
        (
            ALL,
            [RECOMPUTED, (2048, 1, 6, FIRST, "forward", "saved"), (2048, 2, 4, SECOND, "forward", "saved")],
            "inputs",
            "there are too many checkpoints: the inputs that they keep hold 4.00 KiB of the peak's 4.50 KiB",
        ),
    ],
)
def test_the_reason_is_told_with_the_bytes_that_it_rests_on(operators, allocations, kind, text):
    found = reason(by_hand(operators, allocations), baseline=BASELINE, blocks=BLOCKS)

    assert found is not None
    assert found.kind == kind
    assert text in found.text


@pytest.mark.parametrize(("nbytes", "is_little"), [(3687, True), (3686, False)])
def test_a_tenth_of_the_peak_is_not_little(nbytes, is_little):
    trace = by_hand(ALL, [(nbytes, 3, 4, SECOND, "recompute", "recomputed")])

    assert (reason(trace, baseline=BASELINE, blocks=BLOCKS) is not None) == is_little
