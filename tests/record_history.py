"""Records what the CUDA allocator does in a few steps of training: `python -m tests.record_history MODEL FILE`.

In a process of its own, so that the history begins where nothing is allocated. Its shape is told in
`tests/history.py`; histories to keep go to tests/histories/. Prints the allocator's own peaks as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from profiler.core import catalogue
from profiler.core.case import Choice
from profiler.training import models
from profiler.training.workload import train_step

ACTIONS = ("alloc", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap")
DEVICE, BATCH, STEPS = 0, 64, 3


def main(model: str, file: str) -> None:
    torch.cuda.memory._record_memory_history(context=None)
    train(model)
    torch.cuda.synchronize(DEVICE)
    save(torch.cuda.memory._snapshot()["device_traces"][DEVICE], Path(file))
    peaks = {"allocated": torch.cuda.max_memory_allocated(DEVICE), "reserved": torch.cuda.max_memory_reserved(DEVICE)}
    print(json.dumps(peaks))


def train(model: str) -> None:
    build, options = catalogue.load(Choice(model), models.TABLE)
    torch.manual_seed(0)
    with torch.device("cuda", DEVICE):
        workload = build(batch_size=BATCH, **options)
    optimizer = torch.optim.AdamW(workload.module.parameters())
    for _ in range(STEPS):
        train_step(workload, optimizer)


def save(entries: list[dict], path: Path) -> None:
    """Keep what a replay reads, one entry a line; a file that is there is not overwritten."""
    kept = [{key: entry[key] for key in ("action", "addr", "size")} for entry in entries if entry["action"] in ACTIONS]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(entry) for entry in kept) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
