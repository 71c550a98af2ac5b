"""The path of a datum through the files of gcprof, as the calls of one run take it; ARCHITECTURE.md tells it.

A file is on the path if a function of it is on the stack where the datum takes a new form: from the verb's function on,
and in a child from the function that the pipe calls. The pipe itself carries bytes and knows nothing of trials.
"""

import os
import re
from pathlib import Path

import pytest

from tests.hollow import Hollow
from tests.rooms import PACKAGE

BEGIN = ("cli/run.py:run", "engines/worker.py:run_trials")
PATHS = {
    "segments": (
        "core/units.py:of",  # the number becomes a strategy
        "engines/local.py:_in_one_child",  # its trial becomes a line, for a child
        "training/block_segments.py:checkpoint_segments",
        "engines/worker.py:send",  # the record, which names the strategy, becomes a line
        "engines/local.py:_record_of_end",
        "runs/store.py:append",
        "analysis/rows.py:_built",
        "views/tables/columns.py:group_table",
    ),
    "max_memory_allocated": (
        "measuring/devices/cuda.py:spans",  # the allocator's numbers
        "engines/worker.py:send",
        "engines/local.py:_record_of_end",
        "runs/store.py:append",
        "analysis/rows.py:_built",
        "views/tables/columns.py:group_table",
    ),
}
MOST = {"segments": 14, "max_memory_allocated": 9}


@pytest.fixture(scope="module")
def stacks(hollow: Hollow, tmp_path_factory) -> list[list[str]]:
    """The stacks at all stations of one run, on a device that is CUDA's to gcprof."""
    folder = tmp_path_factory.mktemp("paths")
    done = hollow.gcprof(
        "run", "mlp", "--segments", "2", "--device", "cuda", cwd=folder,
        PYTHONPATH=os.pathsep.join([str(Path(__file__).parent / "calls"), str(PACKAGE.parent)]),
        STATIONS=" ".join({station for of_path in PATHS.values() for station in of_path}),
        STACKS=str(folder / "stacks"), OURS=f"{PACKAGE}/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line.split() for line in (folder / "stacks").read_text(encoding="utf-8").splitlines()]


def files_on_path(stacks: list[list[str]], stations: tuple[str, ...]) -> list[str]:
    """The files of the shortest stack of each station, in the order of the stations."""
    files: list[str] = []
    for station in stations:
        calls = min((stack for stack in stacks if stack[-1] == station), key=len)
        first = min(calls.index(begin) for begin in BEGIN if begin in calls)
        files += [call.partition(":")[0] for call in calls[first:]]
    return list(dict.fromkeys(files))


@pytest.mark.slow
@pytest.mark.parametrize("datum", PATHS)
def test_a_datum_takes_the_path_that_architecture_tells(datum, stacks):
    files = files_on_path(stacks, PATHS[datum])

    told = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8").partition(f"The path of `{datum}`")[2]
    named = re.findall(r"^\d+\. `([\w/]+\.py)`", told.partition("\n\n")[2].partition("\n\n")[0], flags=re.MULTILINE)
    assert sorted(files) == sorted(named)
    assert len(files) <= MOST[datum]
