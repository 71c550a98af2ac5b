"""Plans as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.core.errors import UserError
from profiler.planning.plan import Item, Plan, fault, parse, render


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, int]:
    """Any plan of up to nine stages, with their number."""
    number = draw(st.integers(1, 9))
    inside: set[int] = set()

    def items(first: int, end: int, within: bool) -> tuple[Item, ...]:
        if first == end:
            return ()
        if within:
            inside.update(range(first, end))
            return (*items(first, end - 1, False), end - 1)
        length = draw(st.integers(0, end - first))
        head: Item = items(first, first + length, True) if length else first
        return (head, *items(first + max(length, 1), end, False))

    found = items(0, number, False)
    free = [stage for stage in range(number) if stage not in inside]
    chosen = draw(st.lists(st.sampled_from(free), unique=True)) if free else []
    return Plan(
        items=found, options=tuple((stage, draw(st.sampled_from(("a", "b-2")))) for stage in sorted(chosen))
    ), number


@given(plans())
def test_a_plan_is_read_as_it_was_written(found):
    plan, number = found

    assert fault(plan, number) is None
    assert parse(render(plan), number) == plan


@pytest.mark.parametrize(
    ("text", "items", "options"),
    [
        ("[1-3] 4 [5] 6", ((0, 1, 2), 3, (4,), 5), ()),
        ("[[1] 2-3] 4", (((0,), 1, 2), 3), ()),
        ("1 2:matmul 3", (0, 1, 2), ((1, "matmul"),)),
        ("[1 2]3:few", ((0, 1), 2), ((2, "few"),)),
    ],
)
def test_a_plan_reads_as_people_write_it(text, items, options):
    plan = parse(text, items[-1] + 1)

    assert plan == Plan(items=items, options=options)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1-2",
        "1-4",
        "3 2 1",
        "1-3 3",
        "[1-3",
        "1-3]",
        "[] 1-3",
        "[1 [2]] 3",
        "[1 2:few] 3",
        "[1:few 2] 3",
        "1:a-2 3",
        "one",
        "0-3",
        "1-2:few 3",
        "1-9999999999999",
        "[[[]]] 1-3",
        "1-3 ;",
        "1--3",
        "3-1",
        "[1-3]][",
    ],
)
def test_nonsense_is_refused_with_a_hint(text):
    with pytest.raises(UserError) as caught:
        parse(text, 3)

    assert "[1-3] 4" in caught.value.hint


def test_depth_counts_brackets():
    assert [parse(text, 3).depth() for text in ("1-3", "[1] 2 [3]", "[[1] 2] 3", "[[[1] 2] 3]")] == [0, 1, 2, 3]
