"""Every command line of README, docs and help is pasted into a shell: all are parsed, and all are run."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from profiler.cli import COMMANDS, SCRIPTS, application, command
from profiler.cli import options as help_of
from profiler.cli.output import SCRIPT, split_script
from tests import examples, make
from tests.mnist_files import write_mnist
from tests.program import PATIENCE_SECONDS, environment

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = ("", "console", "sh", "bash", "shell")


def lines_of(page: Path) -> list[str]:
    """The lines of a page's blocks that begin with `gcprof`; comments stay."""
    blocks = [block for language, block in FENCE.findall(page.read_text(encoding="utf-8")) if language in SHELL]
    return [line.strip() for block in blocks for line in block.splitlines() if line.startswith("gcprof ")]


def pages() -> dict[str, list[str]]:
    """The command lines of every page that has some, and of each command's help, also with a user's command behind."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = {str(path.relative_to(ROOT)): lines_of(path) for path in paths if path.name != "commands.md"}
    for names, of_script in ((COMMANDS, False), (SCRIPTS, True)):
        for name in names:
            lines = help_of.examples(name, command(name, of_script=of_script).__doc__, of_script=of_script)
            found[f"{name}{' -- COMMAND' if of_script else ''} --help"] = [line.strip() for line in lines]
    return {name: lines for name, lines in found.items() if lines}


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
NAMED = "20261120T174900Z-mlp-3fa9c1"


def shell(folder: Path, *lines: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The lines in one shell, where `gcprof` is the program."""
    where = folder / "bin"
    where.mkdir(exist_ok=True)
    (where / "gcprof").write_text(f'#!/usr/bin/env bash\nexec "{sys.executable}" -m profiler "$@"\n')
    (where / "gcprof").chmod(0o755)
    words = ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]
    path = f"{where}:{Path(sys.executable).parent}:/usr/bin:/bin"
    variables = environment(PATH=path, BROWSER="true", COLUMNS="120", **more)
    return subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=3 * PATIENCE_SECONDS,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.slow
def test_every_line_has_words_that_gcprof_knows():
    lines = [line for of_page in pages().values() for line in of_page]

    assert [line for line in lines if not is_read(shlex.split(line, comments=True)[1:])] == []


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
        assert shell(folder, line, GCPROF_HOLLOW=DEVICE).returncode == 0
        for name in names[1:]:
            shutil.copytree(folder / names[0], folder / name)
    for name in ("before", "after", "20261120T174901Z-mlp-77ab02", NAMED):
        examples.run(folder / "results" / name, [make.record("none"), make.record("all")])
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("page", pages())
def test_the_lines_of_a_page_run_in_a_shell(page, prepared, tmp_path, subtests):
    """Where no GPU is named, they run whole on a hollow one; the tutorial, whose model is small, is measured.

    Lines for a cluster are for one: tests/test_slurm.py, tests/test_ray.py.
    """
    reader = shutil.copytree(prepared, tmp_path / "reader")
    device = {} if page == "docs/tutorial.md" else {"GCPROF_HOLLOW": DEVICE}
    for line in dict.fromkeys(line for line in pages()[page] if "--engine" not in line):
        command, _, _ = line.partition("  #")
        for output in re.findall(r"(?:-o|--output) (\S+)", command):
            shutil.rmtree(reader / output, ignore_errors=True)  # alternatives on a page write files of one name
            (reader / output).unlink(missing_ok=True)
        done = shell(reader, line, **device)
        expected = next((code for pattern, code in EXPECTED.items() if re.match(pattern, line)), 0)
        with subtests.test(line):
            assert done.returncode == expected, done.stdout[-500:] + done.stderr
