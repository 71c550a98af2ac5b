"""The report as a file: what is in it, what is hidden, how large it is; its words on the command line."""

import base64
import hashlib
import re
import webbrowser
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace

from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.record import Note, Timeline
from profiler.core.safe_files import HIDDEN
from profiler.runs.store import Run, load
from profiler.views.report import MOST_BYTES, render
from profiler.views.report.section import frontier
from tests import examples, make
from tests.make import MIB

REFERENCE = Path(__file__).parents[1] / "results" / "reference" / "cpu" / "mnist-cnn"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return examples.run(tmp_path / "results" / "sweep", examples.sweep())


def page(*runs: Run, redact: str = "default") -> str:
    return render(runs, redact=redact).decode()


def text(html: str) -> str:
    """What a reader sees: no tags, no style, no script."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_every_number_of_the_reference_run_is_in_its_report():
    found = load(REFERENCE)

    shown = text(page(found))

    for row in rows(found.records):
        assert row.case.strategy in shown
        for second in row.readings.step_seconds or ():
            assert f"{second:.6g}" in shown
    for part in ("lowers the peak by 16 %", "from 52.7 MiB: take none", "GCP002", "Intel(R) Xeon(R)", "bit-equal"):
        assert part in shown
    assert found.manifest.command in shown


def test_a_page_tells_what_ran_at_the_peak_unless_all_is_hidden(tmp_path):
    nbytes = {"temporaries": (0, 0, 50, 30), "saved": (0, 0, 30, 0), "parameters": (20,) * 4}
    timeline = Timeline(
        phases=(("forward", 0), ("backward", 3)), nbytes=nbytes, operator="aten.mm", module="secret.0",
        modules={"secret.0": 40, "secret.1": 30},
    )  # fmt: skip
    found = examples.run(tmp_path / "run", [make.record(timeline=timeline)])

    shown, unnamed = text(page(found)), text(page(found, redact="all"))

    assert "at aten.mm of secret.0; the most is held by secret.0 40 B, secret.1 30 B" in shown
    assert "Timeline of a step" in unnamed
    assert "secret" not in unnamed


def test_a_run_without_records_is_refused_and_one_beside_others_is_not(tmp_path, run):
    empty = examples.run(tmp_path / "empty", [])

    with pytest.raises(UserError, match="nothing to report"):
        page(empty)
    assert "No record." in text(page(empty, run))


def test_the_policy_allows_this_style_and_this_script_by_hash_and_nothing_else(run):
    html = page(run)

    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1])
    for tag in ("style", "script"):
        (source,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    rest = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert re.findall(r"(?:https?:)?//[a-z]|\s(?:on\w+|style|src)=", rest) == []


@pytest.mark.parametrize(
    "words", ["</script><script>alert(1)</script><b>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"]
)
def test_hostile_words_are_only_ever_text(tmp_path, words):
    none = make.record(model=Choice(words))
    named = make.record(words, model=Choice(words), notes=(Note(code=words, text=words),))
    broken = make.failed("x", "failed", words, model=Choice(words))

    html = page(examples.run(tmp_path / "run", [none, named, broken]), redact="none")

    assert words in text(html)
    assert html.count("<script") == 1
    assert not re.search("<img|<b>", html)


def test_all_hides_devices_options_the_command_and_failures_and_measurements_stay_and_two_models_two(tmp_path):
    """What the default hides, tests/test_issue_block.py holds."""
    mine, other = (Choice(f"{name}/train.py:make:layers=3") for name in ("alice/secret", "bob"))
    records = [
        make.record("none", peak=90 * MIB, model=mine, environment=examples.ENVIRONMENT),
        make.record("none", peak=70 * MIB, model=other),
        make.failed("all", "failed", "RuntimeError: no layers", model=mine),
    ]

    html = page(examples.run(tmp_path / "private name", records), redact="all")

    shown = text(html)
    assert not re.search("alice|bob|NVIDIA|layers|train|RuntimeError:|gcprof run mnist|private name", shown)
    expected = ("90.0 MiB", "70.0 MiB", "#2", "run 1", f"all: failed: {HIDDEN}")
    assert [word for word in expected if word not in shown] == []
    assert html.count('class="group"') == 2


def test_points_and_budget_lie_where_the_frontier_is_drawn():
    found = frontier(rows(examples.sweep()), "a")

    assert found is not None
    lowest = min(found["points"], key=lambda point: point["peak_bytes"])
    share = (lowest["peak_bytes"] - found["low"]) / (found["high"] - found["low"])
    assert lowest["at"][0] == pytest.approx(found["left"] + share * (found["right"] - found["left"]), abs=0.2)
    marks = {(float(x), float(y)) for x, y in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', found["svg"])}
    for point in found["points"]:  # matplotlib drew a mark there
        assert any(abs(x - point["at"][0]) < 0.2 and abs(y - point["at"][1]) < 0.2 for x, y in marks)


def test_pictures_of_a_page_share_no_id(run):
    html = page(run, load(REFERENCE))

    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert {name for name in re.findall(r'href="#([^"]+)"', html) if "run-" in name} <= set(ids)


LARGE = {  # batches, steps of a stride, rounds; and what is left out
    "groups of rows left out": (60, 2, 1),
    "more rows are left out, so that this page stays small": (1, 400, 25),
}


@pytest.mark.slow
@pytest.mark.parametrize("said", LARGE)
def test_many_groups_or_ten_thousand_records_are_a_page_of_less_than_600_kilobytes(said, run):
    num_batches, num_strategies, num_rounds = LARGE[said]
    names = ["none", *(f"every:k={at}" for at in range(1, num_strategies))]
    records = tuple(
        make.record(name, peak=(1000 - at) * MIB, round=number, seconds=(0.1 * 1.02**at,) * 2,
                    case=make.case(name, batch_size=size))
        for number in range(1, num_rounds + 1) for size in range(1, num_batches + 1) for at, name in enumerate(names)
    )  # fmt: skip

    html = render([replace(run, manifest=replace(run.manifest, plan=()), records=records)])

    assert 100_000 < len(html) < MOST_BYTES
    assert said in text(html.decode())


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("opens", "words"), [(True, ""), (False, "there is no browser to open it with")])
def test_the_command_writes_the_page_says_what_is_next_and_hands_it_to_the_browser(
    run, capsys, monkeypatch, opens, words
):
    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or opens)

    code = answer(["report", str(run.folder), "--open"])

    out, err = capsys.readouterr()
    assert (code, out, asked) == (0, "", [Path("report.html").resolve().as_uri()])
    assert f"next: gcprof export {run.folder} --to csv -o table.csv\n" in err
    assert words in err
    assert Path("report.html").read_bytes() == render([load(run.folder)])
