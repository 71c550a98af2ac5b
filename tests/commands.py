"""The command line, called in this process or in a fresh one."""

import os
import subprocess
import sys

from tests.killed import python_path


def gcprof(
    *words: str, torch: bool = True, stdout: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command in its own process; where torch is False, importing it raises."""
    hook = "" if torch else (
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'torchvision'): raise ImportError('torch is not installed')\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )  # fmt: skip
    code = f"import sys\n{hook}from profiler.cli import main\nmain(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": python_path(), **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def modules_after(words: list[str]) -> set[str]:
    """The names of all modules in a fresh process that ran this command."""
    code = (
        "import sys\nfrom profiler.cli import answer\n"
        f"code = answer({words!r})\nprint(); print('MODULES', *sys.modules)\nsys.exit(code)"
    )
    env = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES ")[2].split())
