"""In every Python process that a watched command starts: puts the hollow GPU under torch, and the watch beside it.

This folder is first on PYTHONPATH. It needs the standard library alone, of whatever Python runs the script, and costs
a process without torch nothing but this file and `random`: all work is done when torch is imported. A `sitecustomize`
of the user's own runs as if this one were not there.
"""

import os
import sys

TYPE_CHECKING = False  # no import that `site` has not done: `typing` takes as long as a bare Python does to start
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
LOADER = os.path.join(os.path.dirname(os.path.dirname(HERE)), "rehearsal", "loader.py")


class Finder:
    """Finds modules as the other finders do, and has each loaded by a function, which gets its loading and its file."""

    def __init__(self, loads: "dict[str, Callable[[Callable[[], None], str], None]]") -> None:
        self.loads = loads
        self.is_asking = False  # the other finders

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in self.loads or self.is_asking:
            return None
        from importlib.util import find_spec  # noqa: PLC0415

        self.is_asking = True
        try:
            spec = find_spec(name)
        finally:
            self.is_asking = False
        if spec is not None and spec.loader is not None and spec.origin:
            execute = spec.loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                load = self.loads.pop(name, None)
                if load is None:
                    execute(module)
                else:
                    load(lambda: execute(module), str(spec.origin))

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _load_torch(execute: "Callable[[], None]", origin: str) -> None:
    """Load torch, over hollow libraries if there are any, and begin to watch or to measure."""
    from importlib import import_module  # noqa: PLC0415  see TYPE_CHECKING
    from runpy import run_path  # noqa: PLC0415

    sys.path.insert(0, HERE)
    try:
        libraries, why = os.environ.get("GCPROF_LIBRARIES"), None
        if libraries:
            why = run_path(LOADER)["load"](origin, libraries)
        execute()
        sys.modules["torch"].manual_seed(int(os.environ["GCPROF_SEED"]) + int(os.environ.get("RANK", "0")))
        if "GCPROF_SAVING" in os.environ:
            import_module("gcprof_saving").begin(Finder)
        if "GCPROF_MEASURE" in os.environ:
            import_module("gcprof_measure").begin()
        else:
            import_module("gcprof_watch").begin(why)
    finally:
        sys.path.remove(HERE)


def _seed_numpy(execute: "Callable[[], None]", origin: str) -> None:
    from importlib import import_module  # noqa: PLC0415  see TYPE_CHECKING

    execute()
    import_module("numpy.random").seed(int(os.environ["GCPROF_SEED"]))


def _run_the_users_own() -> None:
    """Import the `sitecustomize` that this one hides, if there is one."""
    ours = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


if "GCPROF_WATCH" in os.environ:
    import random

    random.seed(int(os.environ["GCPROF_SEED"]))  # as torch and NumPy, once imported: the script's own seeds come later
    sys.meta_path.insert(0, Finder({"torch": _load_torch, "numpy": _seed_numpy}))
_run_the_users_own()
