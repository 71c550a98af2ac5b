"""Programs of several ranks, of CUDA graphs and of values: they end, and take what they take without the watch."""

import subprocess
import sys

import pytest

from tests.scripts.runs import TRAPS, TWO, Script, control, copied, environment, line_of, rehearsed

TENSOR_PARALLEL = ("torchrun", "--nproc-per-node", "4", "--master-port", "29761", "tensor_parallel.py")
PROGRAMS = [  # and what each rank says
    (Script(name="tensor_parallel", words=TENSOR_PARALLEL, num_gpus=4), ": all arrived"),
    (Script(name="captured_ranks", words=(*TWO, "29751", "captured_ranks.py"), num_gpus=2), ": replayed"),
    (TRAPS["accelerate_ranks"], ": all arrived"),
    (TRAPS["lightning_fsdp"], ": stepped 8 times"),
    (TRAPS["trainer_fsdp1"], ": saved ['checkpoint-2', 'checkpoint-4']"),
    (TRAPS["reduce_overhead"], "compiled 1 times, recorded 3 graphs"),  # forward, backward, one that holds their pool
]


@pytest.mark.nightly
@pytest.mark.parametrize(("script", "text"), PROGRAMS, ids=lambda value: getattr(value, "name", ""))
def test_programs_of_ranks_run_to_their_end_and_read_of_their_peaks_what_is_said(script, text, hollow, tmp_path):
    if script.missing:
        pytest.skip(f"{', '.join(script.missing)}: not installed")

    done = rehearsed(script.words, cwd=copied(tmp_path), num_gpus=script.num_gpus, device=script.device)

    assert done.exit_code == 0, done.said
    assert done.said.count(text) == script.num_gpus
    assert done.printed == sorted(figures.peak_bytes for figures in done.figures)


@pytest.mark.slow
def test_what_a_graph_allocates_is_in_its_own_pool_and_each_replay_of_a_step_is_a_step(folder, kept):
    """Gradients, which another thread allocates, and what a second stream does, too."""
    graphs = rehearsed(("python", "graphs.py"), cwd=folder), control(("python", "graphs.py"), cwd=folder, kept=kept)
    assert [run.exit_code for run in graphs] == [0, 0], graphs
    assert graphs[0].figures == graphs[1].figures
    for run in graphs:
        assert run.said.count("in the graph's own pool: True") == run.said.count("beside it: True") == 1
    (process,) = graphs[0].document["variants"][0]["processes"]
    num = {phase["name"]: phase["num"] for phase in process["phases"]}

    assert process["num_steps"] == 3 + 5  # before the capture, and replays
    assert num["graph replay"] == 5


# --- values on hollow GPUs: real where they come from the host, assumed and told where they do not


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["masked", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("unique", "longest", "routed"))]
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
    given = environment(CUDA_VISIBLE_DEVICES="")
    plain = subprocess.run([sys.executable, *words[1:]], cwd=folder, env=given, stdout=-1, text=True, check=True)

    done = rehearsed(words, cwd=folder)

    assert done.exit_code == 0, done.said
    assert [line for line in plain.stdout.splitlines() if line not in done.said] == []
    assert not done.document["variants"][0]["processes"][0]["assumed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "values", "code"),
    [("flag", "zeros", "while not"), ("caught", "all", "rows = (outputs")],  # the second the script would catch
)
def test_what_hangs_on_values_that_are_not_known_ends_with_its_line(way, values, code, folder):
    done = rehearsed(("python", "unknown_values.py", way), "--values", values, cwd=folder)

    (variant,) = done.document["variants"]
    assert done.exit_code == 3
    assert line_of("unknown_values.py", code) in variant["processes"][0]["detail"]


@pytest.mark.nightly
def test_numbers_that_are_not_known_are_finite_and_the_same_each_time(folder):
    done = rehearsed(("python", "unknown_values.py", "checks"), "--values", "balanced", cwd=folder)

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
