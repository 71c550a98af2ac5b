"""`gcprof rehearse -- COMMAND`: scripts as people write them, held to the same scripts without the watch."""

import json
import re
import signal
import subprocess
import sys

import psutil
import pytest

from profiler.core.units import MIB
from tests.program import PATIENCE_SECONDS, Started, tagged
from tests.scripts import by_hand
from tests.scripts.runs import FOLDER, TABLE, TRAPS, Script, contents, control, copied, environment, line_of, rehearsed

SAVES = {"resume", "gan", "imagenet_like", "ddp", "fsdp2", "trainer", "word_language_model", "accelerate_loop"}
FOREVER = ("python", "imagenet_like.py", "-j", "0", "--epochs", "1000000")  # a fork can swallow Ctrl-C


def by_speed(values, quick):
    """The values as parameters: most of them at night."""
    return [pytest.param(value, marks=pytest.mark.slow if value in quick else pytest.mark.nightly) for value in values]


@pytest.mark.parametrize("name", by_speed(TABLE, ("resume", "nanogpt_like", "ddp")))
def test_a_script_takes_and_reads_to_the_byte_what_it_does_without_the_watch_and_its_files_stay(name, folder, kept):
    script = TABLE[name]
    if script.missing:
        pytest.skip(f"{', '.join(script.missing)}: not installed")
    alone = control(script.words, cwd=folder, kept=kept, num_gpus=script.num_gpus, decided=script.decided)
    before = contents(folder)

    watched = rehearsed(script.words, *script.options, cwd=folder, num_gpus=script.num_gpus)

    assert alone.exit_code == watched.exit_code == 0, alone.said + watched.said
    assert watched.figures == alone.figures
    assert watched.printed == alone.printed == sorted(one.peak_bytes for one in alone.figures)
    assert len(watched.figures) == (script.num_processes or script.num_gpus)
    made = {path.name for path in before} - {path.name for path in FOLDER.iterdir()}
    assert made or name not in SAVES  # without the guard it does write here
    assert contents(folder) == before


@pytest.mark.parametrize("name", by_speed([name for name in by_hand.MARKS if name in TABLE], ("nanogpt_like",)))
def test_each_phase_peaks_as_counters_put_in_by_hand_say(name, folder, kept):
    script = TABLE[name]
    plain = rehearsed(script.words, *script.options, cwd=folder)
    path = folder / f"{name}.py"
    path.write_text(by_hand.marked(name, path.read_text()))

    done = control(script.words, cwd=folder, kept=kept, decided=script.decided)

    assert done.exit_code == 0, done.said
    (process,) = plain.document["variants"][0]["processes"]
    assert by_hand.told(process) == by_hand.peaks(by_hand.rows(done.said))


@pytest.fixture(scope="module")
def walls(hollow, tmp_path_factory):
    """Of each phase of walls.py the most that was reserved until its end, without a limit of memory."""
    here = copied(tmp_path_factory.mktemp("walls"))
    text = (here / "walls.py").read_text()
    (here / "walls.py").write_text(by_hand.marked("walls", text))
    done = control(("python", "walls.py"), cwd=here, kept=tmp_path_factory.mktemp("kept"))
    assert done.exit_code == 0, done.said
    most = {}
    for row in by_hand.rows(done.said):
        phase = f"later {row.phase}" if row.step and row.phase in by_hand.IN_STEPS else row.phase
        most[phase] = max(most.get(phase, 0), row.reserved_bytes)
    return most


LIVE = """
import torch
torch.cuda._lazy_call(lambda: torch._C._cuda_attach_out_of_memory_observer(
    lambda *sizes: print("LIVE", torch.cuda.memory_stats()["allocated_bytes.all.current"], flush=True)))
"""
WALLS = [
    ("forward", "backward", "loss.backward()"),
    ("after the backward", "optimizer", "optimizer.step()"),
    ("later after the step", "evaluation", "return model(inputs)"),
]


@pytest.mark.parametrize("wall", by_speed(WALLS, WALLS[:1]))
def test_memory_runs_out_in_the_phase_that_asks_for_more(wall, walls, folder, kept):
    """There, with phase, step, line, and what held it: all that the allocator has."""
    before, phase, code = wall
    size = walls[before] + 2 * MIB

    alone = control(("python", "walls.py"), cwd=folder, kept=kept, num_bytes=size, decided=LIVE)
    done = rehearsed(("python", "walls.py"), "--memory", f"{size}B", cwd=folder)

    (variant,) = done.document["variants"]
    (process,) = variant["processes"]
    (live,) = (int(line.split()[1]) for line in alone.said.splitlines() if line.startswith("LIVE"))
    where = " of step 1" if phase != "evaluation" else ""
    assert process["detail"] == f"in the {phase}{where}, {line_of('walls.py', code)}"
    assert sum(holder["nbytes"] for holder in process["shortage_holders"]) == live
    assert variant["outcome"] == process["outcome"] == "out_of_memory"
    assert done.exit_code == alone.exit_code == 1
    assert ending(done.said, folder) == ending(alone.said, folder)
    assert ending(alone.said, folder)[-1].startswith("torch.OutOfMemoryError")
    assert variant["needed_bytes"] == max(walls.values())


def ending(said, folder):
    """The user's own lines in the first traceback that was printed, and the error as far as no process is named."""
    lines = said[said.index("Traceback (most recent") :].splitlines()
    last = next(number for number, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception)\b", line))
    own = [line for line in lines[:last] if str(folder) in line]
    return [*own, lines[last].partition(" Process ")[0]]


SPAWNS = """
import os, signal, sys
import torch
from torch import multiprocessing

def train(number, way):
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
    if number == 1 and way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 1 and way == "left":
        os._exit(0)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    children = [context.Process(target=train, args=(number, sys.argv[1])) for number in range(2)]
    for child in children:
        child.start()
        child.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "method", "outcome", "said"),
    [
        ("killed", "spawn", "failed", "ended without a word"),
        pytest.param("left", "fork", "ok", "", marks=pytest.mark.nightly),
    ],
)
def test_a_run_in_which_a_process_died_is_no_success(way, method, outcome, said, folder):
    (folder / "spawn.py").write_text(SPAWNS)

    done = rehearsed(("python", "spawn.py", way, method), cwd=folder)

    (variant,) = done.document["variants"]
    assert done.exit_code == (outcome != "ok")
    assert variant["outcome"] == outcome
    assert [process["num_steps"] for process in variant["processes"] if process["outcome"] == "ok"] in ([2], [2, 2])
    died = [process for process in variant["processes"] if process["died"]]
    assert len(died) == (outcome != "ok")
    assert all(said in process["detail"] for process in died)


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(folder, tag):
    (folder / "slow.sh").write_text("python -c 'import time; time.sleep(3600)' & sleep 3600\n")
    words = ("rehearse", "--device", "t4", "--limit", "1", "--", "sh", "slow.sh")

    with Started(*words, cwd=folder, tag=tag) as started:
        done = started.end()

    assert done.returncode == 124
    assert not tagged(tag)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)])
def test_files_are_as_they_were_when_gcprof_is_ended_and_control_c_leaves_the_table(number, folder, tag, monkeypatch):
    """A training without end is ended when it has saved."""
    monkeypatch.setenv("PATH", environment()["PATH"])
    (folder / "checkpoint.pth.tar").write_bytes(b"weights of last week")
    before = contents(folder)
    with Started(
        "rehearse", "--device", "t4", "-o", f"{folder}/../run", "--", *FOREVER, cwd=folder, tag=tag
    ) as started:
        started.wait_for("saving")
        started.send(number)
        done = started.end()

    left = tagged(tag)
    if number == signal.SIGINT:
        assert done.returncode == 130
        assert "backward, first step" in done.stdout
        assert not left
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=PATIENCE_SECONDS)
    assert contents(folder) == before


# ---- several ranks, CUDA graphs, and values


TENSOR_PARALLEL = ("torchrun", "--nproc-per-node", "4", "--master-port", "29761", "tensor_parallel.py")
PROGRAMS = [  # and what each rank says
    (Script(name="tensor_parallel", words=TENSOR_PARALLEL, num_gpus=4), ": all arrived"),
    (TRAPS["accelerate_ranks"], ": all arrived"),
    (TRAPS["lightning_fsdp"], ": stepped 8 times"),
    (TRAPS["trainer_fsdp1"], ": saved ['checkpoint-2', 'checkpoint-4']"),
    # Python, NumPy and PyTorch, each seeded with 0; without the watch 1 frame, too
    (Script(name="refused", words=("python", "refused.py")), "drawn 0.844422 0.548814 0.496257, compiled 1 frames"),
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
    assert all(process["module"] for process in done.document["variants"][0]["processes"])
    assert done.printed == sorted(figures.peak_bytes for figures in done.figures)


CELLS = (
    """import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
""",
    """for _ in range(3):
    x = torch.randn(512, 64, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
)


@pytest.mark.slow
def test_a_notebook_takes_what_its_cells_take_and_its_lines_are_those_of_cells(tmp_path, kept):
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    book = {"cells": [cell | {"source": text} for text in CELLS], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (tmp_path / "book.ipynb").write_text(json.dumps(book))
    (tmp_path / "cells.py").write_text("".join(CELLS))

    done = rehearsed(("book.ipynb",), "--steps", "2", cwd=tmp_path)  # of three, which take no more
    plain = control(("python", "cells.py"), cwd=tmp_path, kept=kept)

    (variant,) = done.document["variants"]
    lines = {phase["line"] for process in variant["processes"] for phase in process["phases"]}
    assert done.exit_code == 0, done.said
    assert done.figures == plain.figures
    assert variant["processes"][0]["num_steps"] == 2
    assert lines == {"In [2]:2", "In [2]:3", "In [2]:4"}
    assert (tmp_path / "book.ipynb").read_text() == json.dumps(book)


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
    "name", ["masked", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("unique", "routed"))]
)
def test_sizes_that_depend_on_values_take_what_they_take_put_in_by_hand(name, folder, kept):
    words = ("python", "unknown_values.py", name)
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
    done = rehearsed(("python", "known_values.py"), cwd=folder)

    assert done.exit_code == 0, done.said
    assert [line for line in on_cpu("known_values.py", cwd=folder) if line not in done.said] == []
    assert not done.document["variants"][0]["processes"][0]["assumed"]


@pytest.mark.nightly
@pytest.mark.parametrize("search", [(), ("--search", "strong_wolfe")], ids=str)
def test_lbfgs_makes_the_iterations_and_keeps_the_history_that_it_does_on_a_cpu(search, folder):
    done = rehearsed(("python", "time_sequence.py", *search), cwd=folder)

    made = [line for line in on_cpu("time_sequence.py", *search, cwd=folder) if "iterations" in line]
    assert made[-1] == "step 2: 60 iterations, 59 kept"
    assert [line for line in made if line not in done.said] == []
    assert "LBFGS" in done.document["variants"][0]["processes"][0]["notes"][0]


def on_cpu(*words, cwd):
    """The lines that a script prints on a CPU, with nothing of gcprof."""
    given = environment(CUDA_VISIBLE_DEVICES="")
    done = subprocess.run([sys.executable, *words], cwd=cwd, env=given, stdout=-1, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "values", "code", "exit_code"),  # of the second the script would catch the error
    [("flag", "zeros", "while not", 3), ("caught", "all", "rows = (outputs", 3), ("psnr", "zeros", "item() > 1", 1)],
)
def test_what_hangs_on_values_that_are_not_known_ends_with_its_line(way, values, code, exit_code, folder):
    done = rehearsed(("python", "unknown_values.py", way), "--values", values, cwd=folder)

    (variant,) = done.document["variants"]
    assert done.exit_code == exit_code
    assert line_of("unknown_values.py", code) in variant["processes"][0]["detail"]
    assert "not compute" in variant["processes"][0]["detail"]


@pytest.mark.nightly
def test_numbers_that_are_not_known_are_finite_and_the_same_each_time(folder):
    done = rehearsed(("python", "unknown_values.py", "checks"), "--values", "balanced", cwd=folder)

    assert done.exit_code == 0, done.said
    assert "max memory allocated" in done.said
