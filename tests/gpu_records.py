"""Records of a GPU in known conditions, and the notes that they get."""

from pathlib import Path

from profiler.analysis.rows import rows
from profiler.core.record import Conditions, Record
from tests import make

NOTES = (Path(__file__).parent.parent / "docs" / "notes.md").read_text(encoding="utf-8")
CALM = (0.100, 0.101, 0.099, 0.100, 0.101, 0.099)
WELL = Conditions(at_seconds=0.0, clock_hertz=1.98e9, highest_clock_hertz=1.98e9, celsius=60, watts=400)


def record(strategy: str = "none", *, seconds: tuple[float, ...] = CALM, **told) -> Record:
    return make.record(strategy, seconds=seconds, **told)


def notes(*records: Record) -> dict[str, str]:
    """Of the first row, by code."""
    return {note.code: note.text for note in rows(records)[0].notes}
