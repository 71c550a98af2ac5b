"""Large runs and wide tables: what makes them quick to show changes nothing that is read or printed."""

from operator import attrgetter

import pytest
from msgspec.structs import replace

from profiler.analysis.rows import rows
from profiler.core.case import Choice, encode
from profiler.runs import store
from profiler.views import tables as layout
from profiler.views.tables import Paper, details
from profiler.views.tables.columns import UNSHOWN, main
from tests import examples, make

BASE = make.record("none")
TWO_ROUNDS = [*examples.sweep(), *examples.sweep(round=2)]


@pytest.mark.parametrize("records", [examples.troubled(), TWO_ROUNDS, examples.batches()])
def test_the_table_needs_no_reading_that_is_dropped(tmp_path, records):
    def tables(run: store.Run) -> list[str]:
        table = rows(run.records)
        return [layout.text([*main(table), *details.ranks(table)], Paper(width)).plain for width in (None, 80)]

    whole = examples.run(tmp_path / "run", records)

    brief = store.load(tmp_path / "run", without=UNSHOWN)

    assert tables(brief) == tables(whole)
    assert all(getattr(record.readings, reading) is None for record in brief.records for reading in UNSHOWN)


def test_rows_of_large_groups_are_as_those_of_small_ones_but_for_verdicts():
    asked, unasked = rows(TWO_ROUNDS), rows(TWO_ROUNDS, largest=0)

    assert rows(TWO_ROUNDS, largest=len(asked)) == asked
    assert {(row.on_frontier, row.time_verdict) for row in unasked} == {(False, None)}
    assert [replace(row, on_frontier=False, time_verdict=None) for row in asked] == list(unasked)


def test_the_note_that_more_work_is_faster_needs_no_verdict_that_is_shown():
    records = [
        make.record(name, seconds=seconds, forward_flops=flops, backward_flops=flops)
        for name, seconds, flops in (("none", (1.0, 1.01, 0.99) * 2, 100), ("all", (0.5, 0.51, 0.49) * 2, 150))
    ]  # fmt: skip

    estimated = [replace(record, case=replace(record.case, device="rehearse:t4")) for record in records]
    unasked, asked, untimed = (table[1].notes for table in (rows(records, largest=0), rows(records), rows(estimated)))

    assert "GCP061" in [note.code for note in unasked]
    assert unasked == asked
    assert "GCP061" not in [note.code for note in untimed]  # no memory was slow


def test_what_is_read_is_what_was_written_and_equal_parts_are_one_object(tmp_path):
    """Among them texts that are a Choice in one field and none in another."""
    made = [make.record(name) for name in ("none", "all", "segments:k=2")]
    case = replace(BASE.case, optimizer=Choice("cpu"), data="files", verify="off")
    digested = replace(made[1], round=2, equality=replace(made[1].equality, digests={"loss": "1"}))
    records = [*made, replace(BASE, case=case), digested, make.record("sqrt", static=1)]

    run = examples.run(tmp_path / "run", records)

    assert run.records == tuple(records)
    text = b"".join(encode(record) + b"\n" for record in run.records)
    assert text == (tmp_path / "run" / "trials.jsonl").read_bytes()
    assert all(isinstance(record.case.optimizer, Choice) for record in run.records)
    assert not any(isinstance(record.case.device, Choice) for record in run.records)
    for shared in ("environment", "built", "equality", "case.model", "readings.static_bytes"):
        assert len({id(attrgetter(shared)(record)) for record in run.records[:3]}) == 1, shared
