"""The report in a real browser: by mouse, keyboard, screen reader and in the dark."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profiler.runs.store import load
from profiler.views.report import render
from tests import examples, make

pytestmark = pytest.mark.nightly

NAMES = ("chromium", "chromium-browser", "google-chrome")
REFERENCE = Path(__file__).parents[1] / "results" / "reference" / "cpu" / "mnist-cnn"
RUNS = {
    "troubled": examples.troubled(),
    "sweep": examples.sweep(),
    "formulas": [make.record("none"), make.record("=1+1"), make.record("-2+3 cmd")],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser; the tests are skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser is installed: none of {', '.join(NAMES)}")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"], headless=True)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports that are visited, by what is in them."""
    root = tmp_path_factory.mktemp("reports")
    runs = {name: [examples.run(root / "runs" / name, records)] for name, records in RUNS.items()}
    runs["reference"] = [load(REFERENCE)]
    runs["several"] = [run for found in runs.values() for run in found]
    for name, found in runs.items():
        (root / f"{name}.html").write_bytes(render(found))
    return {name: root / f"{name}.html" for name in runs}


@pytest.fixture
def visit(browser: Any, reports: dict[str, Path]) -> Callable[..., Any]:
    """Opens a report; `page.told` is what it asked for, and what it complained of or said."""

    def open_page(name: str, **settings: Any) -> Any:
        page = browser.new_page(**settings)
        page.set_default_timeout(600_000)  # milliseconds, for what surely comes
        page.told = []
        page.on("console", lambda message: page.told.append(message.text))
        page.on("pageerror", lambda error: page.told.append(str(error)))
        page.on("request", lambda request: page.told.append(request.url))
        page.on("dialog", lambda dialog: (page.told.append(dialog.message), dialog.dismiss()))
        page.goto(reports[name].as_uri())
        return page

    return open_page


@pytest.mark.parametrize("name", ["reference", "troubled", "several"])
def test_a_page_asks_for_nothing_but_itself_and_complains_of_nothing(visit, reports, name):
    assert visit(name).told == [reports[name].as_uri()]


def test_no_copied_cell_is_a_formula(visit):
    page = visit("formulas")
    copied = "{ writeText: async (words) => { window.copied = words; } }"
    page.evaluate(f'Object.defineProperty(navigator, "clipboard", {{ value: {copied} }});')

    page.get_by_role("button", name="Copy as CSV").click()

    lines = page.evaluate("window.copied").splitlines()
    assert [line.partition(",")[0] for line in lines[2:]] == ["'=1+1", "'-2+3 cmd"]
    assert ",0.0 %," in lines[2]  # a number stays one


def test_the_slider_stops_at_every_choice_and_changes_there(visit):
    page = visit("sweep")
    page.get_by_role("slider").focus()
    page.keyboard.press("Home")
    told = []

    for _ in range(60):
        page.keyboard.press("ArrowRight")
        told.append(page.locator(".slider output").inner_text().split(": ")[0])

    assert list(dict.fromkeys(told[told.index("take segments:k=32") :])) == [
        "take segments:k=32",
        "take segments:k=8",  # k=16 and k=4 take more memory for times that may be the same
        "take none",
    ]


@pytest.mark.parametrize(("name", "scheme"), [("reference", "light"), ("several", "dark")])
def test_axe_finds_nothing_and_a_phone_scrolls_down_only(visit, name, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()

    page = visit(name, color_scheme=scheme, viewport={"width": 360, "height": 740})

    assert axe.run(page).response["violations"] == []
    assert page.evaluate("document.documentElement.scrollWidth") == 360
