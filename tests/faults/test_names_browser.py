"""Names that are hostile to a page, in a real Chromium: no script runs, and nothing is asked of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profiler.views.redaction import hidden
from profiler.views.report import render
from profiler.views.sanitize import plain
from tests import examples
from tests.browser import Visit, chromium
from tests.faults.names import NAMES, records

pytestmark = pytest.mark.nightly

SCRIPT = '<script>alert(1)</script><img src="http://example.invalid/x" onerror="alert(2)">'
PAGES = {**NAMES, "image": f"</script></style></textarea>{SCRIPT}", "link": f"{SCRIPT}javascript:alert(3)"}

Visitor = Callable[[bytes], Visit]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Visitor]:
    """Opens a page of these bytes."""
    context = browser.new_context()

    def open_page(text: bytes) -> Visit:
        (tmp_path / "page.html").write_bytes(text)
        return Visit(context, tmp_path / "page.html")

    yield open_page
    context.close()


@pytest.mark.parametrize("text", PAGES.values(), ids=PAGES)
def test_fault_56_a_report_shows_hostile_names_as_text_and_runs_nothing(visit: Visitor, tmp_path: Path, text: str):
    found = visit(render([examples.run(tmp_path / "run", records(text))]))

    shown = plain(hidden(text))[:40]  # without what looks like a path; of a longer name the ends
    assert shown in found.page.locator("table.sortable").first.inner_text()
    assert found.page.locator("main script, main img, main a[href^='javascript']").count() == 0
    assert found.page.locator("script").count() == 1
    assert (found.complaints, found.dialogs) == ([], [])
    assert found.requests == [(tmp_path / "page.html").as_uri()]
