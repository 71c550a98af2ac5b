"""Plans as text."""

import pytest

from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile, Segment
from profiler.core.units import parse_budget
from profiler.planning.chain import fault, plan_file_of
from tests.planning_chains import equal_stages, parse, read, with_modules


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "stages are none, not 1 to 3 in order"),
        ("3 2 1", "stages are 3 2 1, not 1 to 3 in order"),
        ("[] 1-3", "a checkpointed segment is empty or ends inside another"),
        ("[1 2:few] 3", "stage 2 is in a checkpointed segment, and takes no save option there"),
    ],
)
def test_what_is_no_plan_of_three_stages_is_told_why(text, complaint):
    assert fault(read(text), 3) == complaint


def test_a_plan_file_names_the_blocks_of_what_is_checkpointed_and_of_what_is_kept_under_an_option():
    chain = with_modules(equal_stages(6), "a", "b c", "d", "", "e", "f")

    assert plan_file_of(chain, parse("[[1] 2] 3:matmul 4 [5] 6", 6), ("fused",)) == PlanFile(
        plan="[[1] 2] 3:matmul 4 [5] 6",
        segments=(
            Segment(blocks=(Segment(blocks=("a",)), "b", "c")),
            Segment(blocks=("d",), save="matmul"),
            Segment(blocks=("e",)),
        ),
        fingerprint={name: (f"{name} float32 2",) for name in "abcdef"},
        levers=("fused",),
    )


@pytest.mark.parametrize("text", ["1 [2] 3", "1 2:matmul 3"])
def test_a_stage_of_no_modules_is_not_computed_again(text):
    chain = with_modules(equal_stages(3), "a", "", "c")

    with pytest.raises(UserError, match="stage '' has no known blocks"):
        plan_file_of(chain, parse(text, 3))


# --- what users write for a budget, and the bytes that they mean


WHOLE = 1_000_000


@pytest.mark.parametrize(
    ("word", "meant"), [("8 gib", 8 * 2**30), ("2kB", 2000), ("1e9B", 10**9), ("0.5 %", 5000), ("Max", WHOLE)]
)
def test_a_budget_is_bytes_a_share_of_the_whole_or_the_whole(word, meant):
    assert parse_budget(word, whole_bytes=WHOLE) == meant


@pytest.mark.parametrize(
    "word", ["", "GiB", "nan", "-5%", "0", "0.4", "101%", "9" * 400 + "%", "8388608TiB", "1,5GiB", "٣MiB", "60", " 8 "]
)
def test_what_is_no_budget_is_refused_with_what_would_be_one(word):
    with pytest.raises(UserError, check=lambda e: f"--budget cannot be '{word}'" in e.message and "8GiB" in e.hint):
        parse_budget(word, whole_bytes=WHOLE)
