"""Loops of plain PyTorch on the CUDA device that is here: `python -m benchmarks.gpu_bare [WORD ...]`.

They are those of `benchmarks.bare_loop`: of gcprof they use no more than the modules of its own models. Each line has
what `torch.cuda.max_memory_allocated` and events say, and whether the gradients of the first step equal those of the
plain loop to the bit. A second plain loop shows whether the step is deterministic at all.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median
from typing import Any

from profiler.rehearsal.device import open_if_asked

open_if_asked()  # of a dry run: before torch is imported

import torch  # noqa: E402

from benchmarks import bare_loop  # noqa: E402
from benchmarks.instrument_rows import HEAD  # noqa: E402

STEPS, WARMUP = 13, 3
LOOPS = (  # model, batch, optimizer, and how it is checkpointed
    ("mnist-cnn:channels=32,layers=30", 64, "sgd", "segments:k=8"),
    (f"hf:bert:{HEAD},intermediate_size=1024", 256, "adamw", "hf"),
    ("torchvision:resnet50", 32, "sgd", "all"),
)


def main() -> int:
    for model, batch_size, optimizer, strategy in LOOPS:
        if sys.argv[1:] and not any(word in model for word in sys.argv[1:]):
            continue
        row = {"model": model, "batch_size": batch_size, "optimizer": optimizer, "precision": "fp32", "sizes": None}
        plain: dict[str, torch.Tensor] = {}
        for name in ("none", "none again", strategy):
            torch._C._cuda_clearCublasWorkspaces()  # which torch keeps before 2.15
            torch.cuda.empty_cache()
            torch.manual_seed(0)
            began, gradients = time.monotonic(), dict[str, torch.Tensor]()
            figures: dict[str, Any] = bare_loop.run(
                {**row, "strategy": name.partition(" ")[0]}, timed=STEPS, gradients=gradients
            )
            plain = plain or gradients
            figures["equal"] = all(torch.equal(plain[key], gradients[key]) for key in plain)
            figures["median_milliseconds"] = median(figures["milliseconds"][WARMUP:])
            named = {"model": model, "batch_size": batch_size, "strategy": name}
            print(json.dumps({**named, **figures, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
