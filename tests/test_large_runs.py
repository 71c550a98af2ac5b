"""What makes large runs quick to show changes nothing that is read or printed."""

import msgspec
import pytest
from msgspec.structs import replace

from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core.case import Choice, encode
from profiler.core.record import Record
from profiler.runs import store
from profiler.views import tables as layout
from profiler.views.tables import Paper, details
from profiler.views.tables.columns import UNSHOWN, main
from tests import examples, make

RUNS = {
    "troubled": examples.troubled(),
    "batches": examples.batches(),
    "rounds": [*examples.sweep(), *examples.sweep(round=2)],
    "predicted": [*examples.sweep((2,), device="fake:cuda"), *examples.sweep((2,), device="cuda:0")],
}


@pytest.mark.parametrize("name", RUNS)
def test_the_table_needs_no_reading_that_is_dropped(tmp_path, name):
    examples.run(tmp_path / "run", RUNS[name])

    brief = store.load(tmp_path / "run", without=UNSHOWN)

    assert tables(brief) == tables(store.load(tmp_path / "run"))
    assert all(getattr(record.readings, reading) is None for record in brief.records for reading in UNSHOWN)


def tables(run: store.Run) -> list[str]:
    table = rows(run.records)
    return [layout.text([*main(table), *details.ranks(table)], Paper(width)).plain for width in (None, 80)]


@pytest.mark.parametrize("name", RUNS)
def test_rows_of_large_groups_are_as_those_of_small_ones_but_for_verdicts(name):
    asked, unasked = rows(RUNS[name]), rows(RUNS[name], largest=0)

    assert rows(RUNS[name], largest=len(RUNS[name])) == asked
    assert {(row.on_frontier, row.time_verdict) for row in unasked} == {(False, None)}
    assert [replace(row, on_frontier=False, time_verdict=None) for row in asked] == list(unasked)


def test_the_note_that_more_work_is_faster_needs_no_verdict_that_is_shown():
    faster = make.record("all", seconds=(0.5, 0.51, 0.49, 0.5, 0.5, 0.51))
    records = [make.record("none", seconds=(1.0, 1.01, 0.99, 1.0, 1.0, 1.01)), faster]
    worked = [
        replace(record, readings=replace(record.readings, forward_flops=flops, backward_flops=flops))
        for record, flops in zip(records, (100, 150), strict=True)
    ]

    noted = rows(worked, largest=0)[1]

    assert "GCP061" in [note.code for note in noted.notes]
    assert noted.notes == rows(worked)[1].notes
    estimated = [replace(record, case=replace(record.case, device="rehearse:t4")) for record in worked]
    assert "GCP061" not in [note.code for note in rows(estimated)[1].notes]  # no memory was slow


# --- what the records of a run share when they are read: the same objects, and not a byte less


NAMES = ("none", "all", "segments:k=2")


def test_a_run_of_many_rows_is_shown_alike_without_what_styles_need(tmp_path, monkeypatch, capsys):
    examples.run(tmp_path / "run", RUNS["rounds"])
    assert answer(["show", str(tmp_path / "run")]) == 0
    styled = capsys.readouterr()
    monkeypatch.setattr(layout, "MOST_STYLED", 2)

    assert answer(["show", str(tmp_path / "run")]) == 0

    assert capsys.readouterr() == styled


def records() -> list[Record]:
    """With what is equal, what is not, and texts that are a Choice in one field and none in another."""
    made = [make.record(name) for name in NAMES]
    case = msgspec.structs.replace(made[0].case, optimizer=Choice("cpu"), data="files", verify="off")
    digested = msgspec.structs.replace(made[1].equality, digests={"loss": "1"})
    return [
        *made,
        msgspec.structs.replace(made[0], case=case),
        msgspec.structs.replace(made[1], round=2, equality=digested),
        make.record("sqrt", static=1),
    ]


@pytest.mark.slow
def test_what_is_read_is_what_was_written(tmp_path):
    run = examples.run(tmp_path / "run", records())

    assert run.records == tuple(records())
    text = b"".join(encode(record) + b"\n" for record in run.records)
    assert text == (tmp_path / "run" / "trials.jsonl").read_bytes()
    assert all(isinstance(record.case.optimizer, Choice) for record in run.records)
    assert not any(isinstance(record.case.device, Choice) for record in run.records)


def test_equal_parts_of_records_are_one_object(tmp_path):
    first, second, third, *_ = examples.run(tmp_path / "run", records()).records

    for one, other in ((first, second), (second, third)):
        assert one.environment is other.environment
        assert one.built is other.built
        assert one.case.model is other.case.model
        assert one.readings.static_bytes is other.readings.static_bytes
    assert second.equality is third.equality
