"""Plans and what one would pick instead: as a table, as a document and as a picture."""

from math import ceil

from msgspec.structs import replace

from profiler.analysis.rows import rows
from profiler.planning import chain as chains
from profiler.planning.simulator import none, ways
from profiler.planning.solver import best, frontier
from profiler.views.tables import Paper, plans, text
from profiler.views.tables.plans import ComparedPlan
from tests import golden_files, make
from tests.make import MIB
from tests.planning_chains import FOLDER

CHAIN = chains.read(FOLDER / "hetero12.stages.json")
FRONTIER = frontier(CHAIN)
NONE = none(CHAIN)
BUDGET = 848 * MIB


def compared() -> list[ComparedPlan]:
    """The plan and its rivals: the last one ran out of memory, the others were measured in two rounds."""
    found = [
        replace(way, cost=replace(way.cost, error_seconds=0.0021 * at))
        for at, way in enumerate(ways(CHAIN, best(FRONTIER, BUDGET).plan, BUDGET))
    ]
    records = [make.failed("all", "out_of_memory", "no room")]
    for number in (1, 2):
        records.append(make.record(peak=1424 * MIB, round=number))
        for at, way in enumerate(found[:-1]):
            seconds = tuple((1.1 + 0.1 * at + 0.001 * number) * one for one in (0.1, 0.11, 0.12))
            records.append(make.record(way.label, peak=way.cost.peak_bytes + 3 * MIB, seconds=seconds, round=number))
            predicted = make.case(way.label, device="fake:cpu")
            records.append(make.record(way.label, case=predicted, peak=way.cost.peak_bytes, round=number))
    by_name = {(row.case.strategy.name, row.case.is_predicted): row for row in rows(records)}
    return [
        ComparedPlan(
            way=way,
            measured=by_name[way.label, False],
            predicted=by_name.get((way.label, True)),
            is_chosen=way.label == "uniform(7)",
        )
        for way in found
    ]


def test_the_chosen_way_is_marked_and_its_range_and_the_error_of_its_costs_stand_beside_it():
    below = [
        *plans.reading(CHAIN, (line.way.plan for line in compared())),
        "times are against the step without checkpointing",
    ]
    table = plans.table(compared(), CHAIN, title="mine, batch 8: at most 848 MiB", none=NONE, below=below)

    (chosen,) = [line for line in text([table], Paper(200)).plain.splitlines() if line.startswith("* uniform(7)")]
    reference, way = NONE.cost.step_seconds, compared()[1].way
    assert "+20..+20" in chosen  # 1.201 and 1.202 times as long in the rounds
    assert f"{(way.cost.step_seconds / reference / 1.2015 - 1) * 100:+.1f} %" in chosen
    assert f" ±{ceil(0.0021 / reference * 100)} %" in chosen
    golden_files.compare("plan-80.txt", f"{text([table], Paper(80)).plain}\n")
