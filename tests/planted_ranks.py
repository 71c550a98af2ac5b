"""Ranks that train together wrongly, on purpose: what the equality pass must catch."""

from typing import Any, Literal

import msgspec
from torch.distributed.device_mesh import DeviceMesh

from profiler.engines import worker
from profiler.training import DISTRIBUTED, distributed
from profiler.training.workload import Workload


def run_trials(request: str, channel: int) -> None:
    """Runs in the child: trials whose case may name `planted`."""
    DISTRIBUTED["planted"] = "tests.planted_ranks:distribute"
    worker.run_trials(request, channel)


def distribute(workload: Workload, mesh: DeviceMesh, *, fault: Literal["no-reduce", "sum"]) -> Workload:
    """DDP whose gradients are never averaged, or are added up."""
    made = distributed.ddp(workload, mesh)
    if fault == "no-reduce":
        return msgspec.structs.replace(made, syncing=lambda is_last: made.syncing(False))

    def scaled(module: Any, batch: Any) -> Any:
        return made.loss(module, batch) * mesh.size()

    return msgspec.structs.replace(made, loss=scaled)
