"""Measured, rehearsed and predicted numbers are told apart by every reader, and are never compared unnamed."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text as Drawn

import profiler
from profiler import views
from profiler.analysis.advice import Place, Rung
from profiler.analysis.rows import Row, rows
from profiler.cli import answer
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.integrations.trackers import entries
from profiler.planning.candidates import Way
from profiler.planning.simulator import Cost
from profiler.runs import store
from profiler.runs.merge import merge
from profiler.views import sanitize
from profiler.views.export import markdown
from profiler.views.plots import draw
from profiler.views.tables import Paper, comparison, plans
from profiler.views.tables import text as text_of
from profiler.views.tables.progress import trial_line
from tests import examples, three_kinds
from tests.compared_runs import compare_runs
from tests.make import MIB
from tests.plan_text import parse
from tests.planning_chains import equal_stages
from tests.three_kinds import MEASURED_ON, REHEARSED_ON, of_every_kind

KINDS = ("measured", "rehearsed", "predicted")
SAID = re.compile(r"not measured|nothing was measured again|parts not measured")  # of what is not measured, or always
SIZED = "rehearse:h100:memory=1363148800,context=629145600"


def command(*words: str) -> Callable[..., str]:
    """Reads a run as this command prints it."""

    def tell(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
        assert answer([str(folder) if word == "RUN" else word for word in words]) == 0
        return capsys.readouterr().out

    return tell


def report(level: str) -> Callable[..., str]:
    def tell(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
        page = folder.with_suffix(f".{level}.html")
        assert answer(["report", str(folder), "-o", str(page), "--redact", level]) == 0
        capsys.readouterr()
        return re.sub(r"<(script|style)>.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)

    return tell


READERS: dict[str, Callable[..., str]] = {
    "show": command("show", "RUN"),
    "narrow": command("show", "RUN", "--width", "40"),
    "samples": command("show", "RUN", "--samples"),
    "issue block": command("show", "RUN", "--format", "md"),
    "csv": command("export", "RUN", "--to", "csv"),
    "markdown": command("export", "RUN", "--to", "md"),
    "latex": command("export", "RUN", "--to", "latex"),
    "json": command("export", "RUN", "--to", "json"),
    "show json": command("show", "RUN", "--json"),
    "validate json": command("validate", "RUN", "--json"),
    **{f"report {level}": report(level) for level in sanitize.LEVELS},
    "notebook": lambda folder, capsys: profiler.load(str(folder))._repr_html_(),
    "frame": lambda folder, capsys: profiler.load(str(folder)).to_pandas().to_string(),
    "trackers": lambda folder, capsys: str([[entry.tags, entry.metrics] for entry in entries(store.load(folder))]),
    "progress": lambda folder, capsys: "\n".join(map(trial_line, store.load(folder).records)),
}


def read(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a reader shows of a run, on one line and without the folder's name, which tells of the test."""
    return " ".join(READERS[name](folder, capsys).replace(str(folder), "").split())


def run_of(folder: Path, *kinds: str, device: str) -> Path:
    """A run with the records of these kinds."""
    examples.run(folder, [record for record in of_every_kind(device) if kind_of(record) in kinds])
    return folder


def kind_of(record: Record) -> str:
    return rows([record])[0].evidence


SHOWN = {  # of a run with these kinds, rehearsed on this device: what every reader says of it, and what it never says
    **{(("rehearsed",), device): (("rehearsed",), ("measured",)) for device in (*REHEARSED_ON, SIZED)},
    **{(KINDS, device): (("rehearsed", "predicted"), ()) for device in REHEARSED_ON},
    (("measured",), REHEARSED_ON[0]): ((), ("rehears",)),
}


@pytest.mark.parametrize(("kinds", "device"), SHOWN)
@pytest.mark.parametrize("name", READERS)
def test_every_reader_calls_each_kind_what_it_is(name, kinds, device, tmp_path, capsys):
    said, never = SHOWN[kinds, device]

    text = SAID.sub("", read(name, run_of(tmp_path / "run", *kinds, device=device), capsys).lower())

    assert [word for word in said if word not in text] == []
    assert [word for word in never if word in text] == []


@pytest.mark.parametrize("device", REHEARSED_ON)
def test_a_prediction_is_as_sure_as_its_rehearsal_says_and_the_table_says_against_what(device):
    predicted = three_kinds.predicted(device="fake:h100")
    alone = rows([three_kinds.rehearsed(device=device), predicted])

    assert [row.prediction_against for row in alone] == ["rehearsed", "rehearsed"]
    assert [row.prediction_error for row in alone] == [pytest.approx(99 / 96 - 1)] * 2
    assert "off rehearsed by" in labels(alone[:1])
    assert "peak within by rehearsal" in labels(alone[1:])
    assert "predicted peak off by" not in labels(alone[:1])


@pytest.mark.parametrize("device", REHEARSED_ON)
def test_a_prediction_is_held_against_the_measurement_first_and_each_row_against_its_own_peak(device):
    found = {row.evidence: row for row in rows(of_every_kind(device)) if row.case.strategy == "none"}

    assert found["predicted"].prediction_against == found["measured"].prediction_against == "measured"
    assert found["predicted"].prediction_error == found["measured"].prediction_error == pytest.approx(-0.01)
    assert found["rehearsed"].prediction_error == pytest.approx(99 / 96 - 1)


def labels(found: list[Row] | tuple[Row, ...]) -> str:
    from profiler.views.tables.columns import group_table

    return " | ".join(column.label for column in group_table(found).columns)


@pytest.mark.parametrize("device", REHEARSED_ON)
@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_a_comparison_of_two_kinds_names_both_and_calls_no_peak_better(first, second, device):
    sides = [(kind, [record for record in of_every_kind(device) if kind_of(record) == kind]) for kind in KINDS]
    found = compare_runs([next(side for side in sides if side[0] == kind) for kind in (first, second)])
    text = text_of(comparison.tables(found), Paper(200)).plain
    peaks = text[text.index("\npeak") : text.index("order of the strategies")].partition("\nstep")[0]

    is_mixed = first != second
    assert (f"peak, B {second} against A {first}: " in text) == is_mixed
    assert (f"off A {first} by" in peaks) == is_mixed
    assert {match.cells[1].peak.verdict for match in found.matches} == {"off" if is_mixed else "same"}
    assert not re.search(r"\b(better|worse)\b", peaks)
    assert (f"{first} MiB" in peaks) == (is_mixed or first != "measured")
    assert ("rehearsed ms" in text) is False
    lines = csv.DictReader(io.StringIO(comparison.csv(found)))
    assert {(line["evidence"], line["baseline_evidence"]) for line in lines} == {(first, first), (second, first)}
    assert f"{second} MiB" in markdown(comparison.tables(found)) or not is_mixed


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Drawn) if text.get_text()]


@pytest.mark.parametrize("device", [*REHEARSED_ON, SIZED])
@pytest.mark.parametrize("kind", views.PLOTS)
def test_every_picture_of_a_rehearsal_says_so_in_title_and_axis(kind, device):
    larger = [
        msgspec.structs.replace(record, case=msgspec.structs.replace(record.case, batch_size=128))
        for record in of_every_kind(device)
    ]
    found = rows([record for record in [*of_every_kind(device), *larger] if kind_of(record) == "rehearsed"])

    if kind in ("memory", "heat", "growth"):
        drawn = texts(draw(found, kind=kind))
        assert any(text.endswith("rehearsed, not measured, torch 2.15.0".replace("\n", " ")) for text in joined(drawn))
        assert any(re.search(r"rehearsed (peak )?memory", text) for text in drawn)
    else:
        with pytest.raises(UserError, match="nothing to plot"):
            draw(found, kind=kind)


def joined(drawn: list[str]) -> list[str]:
    return [text.replace("\n", " ") for text in drawn]


@pytest.mark.parametrize("device", REHEARSED_ON)
def test_validate_and_merge_count_the_kinds(device, tmp_path, capsys):
    folders = [run_of(tmp_path / kind, kind, device=device) for kind in KINDS]

    assert answer(["merge", *map(str, folders), "-o", str(tmp_path / "whole")]) == 0
    assert answer(["validate", str(tmp_path / "whole")]) == 0

    said = capsys.readouterr()
    assert "wrote 6 records of 3 runs" in said.err
    assert ", 2 measured, 2 rehearsed, 2 predicted\n" in said.err
    assert ": 6 records, 2 measured, 2 rehearsed, 2 predicted, fine" in said.out
    assert answer(["validate", str(folders[1])]) == 0
    assert ": 2 records, rehearsed, fine" in capsys.readouterr().out


def test_a_hollow_gpu_and_a_real_one_of_the_same_name_are_never_one_run(tmp_path):
    examples.run(tmp_path / "real", [three_kinds.measured()])
    examples.run(tmp_path / "hollow", [three_kinds.rehearsed(device=MEASURED_ON)])

    with pytest.raises(UserError, match="Hollow"):
        merge([tmp_path / "real", tmp_path / "hollow"])


@pytest.mark.parametrize("device", REHEARSED_ON)
def test_the_largest_batch_and_the_plan_are_rehearsed_in_columns_and_documents(device):
    record = three_kinds.rehearsed(device=device)
    (row,) = rows([record])
    place = Place(case=record.case, limit=100 * MIB, context_bytes=0)
    rung = Rung(label=Choice("none"), reach=8, place=place, beyond=place, row=row, further=row)
    way = Way(label="all", plan=parse("1", 1), cost=Cost(peak_bytes=96 * MIB, step_seconds=1.0))
    largest = text_of([plans.sizes_table([rung], of_batches=True, chosen=rung, title="mine", below=())]).plain
    planned = text_of(
        [plans.table([plans.ComparedPlan(way=way, measured=row)], equal_stages(1), title="mine", none=way)]
    ).plain

    assert "rehearsed" in largest
    assert "rehearsed" in planned
    assert "measured" not in largest
    assert not re.search(r"measured|gradients|time +rehearsed", planned)
    (strategy,) = json.loads(plans.sizes_document([rung], model="m", of_batches=True, chosen=rung, left_out={}))["ways"]
    document = plans.document(
        model="m", budget_bytes=1, none=way, points=[], lines=[plans.ComparedPlan(way=way, measured=row)], facts={}
    )
    (shown,) = json.loads(document)["ways"]
    assert strategy["needed_bytes"] == strategy["beyond_bytes"] == 96 * MIB
    assert (shown["measured_peak_bytes"], shown["rehearsed_peak_bytes"]) == (None, 96 * MIB)
    assert strategy["evidence"] == shown["evidence"] == "rehearsed"
