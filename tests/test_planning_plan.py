"""Plans as text."""

from contextlib import suppress

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


def test_stages_of_no_modules_have_no_plan_file():
    with pytest.raises(UserError) as caught:
        plan_file_of(of_modules([], []), parse("[1] 2", 2))

    assert str(caught.value) == "these stages have no known blocks: their plan cannot be applied to a model"
    assert caught.value.hint == "`gcprof stages MODEL -o costs.json` writes stages with their blocks"


# --- what users write for a budget, and the bytes that they mean


WHOLE = 1_000_000


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("8GiB", 8 * 2**30),
        ("8 gib", 8 * 2**30),
        ("1.5MiB", 3 * 2**19),
        ("1TiB", 2**40),
        ("3KiB", 3072),
        ("2GB", 2 * 10**9),
        ("2mb", 2 * 10**6),
        ("2kB", 2000),
        ("11G", 11 * 2**30),
        ("11 g", 11 * 2**30),
        ("11GB", 11 * 10**9),
        ("2M", 2 * 2**20),
        ("1TB", 10**12),
        ("1e9B", 10**9),
        ("12345B", 12345),
        ("max", WHOLE),
        (" MAX", WHOLE),
        ("60%", 600_000),
        ("0.5 %", 5000),
        ("100%", WHOLE),
    ],
)
def test_a_budget_is_bytes_a_share_of_the_whole_or_the_whole(word, meant):
    assert parse_budget(word, whole_bytes=WHOLE) == meant


@pytest.mark.parametrize(
    "word",
    [
        "", "%", "GiB", "8 GiB GiB", "8Gib/s", "eight", "nan", "inf", "-1", "-5%", "+1", "0", "0%", "0GiB", "0.4",
        "101%", "100.001%", "1e3%", "nan%", "1e400", "9" * 400, "9" * 400 + "%", "9223372036854775808", "8388608TiB",
        "1,5GiB", "0x10", "٣MiB", "8GiB\n9", "60 percent", "maximum",
    ],
)  # fmt: skip
def test_what_is_no_budget_is_refused_with_what_would_be_one(word):
    with pytest.raises(UserError) as raised:
        parse_budget(word, whole_bytes=WHOLE)

    assert raised.value.message == f"--budget cannot be '{word}'"
    assert raised.value.hint is not None
    assert "8GiB, 750MiB, 60% of the peak without checkpointing, or max" in raised.value.hint


@pytest.mark.parametrize("word", ["60", "1e3", " 8 "])
def test_a_number_without_a_unit_is_refused_with_both_readings(word):
    number = word.strip()

    with pytest.raises(UserError) as raised:
        parse_budget(word, whole_bytes=WHOLE)

    assert raised.value.message == f"--budget cannot be '{word}': {number} B or {number} %?"
    assert raised.value.hint == "write its unit: 8GiB, 750MiB, 60% of the peak without checkpointing, or max"


def test_what_has_no_whole_is_no_share_and_its_number_may_have_been_gibibytes():
    with pytest.raises(UserError, match="--context cannot be '60%'"):
        parse_bytes("60%", flag="--context")
    with pytest.raises(UserError, match=r"--context cannot be '60': 60 B or 60 GiB\?"):
        parse_bytes("60", flag="--context")


def test_a_memory_is_bytes_or_a_share_of_the_devices():
    assert parse_memory("11GiB", flag="--memory") == 11 * 2**30
    assert parse_memory("60%", flag="--memory") == pytest.approx(0.6)


@given(st.text(max_size=12))
def test_any_word_is_bytes_or_refused(word):
    with suppress(UserError):
        assert 0 <= parse_budget(word, whole_bytes=WHOLE) < 2**63


@given(st.integers(1, 10_000), st.integers(0, 2**46))
def test_a_share_is_never_more_than_its_part_of_the_whole(hundredths, whole):
    found = parse_budget(f"{hundredths / 100}%", whole_bytes=whole)

    assert found == pytest.approx(whole * hundredths / 10_000, abs=1)
    assert found <= whole
