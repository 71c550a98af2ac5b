"""Plans, frontiers, stages and largest batches on screens of all widths, in files and in pictures."""

import json
from math import ceil

import msgspec
import pytest

from profiler.analysis.rows import rows
from profiler.planning import chain as chains
from profiler.planning.candidates import none, ways
from profiler.planning.solver import best, frontier
from profiler.views.plots import frontier as plots
from profiler.views.tables import Paper, plans, text
from profiler.views.tables.plans import ComparedPlan
from tests import golden_files, make
from tests.plan_text import parse
from tests.planning_chains import FOLDER

MIB = 2**20
CHAIN = chains.read(FOLDER / "hetero12.stages.json")
FRONTIER = frontier(CHAIN)
NONE = none(CHAIN)
BUDGET = 848 * MIB
NAMES = "a plan names what is recomputed"


def shown() -> list[ComparedPlan]:
    """The plan and its rivals: the last one ran out of memory, the others were measured in two rounds."""
    found = [
        msgspec.structs.replace(way, cost=msgspec.structs.replace(way.cost, error_seconds=0.0021 * at))
        for at, way in enumerate(ways(CHAIN, best(FRONTIER, BUDGET), BUDGET))
    ]
    records = []
    for number in (1, 2):
        records.append(make.record(peak=1424 * MIB, round=number))
        for at, way in enumerate(found[:-1]):
            seconds = tuple((1.1 + 0.1 * at + 0.001 * number) * one for one in (0.1, 0.11, 0.12))
            records.append(make.record(way.label, peak=way.cost.peak_bytes + 3 * MIB, seconds=seconds, round=number))
            twin = make.case(way.label, device="fake:cpu")
            records.append(make.record(way.label, case=twin, peak=way.cost.peak_bytes, round=number))
    records.append(make.failed("all", "out_of_memory", "no room"))
    measured = {row.case.strategy.name: row for row in rows(records) if not row.case.is_predicted}
    predicted = {row.case.strategy.name: row for row in rows(records) if row.case.is_predicted}
    return [
        ComparedPlan(
            way=way,
            measured=measured[way.label],
            predicted=predicted.get(way.label),
            is_chosen=way.label == "uniform(7)",
        )
        for way in found
    ]


BELOW = [
    *plans.reading(CHAIN, (line.way.plan for line in shown())),
    "times are against the step without checkpointing",
]
TABLES = {
    "plan": lambda: plans.table(shown(), CHAIN, title="mine, batch 8: at most 848 MiB", none=NONE, below=BELOW),
    "frontier": lambda: plans.frontier(list(FRONTIER), CHAIN, NONE, title="mine: 30 plans"),
}


def printed(name: str, **how) -> str:
    return f"{text([TABLES[name]()], Paper(**how)).plain}\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("1-4", []),
        ("1 [2-3] 4", [f"{NAMES}: [2-3] is one checkpoint"]),
        ("1-2 3:matmul 4", [f"{NAMES}: 4:matmul keeps the results of its matmul"]),
        ("[1] [2] [3] 4", [f"{NAMES}: [4]..[6] are checkpointed each by itself"]),
    ],
)
def test_what_stands_in_a_plan_is_explained_and_nothing_else(text, lines):
    assert plans.reading(CHAIN, [parse(text, 4)]) == lines


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_look_as_they_did(name):
    golden_files.compare(f"{name}-80.txt", printed(name, width=80))


def test_the_chosen_way_is_marked_and_its_range_and_the_error_of_its_costs_stand_beside_it():
    lines = printed("plan", width=200).splitlines()

    chosen = next(line for line in lines if "uniform(7)" in line)
    reference, way = NONE.cost.step_seconds, shown()[1].way
    assert [line.strip()[0] for line in lines if "MiB" in line and ("uniform" in line or "all" in line)] == ["*", "a"]
    assert "+20..+20" in chosen  # 1.201 and 1.202 times as long in the rounds
    assert f"{(way.cost.step_seconds / reference / 1.2015 - 1) * 100:+.1f} %" in chosen
    assert f" ±{ceil(0.0021 / reference * 100)} %" in chosen


def test_one_document_holds_plan_rivals_and_frontier():
    points = list(FRONTIER)

    text = plans.document(
        model="mine", budget_bytes=BUDGET, none=NONE, points=points, lines=shown(), facts={"floor_bytes": 7}
    )

    found = json.loads(text)
    assert list(found) == ["schema", "model", "budget_bytes", "uncheckpointed", "floor_bytes", "ways", "frontier"]
    assert found["uncheckpointed"] == {"peak_bytes": 1424 * MIB, "step_seconds": NONE.cost.step_seconds}
    assert [way["way"] for way in found["ways"]] == ["plan", "uniform(7)", "all"]
    assert [way["chosen"] for way in found["ways"]] == [False, True, False]
    assert found["ways"][0]["measured_peak_bytes"] == 851 * MIB
    assert found["ways"][-1]["outcome"] == "out_of_memory"
    assert found["ways"][-1]["measured_peak_bytes"] is None
    assert [
        (one["peak_bytes"], one["step_seconds"], parse(one["plan"], 12)) for one in found["frontier"]
    ] == [(one.peak_bytes, one.step_seconds, one.plan) for one in points]  # fmt: skip


def test_the_picture_shows_every_plan_and_rival(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "write", lambda figure, **how: drawn.append(figure()))

    plots.plot_plans(list(FRONTIER), CHAIN, title="t", path=tmp_path / "x.png")

    (axes,) = drawn[0].axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    stairs = list(zip(*lines["plans"].get_data(), strict=True))
    extra = [(one.step_seconds / NONE.cost.step_seconds - 1) * 100 for one in FRONTIER]
    assert stairs[:-1] == [(peak / MIB, time) for peak, time in zip(FRONTIER.peak_bytes, extra, strict=True)]
    assert len(lines["uniform splits"].get_xdata()) == len(lines["the first N"].get_xdata()) == 12
    assert lines["floor: static bytes and the largest stage"].get_xdata()[0] <= FRONTIER.peak_bytes[0] / MIB
