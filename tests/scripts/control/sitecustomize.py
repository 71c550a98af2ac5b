"""Opens the hollow GPUs in every Python process of a command, and says at its end what the allocator says: nothing else.

One line of JSON in the folder CONTROL, for each process that used a GPU. CONTROL_DECIDED is what a table's row decides
by hand.
"""

import atexit
import json
import os
import sys

from profiler.rehearsal.device import open_if_asked


def tell() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return
    devices = range(torch.cuda.device_count())
    peak = max(torch.cuda.max_memory_allocated(device) for device in devices)
    reserved = max(torch.cuda.max_memory_reserved(device) for device in devices)
    if reserved:
        found = {"rank": os.environ.get("RANK"), "peak": peak, "reserved": reserved}
        with open(os.path.join(os.environ["CONTROL"], f"{os.getpid()}.json"), "w") as file:
            json.dump(found, file)


if "CONTROL" in os.environ:
    open_if_asked()
    atexit.register(tell)
    exec(os.environ.get("CONTROL_DECIDED", ""))
