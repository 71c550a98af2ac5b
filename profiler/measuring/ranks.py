"""The ranks of one trial: how they communicate, and how PyTorch's launcher starts and ends them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.numa.binding import AffinityMode, NumaOptions

POLL_SECONDS = 0.02
GRACE_SECONDS = 2  # between asking the other ranks to end and killing them
PATIENCE = timedelta(minutes=10)  # timeout of one communication, for a rank that does not join it
WORD_BYTES = 4096  # PIPE_BUF: a write of up to this size is atomic
HERE = "127.0.0.1"
Failed = Callable[[Exception, int], bytes]
T = TypeVar("T")


class Group:
    """The group of a process that trains alone; also the interface of larger groups."""

    rank = 0
    size = 1
    mesh: DeviceMesh | None = None

    def wait(self) -> None:
        """Wait until every rank has called this."""

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order, on every rank."""
        return [value]

    def agree(self, value: T) -> T:
        """Return the first rank's value, on every rank."""
        return self.gather(value)[0]

    def largest(self, value: T, size: Callable[[T], float]) -> T:
        """Return the largest value any rank gives, on every rank; ties go to the lowest rank."""
        return max(self.gather(value), key=size)


ALONE = Group()


class Ranks(Group):
    """All ranks of this process's default group. They exchange objects over gloo, gradients over any backend."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.rank, self.size = mesh.get_local_rank(), mesh.size()
        self._talk: Any = dist.new_group(backend="gloo")

    def wait(self) -> None:
        dist.barrier(group=self._talk)

    def gather(self, value: T) -> list[T]:
        by_rank: list[T | None] = [None] * self.size
        dist.all_gather_object(by_rank, value, group=self._talk)
        return by_rank  # type: ignore[return-value]  # each rank gave its own


class FirstRank(Group):
    """The first of several ranks, alone: for a rehearsal, whose NCCL needs no other ranks."""

    def __init__(self, size: int) -> None:
        torch.cuda.set_device(0)
        torch.cuda.init()  # or the mesh would choose the device
        os.environ["TORCH_NCCL_RANKS_PER_ROOT"] = str(size)  # with several roots, one would wait for the others' ids
        dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=size)
        self.size = size
        self.mesh = init_device_mesh("cuda", (size,))


Work = Callable[[Ranks], bytes]


class Lost(Exception):
    """A rank ended without a result: its last message, if any, and its exit code or minus a signal's number."""

    def __init__(self, rank: int, status: int, word: bytes) -> None:
        super().__init__(f"rank {rank} ended with {status}")
        self.rank, self.status, self.word = rank, status, word


def launch(count: int, device: str, work: Work, *, failed: Failed) -> bytes:
    """Run `work` in `count` processes forked from this one, as one group; return the first rank's result.

    An error in one rank ends all ranks, and `failed` turns it into that rank's last message. Raises Lost if a rank ends
    without a result. This process must not have used CUDA.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs  # noqa: PLC0415  0.1 s, for ranks alone
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415  as above
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415  as above

    configuration = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=count, max_restarts=0, run_id="gcprof",
        rdzv_backend="c10d", rdzv_endpoint=f"{HERE}:0", local_addr=HERE,
        start_method="fork", monitor_interval=POLL_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        numa_options=NumaOptions(affinity_mode=AffinityMode.NODE),  # without any it uses CUDA, which cannot be forked
    )  # fmt: skip
    configuration.numa_options = None
    if hasattr(configuration, "shutdown_timeout"):  # torch 2.11 has none yet
        configuration.shutdown_timeout = GRACE_SECONDS
    mine, theirs = os.pipe()
    os.set_blocking(mine, False)
    parent = os.getpid()
    forked = multiprocessing.get_context("fork").Barrier(count)
    run = elastic_launch(configuration, _rank)
    try:
        results: dict[int, bytes] = run(device, work, failed, theirs, parent, forked)
    except ChildFailedError as error:
        first = min(error.failures.values(), key=lambda failure: failure.timestamp)
        try:
            word = os.read(mine, WORD_BYTES).partition(b"\n")[0]  # of any rank, the first; later errors follow from it
        except BlockingIOError:
            word = b""
        raise Lost(first.local_rank, first.exitcode, word) from None
    return results[0]


def _rank(device: str, work: Work, failed: Failed, pipe: int, parent: int, forked: Barrier) -> bytes:
    """Run one rank, by NCCL on GPUs, else gloo; it ends when the launcher ends.

    Ranks connect only after all are forked: for each connection a thread of the launcher looks up a host name, under a
    lock of the C library, and a rank that is forked at that moment would wait for the lock forever.
    """
    for number in (signal.SIGTERM, signal.SIGINT):  # SIGINT comes when the launcher dies
        signal.signal(number, signal.SIG_DFL)  # the launcher's own handler would wait for Python to run
    if os.getppid() != parent:
        os._exit(1)
    try:
        forked.wait()
        kind, _, first = device.partition(":")
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
        if "lo" in {name for _, name in socket.if_nameindex()}:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this host, whose name may not resolve
        if kind == "cuda":
            torch.cuda.set_device(int(first or 0) + rank)
            torch.cuda.init()  # or the mesh would choose the device
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=PATIENCE)
        return work(Ranks(init_device_mesh(kind, (size,))))
    except Exception as error:  # noqa: BLE001  the user's model may raise anything
        rank = int(os.environ["RANK"])
        if isinstance(error, dist.DistError) or "gloo/transport" in str(error):  # another rank went away meanwhile
            time.sleep(GRACE_SECONDS)  # lets the launcher notice first the rank that is gone, and end this one
        os.write(pipe, failed(error, rank)[: WORD_BYTES - 1] + b"\n")
        os._exit(1)  # a normal exit would wait for pending communication
