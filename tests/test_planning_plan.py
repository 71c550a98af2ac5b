"""Plans as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.core.errors import UserError
from profiler.core.plan_file import Recipe, Segment
from profiler.planning.chain import Chain, Stage, StageModule
from profiler.planning.plan import Item, Plan, fault, parse, recipe, render


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
        ("[1] 2-3:few", ((0,), 1, 2), ((1, "few"), (2, "few"))),
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


def of_modules(*names_by_stage):
    """A chain whose stages are these modules, each with a parameter of its own name."""
    stages = tuple(
        Stage(
            name="-".join(names), forward_seconds=1.0, backward_seconds=2.0, output_bytes=1, saved_bytes=1,
            forward_extra_bytes=0, backward_extra_bytes=0,
            blocks=tuple(StageModule(name=name, parameters=(f"{name} float32 2",)) for name in names),
        )
        for names in names_by_stage
    )  # fmt: skip
    return Chain(input_bytes=1, stages=stages)


def test_a_plan_file_names_the_blocks_of_what_is_checkpointed_and_of_what_is_kept_under_an_option():
    chain = of_modules(["a"], ["b", "c"], ["d"], [], ["e"], ["f"])

    made = recipe(chain, parse("[[1] 2] 3:matmul 4 [5] 6", 6))

    assert made == Recipe(
        plan="[[1] 2] 3:matmul 4 [5] 6",
        segments=(
            Segment(blocks=(Segment(blocks=("a",)), "b", "c")),
            Segment(blocks=("d",), save="matmul"),
            Segment(blocks=("e",)),
        ),
        fingerprint={name: (f"{name} float32 2",) for name in "abcdef"},
    )


def test_stages_of_no_modules_have_no_plan_file():
    with pytest.raises(UserError) as caught:
        recipe(of_modules([], []), parse("[1] 2", 2))

    assert str(caught.value) == "these stages are of no known blocks: their plan can be carried out nowhere"
    assert caught.value.hint == "`gcprof stages MODEL -o costs.json` writes stages with their blocks"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1-2 ;x 3", "plan '1-2 ;x 3': cannot read ';x'"),
        ("1-3]", "plan '1-3]': a ']' without its '['"),
        ("1-9", "plan '1-9': the chain has 3 stages"),
        ("1-2 2", "plan '1-2 2': stages are 1-2 2, not 1 to 3 in order"),
        ("", "plan '': stages are none, not 1 to 3 in order"),
        ("[1-3", "plan '[1-3': a '[' without its ']'"),
    ],
)
def test_nonsense_is_quoted_with_what_is_wrong(text, complaint):
    with pytest.raises(UserError) as caught:
        parse(text, 3)

    assert str(caught.value) == complaint
