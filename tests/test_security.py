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
ENDS_PROCESSES = {
    "engines/child.py": "its own server",
    "engines/forkserver.py": "its children and their groups",
    "core/server_process.py": "its own, before it is asked",
    "scripts/launch.py": "the user's command, and what it started",
}


def calls(source: str) -> dict[str, list[ast.Call]]:
    """Every call by what it calls, in words: `os.kill`, `eval`."""
    found: dict[str, list[ast.Call]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            found.setdefault(ast.unparse(node.func), []).append(node)
    return found


def named(source: str, *names: str) -> list[str]:
    """Which of these names a file imports or uses."""
    tree = ast.parse(source)
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)}
    used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    used |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return sorted(name for name in names if name in used)


SHELLS = (
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "os.execvp",
    "os.spawnvp",
    "pty",
)
STARTERS = ("subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output")
RUNNERS = (
    "pickle",
    "marshal",
    "shelve",
    "dill",
    "joblib",
    "torch.load",
    "yaml",
    "eval",
    "exec",
    "compile",
    "__import__",
)


def started(source: str) -> list[str]:
    """What is wrong with the ways in which a file starts processes."""
    wrong = named(source, *SHELLS)
    for name in STARTERS:
        for call in calls(source).get(name, ()):
            words = call.args[0] if call.args else None
            is_list = isinstance(words, ast.List | ast.Name)
            wrong += [] if is_list else [f"{name} without a list"]
            wrong += [f"{name} by a shell" for key in call.keywords if key.arg == "shell"]
    return wrong


@pytest.mark.slow
def test_only_python_and_for_rehearsals_a_compiler_are_started_and_never_by_a_shell():
    starting = {name for name, source in SOURCES.items() if named(source, *STARTERS)}

    assert starting == STARTS_PROCESSES
    found = {name: started(source) for name, source in SOURCES.items() if started(source)}
    assert found == {"scripts/guard.py": ["os.execvp"]}  # becomes the user's command
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


def links(folder: Path) -> tuple[Path, Path]:
    """A file that nothing may change, and a link to it."""
    (folder / "mine").write_text("mine")
    link = folder / "link"
    link.symlink_to(folder / "mine")
    return folder / "mine", link


def test_what_is_written_follows_no_link(tmp_path):
    mine, link = links(tmp_path)

    with pytest.raises(UserError, match="is there already"):
        export.write_whole(link, b"new")
    export.write_whole(link, b"new", force=True)

    assert (mine.read_text(), link.read_text(), link.is_symlink()) == ("mine", "new", False)


def test_neither_records_nor_logs_follow_a_link(tmp_path):
    mine, link = links(tmp_path)
    folder = examples.run(tmp_path / "run", [make.record()]).folder
    (folder / "trials.jsonl").unlink()
    link.rename(folder / "trials.jsonl")
    log = folder / "logs" / "one.log"
    log.symlink_to(mine)

    with pytest.raises(UserError, match="cannot write"):
        Writer(folder)
    written = Log(log)
    written.write(b"new")
    written.close()

    assert (mine.read_text(), log.read_text()) == ("mine", "new")


@pytest.mark.slow
def test_processes_are_ended_in_few_places_only():
    enders = ("os.kill", "os.killpg", "self.process.kill", "self.process.terminate", "signal.pidfd_send_signal")
    ending = {name for name, source in SOURCES.items() if named(source, *enders)}

    assert ending == set(ENDS_PROCESSES)
    assert named("os.killpg(1, 9)", *enders) == ["os.killpg"]
