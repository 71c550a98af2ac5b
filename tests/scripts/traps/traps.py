"""The programs that were tried for what they trip over, each as one command: `just bench-scripts --traps`.

Programs that are no installed package's are written anew, in small; some are those of the folder above. What that
folder's own table has, and holds to the byte, is not tried here again.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.scripts import runs
from tests.scripts.runs import TWO, Script

FOLDER = Path(__file__).parent
LIMIT_SECONDS = 300
TRL = ("trl", "datasets", "transformers", "accelerate")
HUGGING = ("transformers", "accelerate")


def _trap(name: str, *more: str, file: str = "", port: int | None = None, **fields: Any) -> Script:
    """Return the command of a program; with a port it is run on two GPUs by torchrun."""
    launcher = (*TWO, str(port)) if port else ("python",)
    fields.setdefault("num_gpus", 2 if port else 1)
    return Script(name=name, words=(*launcher, f"{file or name}.py", *more), **fields)


TRAPS = {
    script.name: script
    for script in (
        _trap("yolo_detect", "detect", "epochs=1", "imgsz=160", "batch=8", "workers=0", file="yolo_images",
              needs=("ultralytics", "cv2")),
        _trap("yolo_classify", "classify", "epochs=1", "imgsz=64", "batch=8", "workers=0", file="yolo_images",
              needs=("ultralytics", "cv2")),
        _trap("recurrent"),
        _trap("gat"),
        _trap("trainer_fsdp2", "2", file="trainer_fsdp", port=29712, device="h100", needs=HUGGING),
        _trap("trainer_fsdp1", "1", file="trainer_fsdp", port=29713, device="h100", needs=HUGGING),
        _trap("lightning_fsdp", num_gpus=2, device="h100", needs=("lightning",)),
        Script(
            name="accelerate_ranks",
            words=("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "29714",
                   "gathered.py"),
            num_gpus=2, device="h100", needs=("accelerate",),
        ),
        _trap("sft", device="h100", needs=TRL),
        _trap("grpo", device="h100", needs=TRL),
        _trap("detr", needs=("transformers", "scipy")),
        _trap("faster_rcnn", device="h100", needs=("torchvision",)),
        _trap("liger", device="h100", needs=("liger_kernel", "transformers")),
        _trap("triton_autotune", device="h100", needs=("triton",)),
        _trap("adam8bit", device="h100", needs=("bitsandbytes", "transformers")),
        _trap("profiled_cuda", file="profiled", device="h100", needs=("tensorboard", "pynvml")),
        _trap("profiled_cpu", "--cpu", file="profiled", device="h100", needs=("tensorboard", "pynvml")),
        _trap("cuda_graph", file="graphs", device="h100"),
        _trap("reduce_overhead", device="h100"),
        _trap("find_batch", needs=("accelerate",)),
    )
}  # fmt: skip


def copied(folder: Path) -> Path:
    """Copy the programs, and those of the folder above, into a folder of the user's."""
    runs.copied(folder)
    for path in FOLDER.glob("*.py"):
        if path.name != "traps.py":
            shutil.copy(path, folder)
    return folder
