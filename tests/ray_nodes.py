"""A real Ray cluster on the loopback interface: each of its nodes claims a GPU."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.program import python_path


@contextmanager
def nodes(*kinds: str, is_hollow: bool = False, **environment: str) -> Iterator[str]:
    """The address of a cluster with a node for each kind, the first its head; `is_hollow`: with a hollow GPU each."""
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "PYTHONPATH": python_path()}
    with (
        patch.dict(os.environ, settings | environment),
        tempfile.TemporaryDirectory(prefix="gcr-", ignore_cleanup_errors=True) as folder,  # short: of sockets
    ):
        from ray._common.utils import get_ray_address_file
        from ray.cluster_utils import Cluster

        def claims(kind: str) -> dict[str, Any]:
            if is_hollow:
                os.environ["GCPROF_HOLLOW"] = kind.lower()  # of this process, as the node inherits it
            return {
                "num_cpus": 1, "num_gpus": 1, "resources": {f"accelerator_type:{kind}": 1}, "include_dashboard": False,
                "node_ip_address": "127.0.0.2",  # of 127.0.0.1 Ray makes the address that others see
                "object_store_memory": 80 << 20,
            }  # fmt: skip

        Path(get_ray_address_file(None)).parent.mkdir(parents=True, exist_ok=True)  # Ray only makes the folder it uses
        head, *others = kinds
        cluster = Cluster(initialize_head=True, head_node_args={**claims(head), "temp_dir": folder})
        for kind in others:
            cluster.add_node(**claims(kind))
        try:
            yield cluster.address
        finally:
            cluster.shutdown()
