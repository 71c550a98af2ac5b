"""`gcprof rehearse -- COMMAND` on programs that cannot end, or go by values: each ends by its rule, with the line.

Nothing here is computed by gcprof: a program says where it stops, and how often it has gone round.
"""

from __future__ import annotations

import pytest

from tests.scripts.runs import rehearsed

pytestmark = pytest.mark.nightly

NEVER_JOINS = """
import os, time
import torch
from torch import distributed

def wait():
    while True:
        time.sleep(1)  # forever

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.ones(8, device="cuda")
if rank == 1:
    wait()  # instead of joining
distributed.init_process_group("nccl")  # waits
"""


def line_of(source, code):
    return next(number for number, line in enumerate(source.splitlines(), 1) if code in line)


@pytest.fixture
def place(hollow, tmp_path):
    return tmp_path


def run(source, *options, place, launcher=("python",), num_gpus=1):
    (place / "trap.py").write_text(source)
    return rehearsed((*launcher, "trap.py"), *options, cwd=place, num_gpus=num_gpus)


def test_where_a_rank_never_joins_the_limit_ends_it_and_says_where_each_rank_was(place):
    launcher = ("torchrun", "--nproc-per-node", "2", "--master-port", "29661")

    done = run(NEVER_JOINS, "--limit", "45", place=place, launcher=launcher, num_gpus=2)

    (variant,) = done.document["variants"]
    first, second = variant["detail"].split("; ")
    assert done.exit_code == 124
    assert variant["outcome"] == "timed_out"
    assert first.startswith(f"rank 0 was at trap.py:{line_of(NEVER_JOINS, '# waits')} in ")
    forever, called = (line_of(NEVER_JOINS, code) for code in ("# forever", "# instead of joining"))
    assert second == f"rank 1 was at trap.py:{forever}, called at trap.py:{called}"
    assert 1 in [process["rank"] for process in variant["processes"]]  # what it took until then


IN_C = """
import torch
torch.ones(8, device="cuda")
import ctypes
ctypes.PyDLL(None).pause()  # in C, with Python's lock
"""


def test_a_process_that_hangs_in_c_code_is_told_too(place):
    done = run(IN_C, "--limit", "30", place=place)

    (variant,) = done.document["variants"]
    who, _, where = variant["detail"].partition(" was at ")
    assert done.exit_code == 124
    assert who.startswith("process ")
    assert where == f"trap.py:{line_of(IN_C, '# in C')}"
