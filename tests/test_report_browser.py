"""The report in a real browser: by mouse, keyboard, screen reader, in the dark, on paper and on a phone."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profiler.core.case import Choice
from profiler.runs.store import load
from profiler.views.report import render
from tests import examples, make
from tests.make import MIB

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


pytestmark = pytest.mark.nightly

REFERENCE = Path(__file__).parents[1] / "results" / "reference" / "cpu" / "mnist-cnn"
HOSTILE = '<script>alert(1)</script><img src="http://example.invalid/x" onerror="alert(2)">'

Visitor = Callable[..., Visit]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reports that are visited, by what is in them."""
    root = tmp_path_factory.mktemp("reports")
    runs = {
        "reference": [load(REFERENCE)],
        "troubled": [examples.run(root / "runs" / "troubled", examples.troubled())],
        "sweep": [examples.run(root / "runs" / "sweep", examples.sweep())],
        "hostile": [examples.run(root / "runs" / "hostile", hostile())],
    }
    runs["several"] = [run for found in runs.values() for run in found]
    for name, found in runs.items():
        (root / f"{name}.html").write_bytes(render(found))
    return {name: root / f"{name}.html" for name in runs}


@pytest.fixture
def visit(browser: Any, pages: dict[str, Path]) -> Iterator[Visitor]:
    contexts = []

    def open_page(name: str | Path, **settings: Any) -> Visit:
        contexts.append(browser.new_context(**settings))
        return Visit(contexts[-1], name if isinstance(name, Path) else pages[name])

    yield open_page
    for context in contexts:
        context.close()


def hostile() -> list[Any]:
    """Names and texts that would do harm where they were not escaped."""
    model = Choice(f"{HOSTILE}javascript:alert(3)")
    none = make.record("none", case=make.case("none", model=model))
    named = make.record(HOSTILE, peak=MIB, case=make.case(HOSTILE, model=model))
    broken = make.failed(
        "x", "failed", f"</script></style></textarea>{HOSTILE}", case=make.case("x" * 500, model=model)
    )
    return [none, named, broken]


# --- nothing but itself


@pytest.mark.parametrize("name", ["reference", "troubled", "several", "hostile"])
def test_a_page_asks_for_nothing_but_itself_and_complains_of_nothing(visit, pages, name):
    found = visit(name)

    assert found.requests == [pages[name].as_uri()]
    assert (found.complaints, found.dialogs) == ([], [])


# --- the table


CLIPBOARD = """
Object.defineProperty(navigator, "clipboard", { value: { writeText: async (words) => { %s } } });
"""


def test_no_copied_cell_is_a_formula(visit, tmp_path):
    records = [make.record("none"), make.record("=1+1"), make.record("-2+3 cmd")]
    (tmp_path / "formula.html").write_bytes(render([examples.run(tmp_path / "run", records)]))
    found = visit(tmp_path / "formula.html")
    found.page.evaluate(CLIPBOARD % "window.copied = words;")

    found.page.get_by_role("button", name="Copy as CSV").click()

    lines = found.page.evaluate("window.copied").splitlines()
    assert [line.partition(",")[0] for line in lines[2:]] == ["'=1+1", "'-2+3 cmd"]
    assert ",0.0 %," in lines[2]  # a number stays one


# --- the frontier and the budget


def test_the_slider_stops_at_every_choice_and_changes_there(visit):
    found = visit("sweep")
    output = found.page.locator(".slider output")
    found.page.get_by_role("slider").focus()
    found.page.keyboard.press("Home")
    told = []

    for _ in range(60):
        found.page.keyboard.press("ArrowRight")
        told.append(output.inner_text().split(" (")[0])

    assert list(dict.fromkeys(told[told.index("take segments:k=32") :])) == [
        "take segments:k=32",
        "take segments:k=8",  # k=16 and k=4 take more memory for times that may be the same
        "take none",
    ]


# --- everyone can read it


@pytest.mark.parametrize(("name", "scheme"), [("reference", "light"), ("reference", "dark"), ("several", "dark")])
def test_axe_finds_nothing(visit, name, scheme):
    found = visit(name, color_scheme=scheme)

    assert found.violations() == []


@pytest.mark.parametrize("width", [360, 400])
@pytest.mark.parametrize("name", ["reference", "several"])
def test_a_phone_scrolls_down_only(visit, name, width):
    found = visit(name, viewport={"width": width, "height": 740})

    assert found.page.evaluate("document.documentElement.scrollWidth") == width


def test_without_scripts_the_choices_and_every_number_are_there(visit):
    found = visit("reference", java_script_enabled=False)

    assert found.page.locator(".choices li").all_inner_texts()[-1].startswith("from 52.7 MiB: take none")
    assert not found.page.locator(".slider").is_visible()
    assert found.page.locator("table.sortable tbody tr").count() == 7
