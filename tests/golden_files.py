"""Looks, kept as files: compare with them, or write them anew with GCPROF_GOLDEN=1 and read the difference."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def compare(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("GCPROF_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} looks different: `just golden`, then read git diff"
