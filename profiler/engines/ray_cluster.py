"""The engine `ray`, found without importing Ray."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profiler.core import optional_deps
from profiler.core.case import Trial
from profiler.core.catalogue import Count

if TYPE_CHECKING:
    from profiler.engines.ray_driver import RayCluster


def connect(
    stage_seconds: float = 600.0,
    logs: Path | None = None,
    plan: tuple[Trial, ...] = (),
    *,
    address: str = "auto",
    cpus: Count = 1,
    wait: Count = 300,
) -> RayCluster:
    """A Ray cluster: each trial a task with one GPU of a kind, or with cores; waits so many seconds for a place."""
    driver = optional_deps.load("profiler.engines.ray_driver")
    cluster: RayCluster = driver.RayCluster(
        stage_seconds=stage_seconds, logs=logs, plan=plan, address=address, cpus=cpus, wait=wait
    )
    return cluster
