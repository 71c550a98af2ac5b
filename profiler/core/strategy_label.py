"""Short names of strategies: a plan in a run folder is named by what it is instead of by its file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath

from profiler.core.case import Choice
from profiler.core.plan_file import FOLDER, USUAL

NUMBERED = re.compile(r"(uniform|first|every)-(\d+)", re.ASCII)


def strategy_label(strategy: Choice) -> str:
    """Return `uniform(4)` for `plan:file=results/x/plans/uniform-4.json`, `plan:mine.json` for a file elsewhere."""
    path = _file(strategy)
    if path is None or len(path.parts) < 2:
        return str(strategy)
    if path.parent.name != FOLDER:
        return f"plan:{path.name}"
    numbered = NUMBERED.fullmatch(path.stem)
    return f"{numbered[1]}({numbered[2]})" if numbered else path.stem


def strategy_labels(strategies: Iterable[Choice]) -> list[str]:
    """Return the label of each strategy; strategies that would share one keep their full text."""
    labelled = [(strategy_label(strategy), strategy) for strategy in strategies]
    uses = Counter(label for label, _ in set(labelled))
    return [label if uses[label] == 1 else str(strategy) for label, strategy in labelled]


def files_of_labels(strategies: Iterable[Choice]) -> list[str]:
    """Return lines for the foot of a table that name the folders of the plans shown by their labels."""
    chosen = list(dict.fromkeys(strategies))
    folders: dict[str, list[str]] = {}
    if all(_file(strategy) is None for strategy in chosen):
        return []
    for strategy, label in zip(chosen, strategy_labels(chosen), strict=True):
        path = _file(strategy)
        if path is not None and label != str(strategy):
            folders.setdefault(str(path.parent), []).append(label)
    return [f"plans of {', '.join(labels)}: {folder}" for folder, labels in folders.items()]


def _file(strategy: Choice) -> PurePath | None:
    """Return the file of a plan; None for any other strategy."""
    if not strategy.startswith("plan") or strategy.name != "plan":
        return None
    return PurePath(strategy.options.get("file", USUAL))
