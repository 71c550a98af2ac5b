"""The plugin for pytest: `pytest --gcprof-budget 11GiB`, and the fixture `peak_memory(model, batch)`.

The wheel ships this file as `pytest_gcprof`, beside the package, so that the start of pytest imports neither gcprof nor
torch; only a test that asks for the fixture does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

FLAG = "--gcprof-budget"
PROPERTY = "gcprof_peak_memory"  # the property of a test's report, also in JUnit's XML


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option for the budget."""
    text = "the most memory a training step may take where a test asks for `peak_memory`: 11GiB, 750MiB"
    parser.getgroup("gcprof").addoption(FLAG, metavar="SIZE", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Raise UsageError for an invalid budget before any test runs."""
    if (budget := config.getoption(FLAG)) is not None:
        errors = importlib.import_module("profiler.core.errors")
        try:
            _bytes(budget, FLAG)
        except errors.UserError as error:
            raise pytest.UsageError(f"{error.message} (hint: {error.hint})") from None


@pytest.fixture
def peak_memory(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function that gives the peak of a training step of a model, predicted unless `by="measured"`.

    `peak_memory(model, batch, strategy="none", *, loss=None, by="predicted", budget=None, device="cuda",
    optimizer="sgd", precision="fp32", ...)` returns an integer of bytes with attributes `evidence` and `record`. The
    test fails if it is more than `budget`, or more than --gcprof-budget if no `budget` is given.
    """
    work = importlib.import_module("profiler.workflows.in_process.trials")

    def peak(model: Any, batch: Any = None, strategy: Any = "none", *, budget: Any = None, **settings: Any) -> Any:
        nbytes = work.peak_memory(model, batch, strategy, **settings)
        request.node.user_properties.append((PROPERTY, repr(nbytes)))
        named, size = (FLAG, request.config.getoption(FLAG)) if budget is None else ("budget", budget)
        if failure := work.failure(nbytes, _bytes(size, named), named=named):
            pytest.fail(failure, pytrace=False)
        return nbytes

    return peak


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End with pytest's 4, of a usage error, if a budget judged no test: a gate must not pass by measuring nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    is_run = exitstatus == pytest.ExitCode.OK and not session.config.option.collectonly
    has_budget = session.config.getoption(FLAG) is not None
    if is_run and has_budget and reporter and not _peaks(reporter):  # of xdist only the parent has a reporter
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List the peaks by test; say so if a budget had no effect."""
    lines = _peaks(terminalreporter)
    if lines:
        terminalreporter.section("peak memory by gcprof")
        terminalreporter.write_line("\n".join(lines))
    elif config.getoption(FLAG) is not None:
        terminalreporter.write_line(f"gcprof: {FLAG} had no effect: no test asked for the fixture peak_memory")


def _peaks(terminalreporter: Any) -> list[str]:
    """Return a line for each peak, by test."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    return [
        f"{report.nodeid}: {text}"
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == PROPERTY
    ]


def _bytes(size: str | int | None, flag: str) -> int | None:
    """Return a size in bytes. Raises UserError if it cannot be read."""
    parse: Callable[..., int] = importlib.import_module("profiler.core.units").parse_bytes
    return parse(size, flag=flag) if isinstance(size, str) else size
