"""A comparison of two runs, as it is printed."""

import io

import msgspec

from profiler.analysis.comparison import Comparison
from profiler.views.tables import Paper, comparison, text
from tests import examples, make
from tests.compared_runs import compare_runs


def before_and_after() -> Comparison:
    """One device twice, in two rounds: rows that are gone, new, out of memory, without a time, slower, and the same."""
    untimed = examples.point("segments:k=16", segments=16, seconds=0.13)
    untimed = msgspec.structs.replace(untimed, readings=examples.untimed_readings(untimed.readings))
    before = examples.sweep((2, 4, 8)) + examples.sweep((2, 4, 8), round=2) + [untimed]
    after = [
        *(examples.point("none", segments=1, seconds=0.1, round=number) for number in (1, 2)),
        *(examples.point("segments:k=2", segments=2, seconds=0.14, round=number) for number in (1, 2)),
        make.failed("segments:k=4", "out_of_memory", "tried to allocate 96 MiB", environment=examples.ENVIRONMENT),
        untimed,
        examples.point("sqrt", segments=17, seconds=0.14),
    ]
    return compare_runs([("20261120T174900Z-mnist-cnn-3fa9c1", before), ("20261121T090000Z-mnist-cnn-77ab02", after)])


def printed(found: Comparison, *, width: int | None = None, encoding: str = "utf-8") -> str:
    file = io.StringIO()
    print(text(comparison.tables(found), Paper(width, encoding)).plain, file=file)
    return file.getvalue()
