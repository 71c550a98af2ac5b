"""How the table looks on screens of all kinds, with colours and without."""

import io
import re

import msgspec
import pytest

from profiler.analysis.rows import Row
from profiler.core.record import Built, Note, Readings
from profiler.core.stats import Sampling
from profiler.core.units import MISSING
from profiler.views.tables import Paper, show, text
from profiler.views.tables.columns import group_table, main, remarks
from profiler.views.tables.details import samples
from tests import examples, make

CODES = re.compile(r"\x1b\[[\d;]*m")
GREEN, BOLD = "\x1b[32m", "\x1b[1m"


def printed(rows: tuple[Row, ...], *, width: int | None = None, encoding: str = "utf-8") -> str:
    file = io.StringIO()
    print(text(main(rows), Paper(width, encoding)).plain, file=file)
    return file.getvalue()


def test_a_row_that_was_not_built_says_nothing_of_its_data_or_optimizer():
    own = (Note(code="GCP009", text="the model brings its own optimizer"),)
    built = Built(num_parameters=1, num_blocks=2, data="the user's own")
    brings = make.record("none", notes=own, built=built)
    skipped = make.record("segments:k=8", outcome="skipped", built=None)

    heading = printed(examples.table([brings, skipped]), width=200).splitlines()[0]
    alone = printed(examples.table([skipped]), width=200).splitlines()[0]

    assert ", its own optimizer, the user's own data," in heading
    assert "data" not in alone
    assert [row.data for row in examples.table([skipped, brings])] == ["the user's own"] * 2


def test_a_note_is_told_once_for_all_its_strategies():
    notes = (examples.NOISY,)
    records = [make.record(f"segments:k={number}", notes=notes) for number in range(2, 8)]

    told = remarks(examples.table(records))

    names = "segments:k=2, segments:k=3, segments:k=4, segments:k=5 and 2 more"
    assert told == [f"GCP012 {names}: {examples.NOISY.text}"]


def test_a_pipe_gets_no_colours_and_a_terminal_does(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    screen, pipe = Terminal(), io.StringIO()
    tables = main(examples.table([make.record("none")]))

    show(tables, file=screen)
    show(tables, file=pipe)

    assert "\x1b[1m" in screen.getvalue()
    assert "\x1b" not in pipe.getvalue()
    assert pipe.getvalue() == f"{text(tables).plain}\n"


def test_the_samples_tell_their_warm_up_and_why_they_ended():
    case = make.case("none", sampling=Sampling())
    limits = {"warmup_seconds": (0.9, 0.5, 0.4), "stopped": "seconds"}
    enough = {"warmup_seconds": (0.8, 0.6), "stopped": "target"}
    rounds = [
        make.record("none", case=case, round=number, seconds=(0.1,) * 3, readings=told(seconds, **more))
        for number, seconds, more in ((1, (0.1, 0.2, 0.3), limits), (2, (0.2, 0.2, 0.2), enough))
    ]

    lines = text(samples(examples.table(rounds))).plain.splitlines()

    assert next(line for line in lines if line.startswith("warm-up")).split()[1:] == [
        "900.0", "500.0", "400.0", "800.0", "600.0",
    ]  # fmt: skip
    assert next(line for line in lines if line.startswith("the median")) == (
        "the median is known to ±50.0 %; "
        "round 1: 3 samples, --max-seconds reached, 3 of warm-up, 1 of them found; "
        "round 2: 3 samples, sure enough, 2 of warm-up"
    )


def told(seconds: tuple[float, ...], **more) -> Readings:
    return msgspec.structs.replace(make.record(seconds=seconds).readings, **more)


def test_a_baseline_without_a_time_is_no_baseline_of_times():
    record = make.record("none")
    untimed = msgspec.structs.replace(record, readings=examples.untimed_readings(record.readings))

    found = group_table(examples.table([untimed, make.record("all")]))

    heads = {column.label: column.cells[0] for column in found.columns}
    assert "time against none" not in heads
    assert heads["step ms"] == MISSING
    assert heads["peak against none"] == "baseline"


def coloured(color: str, *, width: int | None = None) -> str:
    rows = examples.table(
        [
            make.record("none", peak=100 << 20, seconds=(0.1,) * 6),
            make.record("all", peak=60 << 20, seconds=(0.2,) * 6),
            make.failed("sqrt", "out_of_memory", "CUDA out of memory"),
            make.failed("offload", "skipped", "not here"),
        ]
    )
    file = io.StringIO()
    show(main(rows), file=file, width=width, color=color)
    return file.getvalue()


def line(text: str, strategy: str) -> str:
    return next(one for one in text.splitlines() if CODES.sub("", one).startswith(strategy))


@pytest.mark.slow
def test_a_saving_is_green_and_a_failure_red_and_nothing_else_is():
    text = coloured("always")

    assert re.findall(r"\x1b\[32m(.*?)\x1b\[0m", text) == ["-40 %"]
    assert re.findall(r"\x1b\[31m(.*?)\x1b\[0m", text) == ["out of memory"]
