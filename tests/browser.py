"""A real Chromium for tests of pages: what it complained of, asked for and was stopped by is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE_MILLISECONDS = 600_000  # for what surely comes
NAMES = ("chromium", "chromium-browser", "google-chrome")


class Visit:
    """One page that was opened, and all that it did."""

    def __init__(self, context: Any, path: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MILLISECONDS)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._dismiss)
        self.page.goto(path.as_uri())

    def violations(self) -> list[str]:
        """What axe-core finds, as rules with the elements that break them."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        found = axe.run(self.page).response["violations"]
        return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()


def chromium() -> Iterator[Any]:
    """One browser; the tests are skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser is installed: none of {', '.join(NAMES)}")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"], headless=True)
        yield browser
        browser.close()
