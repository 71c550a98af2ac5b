"""Plans as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile, Segment
from profiler.core.units import parse_budget, parse_bytes, parse_memory
from profiler.planning.chain import Chain, Item, Plan, Stage, StageModule, fault, plan_file_of, render
from tests.plan_text import parse, read


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


@pytest.mark.slow
@given(plans())
def test_a_plan_is_read_as_it_was_written(found):
    plan, number = found

    assert fault(plan, number) is None
    assert parse(render(plan), number) == plan


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "stages are none, not 1 to 3 in order"),
        ("1-2", "stages are 1-2, not 1 to 3 in order"),
        ("1-4", "stages are 1-4, not 1 to 3 in order"),
        ("3 2 1", "stages are 3 2 1, not 1 to 3 in order"),
        ("1-2 2", "stages are 1-2 2, not 1 to 3 in order"),
        ("[] 1-3", "a checkpointed segment is empty or ends inside another"),
        ("[1 [2]] 3", "a checkpointed segment is empty or ends inside another"),
        ("[1 2:few] 3", "stage 2 is in a checkpointed segment, and takes no save option there"),
        ("[1:few 2] 3", "stage 1 is in a checkpointed segment, and takes no save option there"),
    ],
)
def test_what_is_no_plan_of_three_stages_is_told_why(text, complaint):
    assert fault(read(text), 3) == complaint


@pytest.mark.parametrize("options", [((1, "few"), (0, "few")), ((0, "few"), (0, "all")), ((3, "few"),)])
def test_save_options_are_of_the_stages_in_their_order(options):
    assert fault(Plan(items=(0, 1, 2), options=options), 3) == "save options are out of order"


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

    made = plan_file_of(chain, parse("[[1] 2] 3:matmul 4 [5] 6", 6))

    assert made == PlanFile(
        plan="[[1] 2] 3:matmul 4 [5] 6",
        segments=(
            Segment(blocks=(Segment(blocks=("a",)), "b", "c")),
            Segment(blocks=("d",), save="matmul"),
            Segment(blocks=("e",)),
        ),
        fingerprint={name: (f"{name} float32 2",) for name in "abcdef"},
    )


@pytest.mark.parametrize("text", ["1 [2] 3", "[1 2] 3", "[[1] 2 3]", "1 2:matmul 3"])
def test_a_stage_of_no_modules_is_not_computed_again(text):
    chain = of_modules(["a"], [], ["c"])

    with pytest.raises(UserError, match="stage '' has no known blocks"):
        plan_file_of(chain, parse(text, 3))


# --- what users write for a budget, and the bytes that they mean


WHOLE = 1_000_000


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("8 gib", 8 * 2**30),
        ("1.5MiB", 3 * 2**19),
        ("3KiB", 3072),
        ("2kB", 2000),
        ("11G", 11 * 2**30),
        ("11GB", 11 * 10**9),
        ("1TB", 10**12),
        ("1e9B", 10**9),
        (" MAX", WHOLE),
        ("0.5 %", 5000),
        ("100%", WHOLE),
    ],
)
def test_a_budget_is_bytes_a_share_of_the_whole_or_the_whole(word, meant):
    assert parse_budget(word, whole_bytes=WHOLE) == meant


@pytest.mark.parametrize(
    "word",
    [
        "", "%", "GiB", "8Gib/s", "nan", "-1", "-5%", "+1", "0", "0%", "0GiB", "0.4", "101%", "1e400", "9" * 400 + "%",
        "9223372036854775808", "8388608TiB", "1,5GiB", "0x10", "٣MiB", "8GiB\n9", "60 percent", "60", " 8 ",
    ],
)  # fmt: skip
def test_what_is_no_budget_is_refused_with_what_would_be_one(word):
    with pytest.raises(UserError) as raised:
        parse_budget(word, whole_bytes=WHOLE)

    assert f"--budget cannot be '{word}'" in raised.value.message
    assert "8GiB, 750MiB, 60% of the peak without checkpointing, or max" in str(raised.value.hint)


def test_what_has_no_whole_is_no_share_and_its_number_may_have_been_gibibytes():
    with pytest.raises(UserError, match="--context cannot be '60%'"):
        parse_bytes("60%", flag="--context")
    with pytest.raises(UserError, match=r"--context cannot be '60': 60 B or 60 GiB\?"):
        parse_bytes("60", flag="--context")


def test_a_memory_is_bytes_or_a_share_of_the_devices():
    assert parse_memory("11GiB", flag="--memory") == 11 * 2**30
    assert parse_memory("60%", flag="--memory") == pytest.approx(0.6)


@given(st.integers(1, 10_000), st.integers(0, 2**46))
def test_a_share_is_never_more_than_its_part_of_the_whole(hundredths, whole):
    found = parse_budget(f"{hundredths / 100}%", whole_bytes=whole)

    assert found == pytest.approx(whole * hundredths / 10_000, abs=1)
    assert found <= whole
