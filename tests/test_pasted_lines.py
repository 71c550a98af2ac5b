"""Every command line of README, docs and help is pasted into a shell: all are parsed, and what runs here is run."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from profiler.cli import COMMANDS, SCRIPTS, application, command
from profiler.cli import help as help_of
from profiler.cli.output import SCRIPT, split_script
from tests import examples, make
from tests.mnist_files import write_mnist
from tests.program import PATIENCE_SECONDS, environment

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = ("", "console", "sh", "bash", "shell")
HELP = "help"


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
    """The command lines of every page that has some, and of the help of all commands."""
    help_lines = [line.strip() for name in COMMANDS for line in help_of.examples(name, command(name).__doc__)]
    shown = {name: lines_of(text) for name, text in sources().items() if name != "docs/commands.md"}
    return {name: lines for name, lines in {**shown, HELP: help_lines}.items() if lines}


def every() -> Iterator[tuple[str, str]]:
    """Each page with each of its lines."""
    return ((page, line) for page, lines in pages().items() for line in lines)


# What is not run as it is pasted, and why; the first pattern that a line begins with counts.
PARSED = {
    r"gcprof run .*--engine": "needs a cluster: test_slurm.py, test_ray.py",
    r"gcprof compare last +#": "needs a run on several kinds of GPU: test_ray.py",
    r"gcprof reproduce": "takes minutes: just bench-published",
}
EXPECTED = {r"gcprof runs rm (?!--yes)": 2, r"gcprof doctor": 1}  # exit codes; a hollow GPU computes nothing; else 0
DEVICE = "h100,count=2"  # the GPU where a line names none: a hollow one
SCRIPT_BODY = """

if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--config")
    model, (tokens, targets), criterion = make(parser.parse_args().batch_size)
    model, tokens, targets = model.cuda(), tokens.cuda(), targets.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        criterion(model(tokens), targets).backward()
        optimizer.step()
"""
SHIM = '#!/usr/bin/env bash\nprintf "%s\\0" "$@" >> "$PASTED"\nprintf "\\1" >> "$PASTED"\n'
REAL = f'#!/usr/bin/env bash\nexec "{sys.executable}" -m profiler "$@"\n'
NAMED = "20261120T174900Z-mlp-3fa9c1"


def why_not(line: str) -> str | None:
    """Why a line is parsed alone; None where it is run."""
    return next((reason for pattern, reason in PARSED.items() if re.match(pattern, line)), None)


def shell(folder: Path, program: str, *lines: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The lines in one shell, where `gcprof` is the program."""
    where = folder / "bin"
    where.mkdir(exist_ok=True)
    (where / "gcprof").write_text(program)
    (where / "gcprof").chmod(0o755)
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


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    """A folder as a reader of the pages has it: a model, a script, data, and some runs, of which NAMED is the last."""
    model = (ROOT / "docs" / "examples" / "mine.py").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(model, encoding="utf-8")
    (tmp_path / "train.py").write_text(model + SCRIPT_BODY, encoding="utf-8")
    (tmp_path / "large.toml").touch()
    (tmp_path / "sweep.toml").write_text(
        'model = "mlp"\nsegments = "1,2"\nbatch_size = "1..8"\nrounds = 1\n', encoding="utf-8"
    )
    shutil.copy(ROOT / "tests" / "scripts" / "nanogpt_like.py", tmp_path)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    for name in ("cpu", "predicted-t4", "predicted-h100"):
        shutil.copytree(ROOT / "results" / "reference" / name, tmp_path / "results" / "reference" / name)
    write_mnist(tmp_path / "DIR", 64)
    for number, names in enumerate((("one", "shard-1"), ("two", "shard-2"), ("three",)), start=1):
        line = f"gcprof run mlp --segments 1,2 --batch-size 8,16,32 --rounds 1 --shard {number}/3 -o {names[0]}"
        assert shell(tmp_path, REAL, line, GCPROF_HOLLOW=DEVICE).returncode == 0
        for name in names[1:]:
            shutil.copytree(tmp_path / names[0], tmp_path / name)
    for name in ("before", "after", "20261120T174901Z-mlp-77ab02", NAMED):
        examples.run(tmp_path / "results" / name, [make.record("none"), make.record("all")])
    return tmp_path


@pytest.mark.nightly
@pytest.mark.parametrize("page", pages())
def test_the_lines_of_a_page_run_in_a_shell(page, reader, subtests):
    """Where no GPU is named, they run whole on a hollow one; the tutorial, whose model is small, is measured."""
    device = {} if page == "docs/tutorial.md" else {"GCPROF_HOLLOW": DEVICE}
    for line in dict.fromkeys(pages()[page]):
        if why_not(line):
            continue
        command, _, _ = line.partition("  #")
        for output in re.findall(r"(?:-o|--output) (\S+)", command):
            shutil.rmtree(reader / output, ignore_errors=True)  # alternatives on a page write files of one name
            (reader / output).unlink(missing_ok=True)
        done = shell(reader, REAL, line, **device)
        expected = next((code for pattern, code in EXPECTED.items() if re.match(pattern, line)), 0)
        with subtests.test(line):
            assert done.returncode == expected, done.stdout[-500:] + done.stderr
