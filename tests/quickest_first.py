"""A plugin of pytest for `just mutants`: tests run in the order of their time, the quickest first, file by file.

mutmut names the tests that reach a mutant in no order. In this one most mutants fail a test within a second.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest

TIMES = Path("mutmut-stats.json")  # mutmut writes it into the folder in which it runs the tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file with the quickest tests first; files stay together, for the sake of their fixtures."""
    if not TIMES.is_file():
        return
    seconds = json.loads(TIMES.read_text(encoding="utf-8"))["duration_by_test"]
    times: dict[str, list[float]] = defaultdict(list)
    for item in items:
        times[file_of(item)].append(seconds.get(item.nodeid, 0.0))
    mean = {file: sum(of) / len(of) for file, of in times.items()}
    items.sort(key=lambda item: (mean[file_of(item)], file_of(item), seconds.get(item.nodeid, 0.0)))


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
