"""Words that are wrong (rows 1 to 6, 10): knows nothing of what a right one measures."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from profiler.cli import COMMANDS, answer
from profiler.core.errors import UserError
from profiler.request import checks, spec
from profiler.request.device_choice import choose_device
from profiler.request.spec import CheckedRequest, Request
from profiler.runs import store
from tests.conftest import run_folder

QUICK = ("--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")


def planned(**asked: Any) -> CheckedRequest:
    return spec.check(Request(model="mlp", **asked), lambda word: "cpu")


def refusal(**asked: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        planned(**asked)
    return caught.value


# 1: numbers of segments that are none


@given(st.text(max_size=20) | st.from_regex(r"[-0-9.,:xe ]{0,12}", fullmatch=True))
@example("1e9")
@example("٣")
def test_fault_1_any_text_is_whole_numbers_from_1_or_refused_by_name(text: str):
    with suppress(UserError):
        choices = [trial.case.strategy for trial in planned(segments=text).trials if trial.case.strategy != "none"]
        assert all(1 <= int(choice.options["k"]) <= checks.LARGEST for choice in choices)
        return
    told = refusal(segments=text)
    assert told.exit_code == 2
    assert told.message.startswith("--segments: ")


# 2: more segments than layers


def outcomes(folder: Path) -> dict[str, tuple[str, str | None]]:
    return {str(record.case.strategy): (record.outcome, record.detail) for record in store.load(folder).records}


@pytest.mark.slow
def test_fault_2_more_segments_than_modules_are_skipped_and_the_others_run(here: Path, shared: None, capsys: Any):
    assert answer(["run", "--model", "mlp", "--segments", "2,8", *QUICK]) == 0

    found = outcomes(run_folder(here))
    assert found == {
        "none": ("ok", None),
        "segments:k=2": ("ok", None),
        "segments:k=8": ("skipped", "only 5 blocks for 8 segments"),
    }
    assert "segments:k=8: skipped: only 5 blocks for 8 segments" in capsys.readouterr().out


# 3: segments twice or unsorted


# 4: segments=1 beside the baseline


# 5: segments of uneven sizes


# 6: unknown options and commands


def shortened(word: str) -> str:
    """A slip of the keyboard: one letter in the middle is missing."""
    return word[: len(word) // 2] + word[len(word) // 2 + 1 :]


@pytest.mark.parametrize("command", [name for name in COMMANDS if len(name) > 3])
def test_fault_6_the_nearest_command_is_proposed(command: str, capsys: Any):
    assert answer([shortened(command)]) == 2

    said = capsys.readouterr().err
    assert f"no such command '{shortened(command)}'" in said
    assert f"'{command}'" in said


# 10: devices that are not there


@pytest.mark.parametrize("word", ["cuda:2", "cuda:99999999999999999999", "cuda:01"])
def test_fault_10_an_index_out_of_range_is_answered_with_the_devices(word: str):
    with pytest.raises(UserError) as caught:
        choose_device(word, ["cpu", "cuda:0", "cuda:1"])

    assert (caught.value.exit_code, caught.value.hint) == (2, "choose from auto, cpu, cuda:0, cuda:1")
