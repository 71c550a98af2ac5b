"""The entry of the engine `ray`, which is found without importing Ray."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.core import optional_deps
from profiler.core.case import Trial
from profiler.core.catalogue import Count
from profiler.core.errors import UserError

if TYPE_CHECKING:
    from profiler.engines.ray_driver import RayCluster

REACH_SECONDS = 5.0
STARTING = "`ray start --head` starts one; --engine ray:address=local is this machine alone"


def connect(
    stage_seconds: float = 600.0,
    logs: Path | None = None,
    plan: tuple[Trial, ...] = (),
    *,
    address: str = "auto",
    cpus: Count = 1,
    wait: Count = 300,
) -> RayCluster:
    """Return the engine of a Ray cluster; a task has a GPU of a kind or `cpus` cores, and waits `wait` s for a node."""
    driver = optional_deps.load("profiler.engines.ray_driver")
    cluster: RayCluster = driver.RayCluster(
        stage_seconds=stage_seconds, logs=logs, plan=plan, address=address, cpus=cpus, wait=wait
    )
    return cluster


def refuse_silent(address: str) -> None:
    """Raise UserError (exit code 3) if nobody listens at the address: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
    except OSError as error:
        raise UserError(f"no Ray cluster at '{address}': {error}", hint=STARTING, exit_code=3) from error
