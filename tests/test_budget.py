"""What users write for a budget, and the bytes that they mean."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.core.errors import UserError
from profiler.core.units import bytes_word, parse_budget, parse_bytes, parse_memory

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


@given(st.integers(1, 2**62))
def test_bytes_as_a_word_are_read_as_they_were(count):
    assert parse_bytes(bytes_word(count), flag="--budget") == count


@given(st.text(max_size=12))
def test_any_word_is_bytes_or_refused(word):
    with suppress(UserError):
        assert 0 <= parse_budget(word, whole_bytes=WHOLE) < 2**63


@given(st.integers(1, 10_000), st.integers(0, 2**46))
def test_a_share_is_never_more_than_its_part_of_the_whole(hundredths, whole):
    found = parse_budget(f"{hundredths / 100}%", whole_bytes=whole)

    assert found == pytest.approx(whole * hundredths / 10_000, abs=1)
    assert found <= whole
