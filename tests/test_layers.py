"""The import law, and who may know heavy libraries."""

import re
from pathlib import Path, PurePath

import pytest

from tests.program import modules_after
from tests.rooms import PACKAGE, ROOMS, imports, room_of, table

HEAVY = frozenset().union(*(room.libraries for room in ROOMS.values()))


def offences(path: Path, of: str) -> list[str]:
    """What a file of this room imports and may not."""
    found, room = [], ROOMS[of]  # every file is in one
    for name, _ in imports(path):
        first, *rest = name.split(".")
        other = room_of(PurePath(*rest)) if first == "profiler" and rest else ""
        if other in ROOMS and other != of and other not in room.imports:
            found.append(f"{of} imports {other}")
        if first in HEAVY and first not in room.libraries:
            found.append(f"{of} imports {first}")
    return found


ROOM_OF = {path: room_of(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py"))}
FILES = [path for path, room in ROOM_OF.items() if room not in ("__init__", "__main__")]


def test_no_arrow_runs_back_up():
    order = list(ROOMS)

    for name, one in ROOMS.items():
        assert one.imports <= set(order[: order.index(name)]), name


def test_a_room_imports_only_from_lower_layers_and_heavy_libraries_only_at_home():
    assert {path: wrong for path in FILES if (wrong := offences(path, ROOM_OF[path]))} == {}


def test_help_imports_nothing_heavy():
    assert not modules_after("--help", "run --help") & {"torch", "numpy", "pandas", "matplotlib", "rich"}


@pytest.mark.slow
def test_the_parent_of_a_whole_run_never_imports_torch(here):
    """The process that talks to the user measures, writes all derived files, and then reads everything."""
    commands = (
        "run --model mlp --segments 1,2,4 --device cpu --rounds 2 --samples 1 -o results/run",
        "show", "show --samples", "show --json", "list", "export --to csv", "export --to latex", "export --to md",
        "plot --kind memory -o memory.png", "plot --kind time -o time.svg", "models", "strategies segments",
    )  # fmt: skip

    loaded = modules_after(*commands)

    assert "matplotlib" in loaded
    assert not {"torch", "torchvision"} & loaded


PLACE = re.compile(r"`(profiler/[\w/]+\.py)`((?:(?:: |, )`\w+`)*)")


def test_what_architecture_says_is_where_it_says():
    whole = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    text = whole.partition("## Where is")[2].partition("\n## ")[0]
    places = [(path, name) for path, names in PLACE.findall(text) for name in re.findall(r"\w+", names) or [""]]

    assert table() in whole
    assert len(places) > 40
    for path, name in places:
        source = (PACKAGE.parent / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"^(?:def|class) {name}\b", source, re.MULTILINE), (path, name)
