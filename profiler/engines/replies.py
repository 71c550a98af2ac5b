"""What a worker tells of a question -> the data, or why there is none: knows nothing of who asks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from profiler.core.case import decode
from profiler.core.errors import UserError


def read(answer: Mapping[str, Any], key: str, kind: type[Any], *, of: str = "", hint: str | None = None) -> Any:
    """What stands under the key, as `kind`.

    Raises UserError for what was refused (exit code 2, with the hint) or failed (1), which begins with `of`.
    """
    if key in answer:
        return decode(json.dumps(answer[key]), kind)
    is_refused = "refused" in answer
    words = answer["refused"] if is_refused else answer.get("failed", "what it sent is no answer")
    message = f"{of}: {words}" if of else words
    raise UserError(message, hint=hint if is_refused else None, exit_code=2 if is_refused else 1)
