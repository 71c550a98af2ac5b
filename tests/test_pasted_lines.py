"""Every command line of README, docs and help is pasted into a shell: all are parsed, and all are run."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from profiler.cli import COMMANDS, SCRIPTS, application, command
from profiler.cli import options as help_of
from profiler.cli.output import SCRIPT, split_script
from tests import examples, make
from tests.mnist_files import write_mnist
from tests.program import PATIENCE_SECONDS, environment
from tests.ray_nodes import nodes

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = ("", "console", "sh", "bash", "shell")


def sources() -> dict[str, str]:
    """Every page with its text, by its path in the repository."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def lines_of(text: str) -> list[str]:
    """The lines of a page's blocks that begin with `gcprof`; comments stay."""
    blocks = [block for language, block in FENCE.findall(text) if language in SHELL]
    found = (re.match(r"gcprof .*", line) for block in blocks for line in block.splitlines())
    return [line[0].strip() for line in found if line]


def pages() -> dict[str, list[str]]:
    """The command lines of every page that has some, and of each command's help, also with a user's command behind."""
    found = {name: lines_of(text) for name, text in sources().items() if name != "docs/commands.md"}
    for names, of_script in ((COMMANDS, False), (SCRIPTS, True)):
        for name in names:
            lines = help_of.examples(name, command(name, of_script=of_script).__doc__, of_script=of_script)
            found[f"{name}{' -- COMMAND' if of_script else ''} --help"] = [line.strip() for line in lines]
    return {name: lines for name, lines in found.items() if lines}


def every() -> Iterator[tuple[str, str]]:
    """Each page with each of its lines."""
    return ((page, line) for page, lines in pages().items() for line in lines)


EXPECTED = {r"gcprof runs rm (?!--yes)": 2, r"gcprof doctor": 1}  # exit codes; a hollow GPU computes nothing; else 0
DEVICE = "h100,count=2"  # the GPU where a line names none: a hollow one
SCRIPT_BODY = """

if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--config")
    model, (tokens, targets), criterion = make(parser.parse_args().batch_size)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokens, targets = model.to(device), tokens.to(device), targets.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        criterion(model(tokens), targets).backward()
        optimizer.step()
"""
SHIM = '#!/usr/bin/env bash\nprintf "%s\\0" "$@" >> "$PASTED"\nprintf "\\1" >> "$PASTED"\n'
REAL = f'#!/usr/bin/env bash\nexec "{sys.executable}" -m profiler "$@"\n'
SLURM = {  # of this machine: the tasks of an array run one after another
    "sbatch": """
tasks=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
export SLURM_ARRAY_JOB_ID=41 SLURM_ARRAY_TASK_ID SLURM_JOB_ID
for SLURM_ARRAY_TASK_ID in $(seq 0 "$tasks"); do
    SLURM_JOB_ID=$((42 + SLURM_ARRAY_TASK_ID)) bash "$1"
done > "$1.log" 2>&1 &
echo "Submitted batch job 41"
""",
    "srun": """
while [[ $1 == -* ]]; do case $1 in --output | --error) shift 2 ;; *) shift ;; esac; done
exec "$@"
""",
    "sacct": "echo 'JobID|State|NodeList'\n",
    "scancel": "",
}
NAMED = "20261120T174900Z-mlp-3fa9c1"


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def shell(folder: Path, program: str, *lines: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The lines in one shell, where `gcprof` is the program."""
    where = folder / "bin"
    write_program(where / "gcprof", program)
    words = ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]
    path = f"{where}:{Path(sys.executable).parent}:/usr/bin:/bin"
    variables = environment(PATH=path, BROWSER="true", COLUMNS="120", **more)
    return subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=3 * PATIENCE_SECONDS,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.slow
def test_a_shell_makes_of_every_line_one_command_with_words_that_gcprof_knows(tmp_path):
    """The shell runs all lines; their words are then read as the command line reads them."""
    lines = [line for _, line in every()]
    (tmp_path / "parts").mkdir()
    for name in ("1", "2"):
        (tmp_path / "parts" / name).touch()

    done = shell(tmp_path, SHIM, *lines, PASTED=str(tmp_path / "pasted"))
    found = [call.split("\0")[:-1] for call in (tmp_path / "pasted").read_text().split("\1")[:-1]]

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert len(found) == len(lines)
    assert [line for line, words in zip(lines, found, strict=True) if not is_read(words)] == []


def is_read(words: list[str]) -> bool:
    """Whether the command takes these words."""
    own, script = split_script(words) if words[0] in SCRIPTS else (words, [])
    name, *others = own[1:] if own[0] == "runs" else own
    before = SCRIPT.set(tuple(script))
    try:
        group = typer.main.get_command(application([name]))
        with group.commands[name].make_context(name, list(others)):  # type: ignore[attr-defined]
            return True
    except (Exception, SystemExit):  # noqa: BLE001  whatever refuses it
        return False
    finally:
        SCRIPT.reset(before)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader of the pages has it: a model, a script, data, and some runs, of which NAMED is the last."""
    folder = tmp_path_factory.mktemp("reader")
    model = (ROOT / "docs" / "examples" / "mine.py").read_text(encoding="utf-8")
    (folder / "mine.py").write_text(model, encoding="utf-8")
    (folder / "train.py").write_text(model + SCRIPT_BODY, encoding="utf-8")
    (folder / "large.toml").touch()
    (folder / "sweep.toml").write_text(
        'model = "mlp"\nsegments = "1,2"\nbatch_size = "1..8"\nrounds = 1\n', encoding="utf-8"
    )
    shutil.copy(ROOT / "tests" / "scripts" / "nanogpt_like.py", folder)
    shutil.copytree(ROOT / "configs", folder / "configs")
    for name in ("cpu", "predicted-t4", "predicted-h100"):
        shutil.copytree(ROOT / "results" / "reference" / name, folder / "results" / "reference" / name)
    write_mnist(folder / "DIR", 64)
    for number, names in enumerate((("one", "shard-1"), ("two", "shard-2"), ("three",)), start=1):
        line = f"gcprof run mlp --segments 1,2 --batch-size 8,16,32 --rounds 1 --shard {number}/3 -o {names[0]}"
        assert shell(folder, REAL, line, GCPROF_HOLLOW=DEVICE).returncode == 0
        for name in names[1:]:
            shutil.copytree(folder / names[0], folder / name)
    for name in ("before", "after", "20261120T174901Z-mlp-77ab02", NAMED):
        examples.run(folder / "results" / name, [make.record("none"), make.record("all")])
    return folder


@pytest.fixture
def reader(prepared: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return shutil.copytree(prepared, tmp_path / "reader")


@pytest.fixture
def clusters(reader: Path) -> Iterator[dict[str, str]]:
    """A Slurm and a Ray of hollow GPUs, both on this machine; what the reader's shell knows of them."""
    for name, text in SLURM.items():
        write_program(reader / "bin" / name, f"#!/usr/bin/env bash\n{text}")
    with nodes("H100", "T4", "A100", is_hollow=True) as address:
        yield {"RAY_ADDRESS": address}


@pytest.mark.nightly
@pytest.mark.parametrize("page", pages())
def test_the_lines_of_a_page_run_in_a_shell(page, reader, request, subtests):
    """Where no GPU is named, they run whole on a hollow one; the tutorial, whose model is small, is measured."""
    device = {} if page == "docs/tutorial.md" else {"GCPROF_HOLLOW": DEVICE}
    more = request.getfixturevalue("clusters") if any("--engine" in line for line in pages()[page]) else {}
    for line in dict.fromkeys(pages()[page]):
        command, _, _ = line.partition("  #")
        for output in re.findall(r"(?:-o|--output) (\S+)", command):
            shutil.rmtree(reader / output, ignore_errors=True)  # alternatives on a page write files of one name
            (reader / output).unlink(missing_ok=True)
        done = shell(reader, REAL, line, **device, **more)
        expected = next((code for pattern, code in EXPECTED.items() if re.match(pattern, line)), 0)
        with subtests.test(line):
            assert done.returncode == expected, done.stdout[-500:] + done.stderr
    if "```sh\n" in (text := sources().get(page, "")):  # a page whose examples are to be run in their order
        blocks = [block for language, block in FENCE.findall(text) if language == "python"]
        (reader / "blocks.py").write_text("\n".join(blocks), encoding="utf-8")
        done = shell(reader, REAL, "python blocks.py")
        assert done.returncode == 0, done.stderr
