"""A real Ray cluster of two nodes on the loopback interface, and models that tell which of its nodes they run on."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.killed import python_path

LOOPBACK = "127.0.0.2"  # of 127.0.0.1 Ray makes the address that others see
STORE_BYTES = 80 << 20
NICENESS = "RAY_worker_niceness"  # 15 where nobody says otherwise: tests would wait for whoever works here besides
PATIENCE_SECONDS = 600.0  # for what surely comes

# A module that begins with a file, named by its node and its process, and goes on once there is the file `go`.
WAITING = """
import os
import time
from pathlib import Path

import torch

PLACE = Path(os.environ["GCPROF_TEST_PLACE"])


def make(number: int = 0):
    (PLACE / f"begun-{os.environ['RAY_RAYLET_PID']}-{os.getpid()}").touch()
    while not (PLACE / "go").exists():
        time.sleep(0.01)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    return layers, torch.ones(2, 4), lambda output: output.mean()
"""


class Nodes:
    """The cluster with its nodes: the head claims an H100, the other a T4, each with one core."""

    def __init__(self, **environment: str) -> None:
        self._before = {name: os.environ.get(name) for name in ("PYTHONPATH", NICENESS, *environment)}
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": python_path(), NICENESS: "0", **environment}
        from ray._common.utils import get_ray_address_file
        from ray.cluster_utils import Cluster

        Path(get_ray_address_file(None)).parent.mkdir(parents=True, exist_ok=True)  # Ray only makes the folder it uses
        self.folder = Path(tempfile.mkdtemp(prefix="gcr-"))  # a short name: there are sockets in it
        self.cluster = Cluster(initialize_head=True, head_node_args=self._claims("H100", temp_dir=str(self.folder)))
        self.head, self.other = self.cluster.head_node, self.cluster.add_node(**self._claims("T4"))
        self.engine = f"ray:address={self.cluster.address}"

    def kill(self, node: Any) -> None:
        """As its power would be cut."""
        self.cluster.remove_node(node, allow_graceful=False)

    def _claims(self, kind: str, **more: Any) -> dict[str, Any]:
        return {
            "num_cpus": 1, "num_gpus": 1, "resources": {f"accelerator_type:{kind}": 1},
            "node_ip_address": LOOPBACK, "object_store_memory": STORE_BYTES, "include_dashboard": False, **more,
        }  # fmt: skip

    def close(self) -> None:
        self.cluster.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, value in self._before.items():
            os.environ.pop(name, None)
            os.environ |= {name: value} if value is not None else {}


def begun(place: Path, node: Any) -> bool:
    """Whether a process waits on that node."""
    return any(place.glob(f"begun-{node.all_processes['raylet'][0].process.pid}-*"))


def await_(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.01)


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Work in a thread beside; what it raises is raised at the end."""
    with ThreadPoolExecutor() as pool:
        done = pool.submit(work)
        yield
        done.result()
