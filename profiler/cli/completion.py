"""What a shell proposes for a word that is half typed: knows nothing of any one command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

VARIABLE = "_GCPROF_COMPLETE"  # set by the shell's script where it asks for proposals


def runs(incomplete: str) -> list[str]:
    """`last`, and the names below results/, the newest first; a path is left to the shell."""
    from profiler.runs import RESULTS, find

    names = [path.name for path in reversed(find.runs(RESULTS))]
    return [name for name in ["last", *names] if name.startswith(incomplete)]


def runs_or_models(incomplete: str) -> list[tuple[str, str]]:
    """Where a command takes either."""
    return [*((name, "") for name in runs(incomplete)), *models(incomplete)]


def models(incomplete: str) -> list[tuple[str, str]]:
    """The models of the table, each with what it is about; in a list, the last one is completed."""
    from profiler.training.models import TABLE

    return list(_listed(TABLE, incomplete))


def strategies(incomplete: str) -> list[tuple[str, str]]:
    """The strategies of the table, as the models."""
    from profiler.training.strategies import TABLE

    return list(_listed(TABLE, incomplete))


def exports(incomplete: str) -> list[str]:
    """What a run can be exported to."""
    from profiler import views
    from profiler.integrations import trackers

    return _matching([*views.EXPORTS, *trackers.TRACKERS], incomplete)


def plots(incomplete: str) -> list[str]:
    """What can be drawn of a run."""
    from profiler import views

    return _matching(views.PLOTS, incomplete)


def _listed(table: dict[str, str], incomplete: str) -> Iterator[tuple[str, str]]:
    from profiler.core import catalogue

    before, comma, word = incomplete.rpartition(",")
    for entry in catalogue.entries(table):
        name = entry.name.removesuffix("NAME")  # of a family, the user types the member
        if name.startswith(word) and "/" not in name:
            yield f"{before}{comma}{name}", entry.about


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
