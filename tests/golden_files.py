"""Looks, kept as files: compare with them, or write them anew with GCPROF_GOLDEN=1 and read the difference."""

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def compare(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("GCPROF_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        f"{name} looks different: GCPROF_GOLDEN=1 pytest, then read git diff"
    )


def compare_at(width: int, name: str, text: str) -> None:
    """At 80 columns with a file; at others with one only where the words are not those that 80 columns show."""
    path = FOLDER / f"{name}-{width}.txt"
    if width == 80 or words(text) != words((FOLDER / f"{name}-80.txt").read_text(encoding="utf-8")):
        compare(path.name, text)
        return
    if os.environ.get("GCPROF_GOLDEN"):
        path.unlink(missing_ok=True)
    assert not path.exists(), f"{path.name} says what {name}-80.txt says"
    assert not [line for line in text.splitlines() if len(line) > width and len(line.split()) > 2]  # a name is not cut


def words(text: str) -> list[str]:
    """What a table says, without its rules and the breaks of its lines."""
    return [word for word in text.split() if not re.fullmatch("-+", word)]
