"""The runs that come with gcprof: they are found, whole, and name neither host nor user."""

import platform
import re
import tomllib
from pathlib import Path

import pytest

from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.runs import reference, reference_folder, reference_names, store
from profiler.runs.merge import validate

ROOT = Path(__file__).parents[1]
MACHINE = re.compile(rf"/home/|/root/|/tmp/|/work/|C:\\\\Users|\b{re.escape(platform.node() or '-')}\b")


@pytest.mark.parametrize("name", reference_names())
def test_every_one_is_complete_and_says_what_it_is_evidence_of(name):
    run = store.load(reference(f"ref:{name}"))
    kind = name.partition("/")[0].partition("-")[0]

    assert len(run.records) == len(run.manifest.plan)
    evidence = {row.evidence for row in rows(run.records)}
    assert {"cpu": "measured"}.get(kind, kind) in evidence
    assert len(evidence) == 1 or evidence == {"measured", "predicted"}  # with `--predict`
    assert all(record.outcome == "ok" for record in run.records)
    assert [one.text for one in validate(run.folder).findings] == []
    assert not any(MACHINE.search((run.folder / file).read_text()) for file in ("manifest.json", "trials.jsonl"))


def test_the_wheel_takes_the_records_of_every_one_and_no_pictures():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    taken = {path: where for path, where in settings["force-include"].items() if path.startswith("results/")}

    folders = [(reference_folder() / name).relative_to(ROOT) for name in reference_names()]
    files = [f"{folder}/{file}" for folder in folders for file in ("manifest.json", "trials.jsonl")]
    assert taken == {path: f"profiler/{path}" for path in files}


def test_the_main_job_at_full_size_is_rehearsed_within_the_bytes_that_are_right():
    """By hand, with PyTorch's own allocator: 1,011 to 1,018 MiB in every row, static bytes 703.7 MiB."""
    run = store.load(reference("ref:rehearsed-h100/mnist-cnn"))
    peaks = {str(record.case.strategy): record.readings.peak_bytes / 2**20 for record in run.records}

    assert list(peaks) == ["none", *(f"segments:k={count}" for count in (1, 2, 4, 8, 16, 32))]
    assert all(1011 <= peak <= 1018 for peak in peaks.values())


def test_nothing_but_a_run_is_read():
    for word in ("ref:../../configs", "ref:", "ref:cpu"):
        with pytest.raises(UserError):
            reference(word)


def test_the_first_page_shows_the_measured_table_as_the_command_prints_it(capsys):
    _, _, rest = (ROOT / "README.md").read_text().partition("<!-- table -->\n```\n")

    assert answer(["show", "ref:cpu/mnist-cnn"]) == 0
    assert rest.partition("```")[0].strip() == capsys.readouterr().out.strip()
