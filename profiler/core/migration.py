"""Steps from one schema of a run folder to the next, on plain JSON: knows nothing of files or of what numbers mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

Document = dict[str, Any]
Kind = Literal["manifest", "record"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """From one schema to the next one: what becomes of a manifest, and of a record. The number is raised elsewhere."""

    manifest: Callable[[Document], Document]
    record: Callable[[Document], Document]


STEPS: dict[int, Step] = {}  # by the schema that a step begins at; schema 1 is the first and the present one


def lifted(document: Document, kind: Kind) -> Document:
    """The document in the newest schema that the steps lead to; one that no step begins at is as it was."""
    while (step := STEPS.get(document["schema"])) is not None:
        document = {**getattr(step, kind)(document), "schema": document["schema"] + 1}
    return document
