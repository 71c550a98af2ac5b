"""The process that talks to the user stays small and never imports torch, from its first word to its last file."""

import json
import subprocess
import sys

import pytest

from tests.program import PATIENCE_SECONDS, environment

pytestmark = pytest.mark.slow

LARGEST_MIB = 150

# Runs commands one after the other, and tells exit codes, what was imported, and the largest size of the process. Not
# by getrusage: Linux counts the process that started this one, which may be a pytest with all of torch in it.
SCRIPT = """
import json, sys
from pathlib import Path
from profiler.cli import answer

def largest_mib():
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024

words = json.loads(sys.argv[1])
found = {"codes": [answer(command) for command in words[:1]], "mib": largest_mib()}
found["codes"] += [answer(command) for command in words[1:]]
found["modules"] = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps(found), file=sys.stderr)
"""


def test_the_parent_of_a_whole_run_stays_small_and_never_imports_torch(tmp_path):
    """A process that measures, writes all derived files, and then reads everything."""
    commands = (
        "run --model mlp --segments 1,2,4 --device cpu --rounds 2 --samples 1 -o results/run",
        "show", "show --samples", "show --json", "list", "export --to csv", "export --to latex", "export --to md",
        "plot --kind memory -o memory.png", "plot --kind time -o time.svg", "models", "strategies segments",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([command.split() for command in commands])],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True,
    )  # fmt: skip

    found = json.loads(done.stderr.splitlines()[-1])
    assert set(found["codes"]) == {0}
    assert found["mib"] < LARGEST_MIB
    assert not {"torch", "torchvision"} & set(found["modules"])
