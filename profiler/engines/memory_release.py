"""Whether a device's memory is back after a child was ended by force: knows nothing of trials or of torch."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_SECONDS = 30.0  # a driver takes a second or two to free what a killed process held
POLL_SECONDS = 0.5
SLACK_BYTES = 64 << 20  # what is free wanders by so much without anybody's doing


def still_held(
    free: Callable[[], int],
    *,
    before: int,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait until about as much is free as before; how many bytes are not back after WAIT_SECONDS, or 0."""
    until = clock() + WAIT_SECONDS
    while (held := before - free()) > SLACK_BYTES:
        if clock() >= until:
            return held
        sleep(POLL_SECONDS)
    return 0
