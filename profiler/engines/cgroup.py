"""How often the kernel has killed in this process's control group for want of memory: knows nothing of children."""

from __future__ import annotations

from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def memory_kills() -> int | None:
    """`oom_kill` of the group, by either version of control groups; None where it cannot be read."""
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    counts = [_count(path) for line in lines for path in _counters(*line.split(":", 2)[1:])]
    return next((count for count in counts if count is not None), None)


def _counters(controllers: str, group: str) -> list[Path]:
    """Where the count may stand; in a container the group's own folder is often the mount itself."""
    if controllers == "":
        return [MOUNT / group.lstrip("/") / "memory.events", MOUNT / "memory.events"]
    if "memory" in controllers.split(","):
        return [MOUNT / "memory" / group.lstrip("/") / "memory.oom_control", MOUNT / "memory" / "memory.oom_control"]
    return []


def _count(path: Path) -> int | None:
    try:
        words = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    return next((int(word[1]) for word in words if word[0] == "oom_kill"), None)
