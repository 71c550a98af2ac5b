"""`gcprof rehearse -- COMMAND`: scripts as people write them, held to the same scripts without the watch."""

import re
import signal

import psutil
import pytest

from profiler.core.units import MIB
from tests.killed import tagged
from tests.program import PATIENCE_SECONDS, Started
from tests.scripts import by_hand
from tests.scripts.runs import FOLDER, TABLE, contents, control, copied, environment, line_of, rehearsed

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

    done = control(script.words, cwd=folder, kept=kept)

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
    if number == 1 and way == "all":
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
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
        pytest.param("all", "fork", "out_of_memory", "spawn.py:15", marks=pytest.mark.nightly),
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


@pytest.fixture
def training(folder, tag, monkeypatch):
    """A training without end that has saved, and the files before it, of which one is a checkpoint."""
    monkeypatch.setenv("PATH", environment()["PATH"])
    (folder / "checkpoint.pth.tar").write_bytes(b"weights of last week")
    before = contents(folder)
    words = ("rehearse", "--device", "t4", "-o", str(folder.parent / "run"), "--", *FOREVER)
    with Started(*words, cwd=folder, tag=tag) as started:
        started.wait_for("saving")
        yield started, before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)])
def test_files_are_as_they_were_when_gcprof_is_ended_and_control_c_leaves_the_table_and_nothing_running(
    number, training, folder, tag
):
    started, before = training
    started.send(number)
    done = started.end()

    if number == signal.SIGINT:
        assert done.returncode == 130
        assert "backward, first step" in done.stdout
        assert not tagged(tag)
    left = tagged(tag)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=PATIENCE_SECONDS)
    assert contents(folder) == before


@pytest.mark.slow
def test_a_command_without_a_gpu_ends_with_three_and_the_users_sitecustomize_runs(folder, monkeypatch):
    (folder / "own").mkdir()
    text = "import os, sys\nif 'GCPROF_WATCH' in os.environ: print('the own one', file=sys.stderr)\n"
    (folder / "own" / "sitecustomize.py").write_text(text)  # gcprof's own process has it too
    monkeypatch.setenv("PYTHONPATH", str(folder / "own"))

    done = rehearsed(("python", "-c", "import sitecustomize"), cwd=folder)

    assert done.exit_code == 3
    assert "the own one" in done.said
    assert "used a GPU" in done.said
