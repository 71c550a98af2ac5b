"""Measured, rehearsed and predicted numbers are told apart by every reader, and are never compared unnamed."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from matplotlib.text import Text as Drawn
from msgspec.structs import replace

import profiler
from profiler import views
from profiler.analysis.advice import Place, Rung
from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.planning.simulator import Cost, Way
from profiler.runs import store
from profiler.runs.merge import merge
from profiler.views.export import markdown
from profiler.views.plots import draw
from profiler.views.tables import Paper, comparison, plans
from profiler.views.tables import text as text_of
from profiler.views.tables.columns import group_table
from profiler.views.tables.progress import trial_line
from profiler.views.trackers import entries
from tests import examples, make
from tests.compared_runs import compare_runs
from tests.make import MIB
from tests.planning_chains import equal_stages, parse

KINDS = ("measured", "rehearsed", "predicted")
H100 = "NVIDIA H100 80GB HBM3"
MEASURED_ON = "cuda:1"
REHEARSED_ON = ("rehearse:h100", "cuda:0")  # a word that says so, and a GPU whose name says so
SIZED = "rehearse:h100:memory=1363148800,context=629145600"
PEAKS = {"measured": 100 * MIB, "rehearsed": 96 * MIB, "predicted": 99 * MIB}
SAID = re.compile(r"not measured|nothing was measured again|parts not measured")  # of what is not measured, or always


def record(kind: str, strategy: str = "none", *, on: str = REHEARSED_ON[0]) -> Record:
    """Of a kind, rehearsed on this device; `all` has half the peak. What is not measured has no times or gradients."""
    device = {"measured": MEASURED_ON, "rehearsed": on, "predicted": "fake:h100"}[kind]
    name = f"Hollow {H100}" if kind == "rehearsed" else H100
    peak = PEAKS[kind] // (1 if strategy == "none" else 2)
    environment = replace(examples.ENVIRONMENT, device_name=name, device_bytes=1000 * MIB)
    missing = {"equality": None} if kind != "measured" else {}
    missing |= make.UNTIMED if kind == "rehearsed" else {}
    return make.record(strategy, peak=peak, saved=peak // 2, device=device, environment=environment, **missing)


def records(*kinds: str, on: str = REHEARSED_ON[0]) -> list[Record]:
    return [record(kind, strategy, on=on) for kind in kinds for strategy in ("none", "all")]


COMMANDS = (
    "show RUN", "show RUN --width 40", "show RUN --samples", "show RUN --format md", "show RUN --json",
    "export RUN --to csv", "export RUN --to md", "export RUN --to latex", "export RUN --to json",
    "validate RUN --json", "report RUN -o PAGE", "report RUN -o PAGE --redact all",
)  # fmt: skip
READERS = {
    "notebook": lambda folder: profiler.load(str(folder))._repr_html_(),
    "frame": lambda folder: profiler.load(str(folder)).to_pandas().to_string(),
    "trackers": lambda folder: str([[entry.tags, entry.metrics] for entry in entries(store.load(folder))]),
    "progress": lambda folder: "\n".join(map(trial_line, store.load(folder).records)),
}


def read(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a reader shows of a run, on one line and without the folder's name, which tells of the test."""
    if name in READERS:
        text = READERS[name](folder)
    else:
        page = folder.with_suffix(".html")
        assert answer([{"RUN": str(folder), "PAGE": str(page)}.get(word, word) for word in name.split()]) == 0
        text = page.read_text(encoding="utf-8") if "PAGE" in name else capsys.readouterr().out
    return " ".join(re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL).replace(str(folder), "").split())


SHOWN = {  # of a run with these kinds, rehearsed on this device: what every reader says of it, and what it never says
    **{(("rehearsed",), device): (("rehearsed",), ("measured",)) for device in (*REHEARSED_ON, SIZED)},
    **{(KINDS, device): (("rehearsed", "predicted"), ()) for device in REHEARSED_ON},
    (("measured",), MEASURED_ON): ((), ("rehears",)),
}


@pytest.mark.parametrize(("kinds", "device"), SHOWN)
@pytest.mark.parametrize("name", [*COMMANDS, *READERS])
def test_every_reader_calls_each_kind_what_it_is(name, kinds, device, tmp_path, capsys):
    examples.run(tmp_path / "run", records(*kinds, on=device))

    text = SAID.sub("", read(name, tmp_path / "run", capsys).lower())

    said, never = SHOWN[kinds, device]
    assert [word for word in said if word not in text] == []
    assert [word for word in never if word in text] == []


@pytest.mark.parametrize("device", REHEARSED_ON)
def test_a_prediction_is_held_against_the_measurement_first_and_each_row_against_its_own_peak(device):
    whole = {row.evidence: row for row in rows(records(*KINDS, on=device)) if row.case.strategy == "none"}
    alone = rows([record("rehearsed", on=device), record("predicted")])

    assert whole["predicted"].prediction_against == whole["measured"].prediction_against == "measured"
    assert whole["predicted"].prediction_error == whole["measured"].prediction_error == pytest.approx(-0.01)
    assert whole["rehearsed"].prediction_error == pytest.approx(99 / 96 - 1)
    assert [row.prediction_against for row in alone] == ["rehearsed", "rehearsed"]
    assert [row.prediction_error for row in alone] == [pytest.approx(99 / 96 - 1)] * 2
    heads = [" | ".join(column.label for column in group_table([row]).columns) for row in alone]
    assert "off rehearsed by" in heads[0]
    assert "peak within by rehearsal" in heads[1]


@pytest.mark.parametrize("device", REHEARSED_ON)
@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_a_comparison_of_two_kinds_names_both_and_calls_no_peak_better(first, second, device):
    found = compare_runs([(kind, records(kind, on=device)) for kind in (first, second)])
    text = text_of(comparison.tables(found), Paper(200)).plain
    peaks = text[text.index("\npeak") : text.index("order of the strategies")].partition("\nstep")[0]

    is_mixed = first != second
    assert (f"peak, B {second} against A {first}: " in text) == is_mixed
    assert (f"off A {first} by" in peaks) == is_mixed
    assert {match.cells[1].peak.verdict for match in found.matches} == {"off" if is_mixed else "same"}
    assert not re.search(r"\b(better|worse)\b", peaks)
    assert (f"{first} MiB" in peaks) == (is_mixed or first != "measured")
    assert "rehearsed ms" not in text
    lines = csv.DictReader(io.StringIO(comparison.csv(found)))
    assert {(line["evidence"], line["baseline_evidence"]) for line in lines} == {(first, first), (second, first)}
    assert f"{second} MiB" in markdown(comparison.tables(found)) or not is_mixed


@pytest.mark.parametrize("device", REHEARSED_ON)
@pytest.mark.parametrize("kind", views.PLOTS)
def test_every_picture_of_a_rehearsal_says_so_in_title_and_axis(kind, device):
    made = records("rehearsed", on=device)
    found = rows([*made, *[replace(record, case=replace(record.case, batch_size=128)) for record in made]])

    if kind in ("memory", "heat", "growth"):
        drawn = [text.get_text().replace("\n", " ") for text in draw(found, kind=kind).findobj(Drawn)]
        assert any(text.endswith("rehearsed, not measured, torch 2.15.0") for text in drawn)
        assert any(re.search(r"rehearsed (peak )?memory", text) for text in drawn)
    else:
        with pytest.raises(UserError, match="nothing to plot"):
            draw(found, kind=kind)


def test_validate_and_merge_count_the_kinds_and_a_hollow_gpu_and_a_real_one_are_never_one_run(tmp_path, capsys):
    folders = [examples.run(tmp_path / kind, records(kind)).folder for kind in KINDS]
    assert answer(["merge", *map(str, folders), "-o", str(tmp_path / "whole")]) == 0
    assert answer(["validate", str(tmp_path / "whole")]) == 0

    said = capsys.readouterr()
    assert ", 2 measured, 2 rehearsed, 2 predicted\n" in said.err
    assert ": 6 records, 2 measured, 2 rehearsed, 2 predicted, fine" in said.out
    examples.run(tmp_path / "hollow", [record("rehearsed", on=MEASURED_ON)])
    with pytest.raises(UserError, match="Hollow"):
        merge([tmp_path / "measured", tmp_path / "hollow"])


@pytest.mark.parametrize("device", REHEARSED_ON)
def test_the_largest_batch_and_the_plan_are_rehearsed_in_columns_and_documents(device):
    (row,) = rows([record("rehearsed", on=device)])
    place = Place(case=row.case, limit=100 * MIB, context_bytes=4 * MIB)
    rung = Rung(label=Choice("none"), reach=8, place=place, beyond=place, row=row, further=row)
    way = Way(label="all", plan=parse("1", 1), cost=Cost(peak_bytes=96 * MIB, step_seconds=1.0))
    lines = [plans.ComparedPlan(way=way, measured=row)]

    sizes = plans.sizes_table([rung], of_batches=True, chosen=rung, title="mine", below=())
    table = plans.table(lines, equal_stages(1), title="mine", none=way)
    (largest,) = json.loads(plans.sizes_document([rung], model="m", of_batches=True, chosen=rung, left_out={}))["ways"]
    document = plans.document(model="m", budget_bytes=1, none=way, points=[], lines=lines, facts={})
    (planned,) = json.loads(document)["ways"]

    for text in (text_of([one]).plain for one in (sizes, table)):
        assert "rehearsed" in text
        assert not re.search(r"measured|gradients|time +rehearsed", text)
    assert largest["needed_bytes"] == largest["beyond_bytes"] == (96 + 4) * MIB
    assert (planned["measured_peak_bytes"], planned["rehearsed_peak_bytes"]) == (None, 96 * MIB)
    assert largest["evidence"] == planned["evidence"] == "rehearsed"
