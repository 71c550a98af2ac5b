"""Text from anywhere as a cell of a spreadsheet that runs nothing: knows nothing of tables."""

from __future__ import annotations

from typing import Any

from profiler.views.sanitize import plain

FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet would run a text that begins so; the wide ones too  # noqa: RUF001


def safe(value: Any) -> Any:
    """A value as it is written: booleans in small letters, text on one line and never a formula.

    What would be one stands behind an apostrophe, and so does what begins with one: so a leading apostrophe is never
    part of the text, and a reader who takes it off has the text as it was.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith((*FORMULA, "'")) else text
