"""Values on hollow GPUs: real where they come from the host, assumed and told where they do not."""

import subprocess
import sys

import pytest

from tests.scripts.runs import TWO, control, environment, line_of, rehearsed

SIZED = ("masked", "labelled", "unique", "repeated", "selected", "longest", "routed")
FALSE_SIZE = 3  # the exit code where a size is not known


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "masked" else pytest.mark.nightly) for name in SIZED],
)
def test_sizes_that_depend_on_values_take_what_they_take_put_in_by_hand(name, folder, kept):
    words = ("python", "sized_by_values.py", name)
    options = ("--values", "balanced") if name == "routed" else ()

    done = rehearsed(words, *options, cwd=folder)
    by_hand = control((*words, "--by-hand"), cwd=folder, kept=kept)

    assert done.exit_code == by_hand.exit_code == 0, done.said + by_hand.said
    assert done.figures == by_hand.figures
    assert done.printed == by_hand.printed
    (process,) = done.document["variants"][0]["processes"]
    sizes = [one["operator"] for one in process["assumed"] if one["is_size"]]
    assert sizes == (["nonzero"] if name == "routed" else [])


@pytest.mark.slow
def test_what_is_made_of_values_from_the_host_is_what_a_cpu_makes_of_them(folder):
    words = ("python", "known_values.py")
    plain = subprocess.run(
        [sys.executable, *words[1:]], cwd=folder, env=environment(CUDA_VISIBLE_DEVICES=""), capture_output=True,
        text=True, check=True,
    )  # fmt: skip

    done = rehearsed(words, cwd=folder)

    assert done.exit_code == 0, done.said
    assert [line for line in plain.stdout.splitlines() if line not in done.said] == []
    assert not done.document["variants"][0]["processes"][0]["assumed"]


@pytest.mark.slow
def test_a_loop_on_a_flag_that_is_never_computed_ends_with_its_line(folder):
    done = rehearsed(("python", "unknown_values.py", "flag"), cwd=folder)

    (variant,) = done.document["variants"]
    assert done.exit_code == FALSE_SIZE
    assert line_of("unknown_values.py", "while not") in variant["processes"][0]["detail"]


@pytest.mark.slow
def test_memory_that_runs_out_for_an_assumed_size_ends_a_script_that_would_catch_it(folder):
    done = rehearsed(("python", "unknown_values.py", "caught"), "--values", "all", cwd=folder)

    (variant,) = done.document["variants"]
    assert done.exit_code == FALSE_SIZE
    assert line_of("unknown_values.py", "rows = (outputs") in variant["processes"][0]["detail"]


@pytest.mark.parametrize(
    "values", [pytest.param("zeros", marks=pytest.mark.slow), *(
        pytest.param(name, marks=pytest.mark.nightly) for name in ("balanced",))]
)  # fmt: skip
def test_numbers_that_are_not_known_are_finite_and_the_same_each_time(values, folder):
    done = rehearsed(("python", "unknown_values.py", "checks"), "--values", values, cwd=folder)

    assert done.exit_code == 0, done.said
    assert "max memory allocated" in done.said


@pytest.mark.nightly
def test_ranks_agree_on_counts_that_travel_beside_unknown_numbers(folder):
    done = rehearsed((*TWO, "29651", "sync_batch_norm.py"), cwd=folder, num_gpus=2)

    processes = done.document["variants"][0]["processes"]
    assert done.exit_code == 0, done.said
    assert done.said.count("seed 1234, count 8, objects [{'rank': 0}, {'rank': 1}]") == 2
    assert [process["num_steps"] for process in processes] == [3, 3]
    assert not [one for process in processes for one in process["assumed"] if one["is_size"]]
