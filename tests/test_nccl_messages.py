"""Ranks that are processes of this machine, on hollow GPUs: what they say to each other arrives, or the run ends."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profiler.core.units import MIB
from profiler.rehearsal.smoke import proven_libraries
from tests.program import PATIENCE_SECONDS
from tests.scripts.runs import copied, rehearsed

RANK = Path(__file__).with_name("nccl_rank.py")


class Ranks:
    """Ranks of NCCL's stand-in, each a process without torch."""

    def __init__(self, libraries, folder, *, num_ranks, started=None, times=10**9, wait=PATIENCE_SECONDS, program=RANK):
        environment = {**os.environ, "HOLLOW_MESSAGES": str(folder), "HOLLOW_WAIT_SECONDS": str(wait)}
        self.processes = {}
        for rank in range(num_ranks) if started is None else started:
            words = [sys.executable, "-S", str(program), str(libraries), str(rank), str(num_ranks), "a run", str(times)]
            self.processes[rank] = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)

    def ended(self):
        """Of each rank the exit code, and the last line that it printed."""
        try:
            said = {rank: one.communicate(timeout=PATIENCE_SECONDS)[0] for rank, one in self.processes.items()}
        finally:
            for one in self.processes.values():
                one.kill()
        return {rank: (self.processes[rank].returncode, text.splitlines()[-1:]) for rank, text in said.items()}


@pytest.fixture(scope="module")
def libraries(hollow):
    return proven_libraries()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "more"),
    [(2, ()), pytest.param(4, ("eager",), marks=pytest.mark.nightly)],  # groups by splits
)
def test_what_ranks_say_to_each_other_arrives(hollow, tmp_path, count, more):
    command = ("torchrun", "--nproc-per-node", str(count), "--master-port", f"2974{count}", "messages.py", *more)
    done = rehearsed(command, cwd=copied(tmp_path), num_gpus=count)
    assert done.exit_code == 0, done.said
    assert done.said.count("all arrived") == count


def test_ranks_sum_many_times_and_leave_no_file(libraries, tmp_path):
    ranks = Ranks(libraries, tmp_path, num_ranks=3, times=200)
    assert {code for code, _ in ranks.ended().values()} == {0}
    assert not list(tmp_path.iterdir())


def test_a_rank_that_never_joins_is_named(libraries, tmp_path):
    ranks = Ranks(libraries, tmp_path, num_ranks=3, started=(0, 2), wait=0.5)
    for code, said in ranks.ended().values():
        assert code == 7
        assert "for rank 1, which never joined" in said[0]
    assert not list(tmp_path.iterdir())


def test_ranks_that_differ_in_what_they_call_are_told_so(libraries, tmp_path):
    """More elements on one rank: as a script would, whose ranks hold different numbers of values."""
    text = RANK.read_text().replace("c_size_t(5000)", "c_size_t(5000 if rank else 4000)")
    other = tmp_path / "other.py"
    other.write_text(text)
    (tmp_path / "shared").mkdir()
    ended = Ranks(libraries, tmp_path / "shared", num_ranks=2, times=1, program=other).ended()
    told = "calls ncclAllReduce of 16000 bytes where rank 1 of 2 calls ncclAllReduce of 20000"
    assert any(told in line for _, said in ended.values() for line in said)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_is_killed_ends_the_others(libraries, tmp_path, seed):
    """Killed at a random moment: the others end, name it, and leave nothing."""
    chance = random.Random(seed)
    num_ranks = chance.randint(2, 4)
    ranks = Ranks(libraries, tmp_path, num_ranks=num_ranks, wait=2)
    victim = chance.randrange(num_ranks)
    time.sleep(chance.uniform(0, 0.4))  # a moment of chance: any must do
    ranks.processes[victim].kill()
    ended = ranks.ended()
    assert ended.pop(victim)[0] == -9
    assert {code for code, _ in ended.values()} == {7}, ended
    assert any(f"for rank {victim}, which" in said for _, (said,) in ended.values()), ended
    assert not list(tmp_path.iterdir())


PROFILED = """
import subprocess, torch
from torch.profiler import profile
query = ["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
print(subprocess.run(query, capture_output=True, text=True, check=True).stdout)
with profile() as found:
    torch.nn.Linear(8, 8).cuda()(torch.randn(2, 8, device="cuda")).sum().backward()
print("profiled", any(event.key == "aten::linear" for event in found.key_averages()))
"""


@pytest.mark.nightly
def test_the_profiler_and_the_drivers_program_do_not_end_a_script(hollow, tmp_path):
    (tmp_path / "profiled.py").write_text(PROFILED)
    done = rehearsed(("python", "profiled.py"), cwd=tmp_path, num_gpus=2)
    assert done.exit_code == 0, done.said
    assert "profiled True" in done.said
    mebibytes = done.document["variants"][0]["gpu_bytes"] // MIB
    assert all(f"{index}, Hollow Tesla T4, {mebibytes}" in done.said for index in range(2))
