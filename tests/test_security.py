"""The rules that keep a file, a name or a repository from doing anything: over the source, and where they act."""

import ast
from pathlib import Path

import pytest

from profiler.core.errors import UserError
from profiler.engines.child import Log
from profiler.runs.store import Writer
from profiler.views import export
from tests import examples, make

ROOT = Path(__file__).parents[1] / "profiler"
SOURCES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
# the server; for rehearsals a compiler, a Python that tries a step, and the user's own command
STARTS_PROCESSES = {"core/server_process.py", "rehearsal/build.py", "rehearsal/smoke.py", "scripts/launch.py"}


def imported(source: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def named(source: str, *names: str) -> list[str]:
    """Which of these names a file imports or uses."""
    used = {ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute | ast.Name)}
    return sorted({*names} & (used | imported(source)))


SHELLS = (
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "os.execvp", "os.spawnvp", "pty",
)  # fmt: skip
STARTERS = [f"subprocess.{name}" for name in ("Popen", "run", "call", "check_call", "check_output")]
RUNNERS = (
    "pickle", "marshal", "shelve", "dill", "joblib", "torch.load", "yaml", "eval", "exec", "compile", "__import__",
)  # fmt: skip
NETWORK = ["socket", "http", "urllib", "requests", "ftplib", "smtplib", "asyncio", "ssl", "telnetlib", "webbrowser"]


def started(source: str) -> list[str]:
    """What is wrong with the ways in which a file starts processes."""
    wrong = named(source, *SHELLS)
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        if (name := ast.unparse(call.func)) in STARTERS:
            is_list = bool(call.args) and isinstance(call.args[0], ast.List | ast.Name)
            wrong += [] if is_list else [f"{name} without a list"]
            wrong += [f"{name} by a shell" for key in call.keywords if key.arg == "shell"]
    return wrong


@pytest.mark.slow
def test_only_python_and_for_rehearsals_a_compiler_are_started_and_never_by_a_shell():
    starting = {name for name, source in SOURCES.items() if named(source, *STARTERS)}

    assert starting == STARTS_PROCESSES
    found = {name: started(source) for name, source in SOURCES.items() if started(source)}
    assert found == {"scripts/inject/gcprof_saving.py": ["os.execvp"]}  # becomes the user's command
    assert all("sys.executable" in SOURCES[name] and '"git"' not in SOURCES[name] for name in starting)


@pytest.mark.slow
def test_nothing_of_a_file_is_run():
    found = {name: named(source, *RUNNERS) for name, source in SOURCES.items() if named(source, *RUNNERS)}

    assert found == {
        "core/trace_data.py": ["pickle"],  # an unpickler of plain data: tests/test_snapshot.py
        "training/models/user.py": ["pickle"],  # what this process's parent has just written, in a folder of its own
        "workflows/in_process/answering.py": ["pickle"],  # writes it
        "predicting/fake_tensors.py": ["torch.load"],  # replaced, for a user's factory that calls it
        "scripts/inject/gcprof_saving.py": ["torch.load"],  # replaced, for a user's script that calls it
        "scripts/inject/gcprof_measure.py": ["torch.load"],  # of what its other process has saved: weights alone
        "scripts/inject/sitecustomize.py": ["__import__"],  # of the user's own file of this name, as Python would
    }


def test_what_is_written_follows_no_link(tmp_path):
    (mine := tmp_path / "mine").write_text("mine")
    folder = examples.run(tmp_path / "run", [make.record()]).folder
    (folder / "trials.jsonl").unlink()
    table, log = tmp_path / "table.csv", folder / "logs" / "one.log"
    for link in (table, folder / "trials.jsonl", log):
        link.symlink_to(mine)

    with pytest.raises(UserError, match="is there already"):
        export.write_whole(table, b"new")
    export.write_whole(table, b"new", force=True)
    with pytest.raises(UserError, match="cannot write"):
        Writer(folder)
    written = Log(log)
    written.write(b"new")
    written.close()

    assert (mine.read_text(), table.read_text(), log.read_text()) == ("mine", "new", "new")
    (folder / "derived").rename(tmp_path / "elsewhere")
    (folder / "derived").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        Writer(folder)


def test_no_module_reaches_the_network():
    modules = {name: {module.partition(".")[0] for module in imported(source)} for name, source in SOURCES.items()}

    assert {name: used for name, known in modules.items() if (used := sorted(known & {*NETWORK}))} == {
        "engines/child.py": ["socket"],  # descriptors to the server
        "engines/forkserver.py": ["socket"],  # the other end
        "core/server_process.py": ["socket"],  # the pair of the two
        "measuring/ranks.py": ["socket"],  # the name of the loopback
        "cli/show.py": ["webbrowser"],  # `--open` shows the file
    }
