"""pytest's plugin: `pytest --gcprof-budget 11GiB`, and a fixture `peak_memory(model, batch)`.

The wheel holds this file as `pytest_gcprof`, beside the package: the start of pytest imports nothing of gcprof and no
torch, only a test that asks for the fixture does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

FLAG = "--gcprof-budget"
PROPERTY = "gcprof_peak_memory"  # of a test's report, and in JUnit's XML


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the budget of a run."""
    text = "the most memory a training step may take where a test asks for `peak_memory`: 11GiB, 750MiB"
    parser.getgroup("gcprof").addoption(FLAG, metavar="SIZE", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a budget that is no size before any test runs."""
    if config.getoption(FLAG) is not None:
        _budget(config)


@pytest.fixture
def peak_memory(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Returns a function: the peak of a training step of a model, predicted unless `by="measured"`.

    `peak_memory(model, batch, strategy="none", *, loss=None, by="predicted", budget=None, device="cuda",
    optimizer="sgd", precision="fp32", ...)` returns whole bytes that know their `evidence` and their `record`. The test
    fails where they are more than `budget`, or more than --gcprof-budget where that is not given.
    """
    work = importlib.import_module("profiler.workflows.in_process.peak_memory")

    def peak(model: Any, batch: Any = None, strategy: Any = "none", *, budget: Any = None, **settings: Any) -> Any:
        nbytes = work.peak_memory(model, batch, strategy, **settings)
        request.node.user_properties.append((PROPERTY, repr(nbytes)))
        named = (FLAG, _budget(request.config)) if budget is None else ("budget", work.budget_bytes(budget))
        if failure := work.failure(nbytes, named[1], named=named[0]):
            pytest.fail(failure, pytrace=False)
        return nbytes

    return peak


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List what was found, by test; say so where a budget had no effect."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    lines = [
        f"{report.nodeid}: {text}"
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == PROPERTY
    ]
    if lines:
        terminalreporter.section("peak memory by gcprof")
        terminalreporter.write_line("\n".join(lines))
    elif config.getoption(FLAG) is not None:
        terminalreporter.write_line(f"gcprof: {FLAG} had no effect: no test asked for the fixture peak_memory")


def _budget(config: pytest.Config) -> int | None:
    """The budget of the run in bytes; None without one. Raises pytest's UsageError."""
    word = config.getoption(FLAG)
    if word is None:
        return None
    errors = importlib.import_module("profiler.core.errors")
    try:
        nbytes: int = importlib.import_module("profiler.core.units").parse_bytes(word, flag=FLAG)
    except errors.UserError as error:
        raise pytest.UsageError(f"{error.message} (hint: {error.hint})") from None
    return nbytes
