"""The first minutes on a GPU (`benchmarks.gpu`), where there is none: no step costs another one its results."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.program import environment


def evidence(folder: Path, *words: str) -> tuple[int, dict[str, str]]:
    """The exit code, and the texts in the archive."""
    command = [sys.executable, "-m", "benchmarks.gpu", str(folder), *words]
    done = subprocess.run(
        command, env=environment(CUDA_VISIBLE_DEVICES=""), cwd=folder, capture_output=True, text=True, check=False
    )
    with tarfile.open(folder / "evidence.tar.gz") as archive:
        names = [name for name in archive.getnames() if name.endswith(".txt")]
        return done.returncode, {Path(name).stem: archive.extractfile(name).read().decode() for name in names}


@pytest.mark.nightly
def test_a_step_that_fails_stops_no_other_and_all_that_was_printed_is_in_one_archive(tmp_path):
    code, texts = evidence(tmp_path, "--small", "--only", "facts,bare", "--patience", "10")

    assert code == 1
    assert {"facts", "imports", "bare", "steps"} == set(texts)
    assert "torch" in texts["facts"]
    assert texts["facts"].splitlines()[-1].startswith("RuntimeError")  # there is no GPU
    assert "Error" in texts["bare"].splitlines()[-1]
    codes = {line.partition(":")[0]: line.split()[3] for line in texts["steps"].splitlines()}
    assert codes == {"facts": "1,", "imports": "0,", "bare": "1,"}
